"""The folder of one embedded server: who owns it, whether it can be used, what lies in it.

Prevents: two owners of one data folder (a lock held by the kernel, not a file with a number), programs
of one major version on data of another, and parent folders opened to everybody to make a start work.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path

from control.embedded_binaries import Binaries
from control.embedded_process import Account, may_execute
from fleet.errors import Conflict, InvalidInput


def take_ownership(folder: Path) -> int:
    """Lock `folder` for as long as the returned descriptor stays open; the kernel drops it with us.

    Raises Conflict naming the process that owns it.
    """
    fd = os.open(folder / "owner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(fd, 20).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise Conflict(
            f"the database in {folder} is already owned by process {owner}",
            hint=f"Stop process {owner}, or connect to its server: `rhodeck db url`",
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def make_folder(folder: Path, account: Account) -> None:
    """Create the instance folder. Modes of folders that exist are never changed."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700 if account.is_ours else 0o711, exist_ok=True)
    except OSError as exc:
        raise InvalidInput(
            f"cannot create the state folder {folder}: {exc.strerror}",
            hint="Name a folder you may write to in RHODECK_STATE_DIR",
            field="RHODECK_STATE_DIR",
        ) from exc
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidInput(
            f"the state folder {folder} is not writable",
            hint="Name a folder you may write to in RHODECK_STATE_DIR",
            field="RHODECK_STATE_DIR",
        )
    if not may_execute(account, folder):
        raise InvalidInput(
            f"account {account.name} cannot enter {folder}: one of its parent folders is closed to others",
            hint="Name a folder in RHODECK_STATE_DIR that others may pass through, such as "
            "/var/lib/rhodeck, or start as an ordinary user",
            field="RHODECK_STATE_DIR",
        )


def owner_of(data: Path) -> int | None:
    """Return the uid that owns `data`; None if there is no such folder."""
    try:
        return data.stat().st_uid
    except OSError:
        return None


def refuse_other_major(data: Path, binaries: Binaries) -> None:
    """Raise Conflict, with the way out, if `data` exists and is not of the programs' major version."""
    if not data.exists():
        return
    try:
        major = (data / "PG_VERSION").read_text().strip()
    except OSError as exc:
        raise Conflict(
            f"{data} is not a Postgres data folder: PG_VERSION cannot be read ({exc.strerror})",
            hint=f"Move {data} away and start again, then restore a backup",
        ) from exc
    if major != binaries.major:
        raise Conflict(
            f"{data} holds data of Postgres {major}; the installed programs are {binaries.version}",
            hint=f"Dump it with the programs of {major} (`rhodeck db backup FILE` of the "
            f"release that made it), move {data} away, start again, then `rhodeck db restore FILE`",
        )


def password_of(folder: Path) -> str:
    """Return the password for TCP, made at the first call and kept in a file only its owner may read."""
    path = folder / "password"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    with os.fdopen(fd, "w") as file:
        file.write(secrets.token_urlsafe(32) + "\n")
    return path.read_text().strip()


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power loss."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def tail(path: Path, size_bytes: int = 2000) -> str:
    """Return the end of a log; empty if there is none."""
    try:
        return path.read_bytes()[-size_bytes:].decode(errors="replace").strip()
    except OSError:
        return ""


def newest_log(data: Path) -> str:
    """Return the end of the server's newest log; empty if it never wrote one."""
    logs = sorted(data.glob("log/*.log"), key=lambda path: path.stat().st_mtime)
    return tail(logs[-1]) if logs else ""
