"""Starting a child that cannot outlive us, under an account that may not be ours.

Owns: which account runs Postgres, the watcher where the kernel has no parent-death signal, the search for
processes that still hold a data folder. Process ids are of this machine; times are seconds. Prevents: a
server that keeps running after its owner was killed, Postgres run as root, and a lock file believed
because some process happens to have the number written in it.
"""

from __future__ import annotations

import os
import pwd
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from control.parent_death import die_with_parent, has_death_signal
from fleet.errors import InvalidInput

#: Accounts tried, in this order, when root names none. Postgres refuses to run as root.
UNPRIVILEGED = ("rhodeck", "postgres", "nobody")

#: Runs where prctl does not exist: reads a pipe that closes when the owner dies, then signals the server.
_WATCHDOG = """
import os, signal, sys
os.read(0, 1)
try:
    os.kill(int(sys.argv[1]), int(sys.argv[2]))
except ProcessLookupError:
    pass
"""


@dataclass(frozen=True, slots=True)
class Account:
    """Who runs the server. `is_ours` is true when that is already the current user."""

    name: str
    uid: int
    gid: int
    is_ours: bool


def choose_account(requested: str | None, data_owner_uid: int | None) -> Account:
    """Return the account Postgres runs under.

    An ordinary user runs it as themselves. Root takes `requested`, else the owner of the existing data
    folder, else the first of `UNPRIVILEGED` this machine has. Raises InvalidInput for an account that
    is unknown, is root, or is not the owner of the data.
    """
    if os.geteuid() != 0:
        return _ours(requested)
    entry = _entry_of(requested, data_owner_uid)
    if entry.pw_uid == 0:
        raise InvalidInput(
            "Postgres does not run as root",
            hint="Name an unprivileged account with --pg-user",
            field="--pg-user",
        )
    if data_owner_uid is not None and data_owner_uid != entry.pw_uid:
        raise InvalidInput(
            f"the data folder belongs to uid {data_owner_uid}, not to {entry.pw_name} (uid {entry.pw_uid})",
            hint="Start with --pg-user naming the owner, or change the owner of the data folder first",
            field="--pg-user",
        )
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, is_ours=False)


def _ours(requested: str | None) -> Account:
    try:
        entry = pwd.getpwuid(os.geteuid())
    except KeyError:
        raise InvalidInput(
            f"uid {os.geteuid()} has no entry in the account database; Postgres needs one",
            hint="Add the account to /etc/passwd, or set DATABASE_URL to a server of your own",
        ) from None
    if requested not in (None, entry.pw_name):
        raise InvalidInput(
            f"only root can run Postgres as {requested}; you are {entry.pw_name}",
            hint="Leave out --pg-user",
            field="--pg-user",
        )
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, is_ours=True)


def _entry_of(requested: str | None, data_owner_uid: int | None) -> pwd.struct_passwd:
    if requested is None and data_owner_uid is not None:
        try:
            return pwd.getpwuid(data_owner_uid)
        except KeyError:
            raise InvalidInput(
                f"the data folder belongs to uid {data_owner_uid}, which no account has",
                hint="Change the owner of the data folder to an unprivileged account",
            ) from None
    for name in (requested,) if requested is not None else UNPRIVILEGED:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise InvalidInput(
        f"no account named {requested or ', '.join(UNPRIVILEGED)} on this machine",
        hint="Name an existing unprivileged account with --pg-user",
        field="--pg-user",
    )


def may_execute(account: Account, path: Path) -> bool:
    """Return whether `account` can reach and execute (or, for a folder, enter) `path`."""
    if account.is_ours:
        return os.access(path, os.X_OK)
    done = subprocess.run(  # noqa: S603 - fixed program, the path is an argument
        ["/bin/sh", "-c", 'test -x "$1"', "sh", str(path)],
        user=account.uid,
        group=account.gid,
        extra_groups=[],
        cwd="/",
        check=False,
    )
    return done.returncode == 0


def spawn(
    argv: Sequence[str], account: Account, *, on_death: signal.Signals, output: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start `argv` as `account`; the kernel sends it `on_death` when the calling *thread* ends.

    In its own session, so that Ctrl-C in a terminal does not stop the database before its users. The
    environment is minimal: tokens of the owner stay out of an account others may share. Raises
    InvalidInput if we may not become `account`.
    """
    try:
        return subprocess.Popen(  # noqa: S603 - our own binaries and arguments
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            start_new_session=True,
            umask=0o077,
            user=None if account.is_ours else account.uid,
            group=None if account.is_ours else account.gid,
            extra_groups=None if account.is_ours else [],
            preexec_fn=die_with_parent(on_death) if has_death_signal() else None,
        )
    except PermissionError as exc:
        raise InvalidInput(
            f"cannot start {argv[0]} as {account.name}: {exc.strerror}",
            hint="Start as an ordinary user, or set DATABASE_URL to a server of your own",
        ) from exc


def watch_owner(pid: int, on_death: signal.Signals) -> subprocess.Popen[bytes]:
    """Start the watcher used where the kernel has no parent-death signal.

    It signals `pid` when our end of its stdin closes, which the kernel does however we die.
    """
    return subprocess.Popen(  # noqa: S603 - our interpreter, fixed program
        [sys.executable, "-I", "-S", "-c", _WATCHDOG, str(pid), str(int(on_death))],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def holders(data: Path) -> list[int]:
    """Return ids of living postgres processes that work in `data`, the postmaster first.

    Zombies and other programs that got a recycled id do not count: the working folder and the program
    name are compared, not the number in the lock file.
    """
    if Path("/proc/self/cwd").exists():
        return [pid for pid in _pids() if _works_in(pid, data)]
    return _holder_by_ps(data)


def _pids() -> list[int]:
    return sorted(int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def _works_in(pid: int, data: Path) -> bool:
    try:
        if Path(os.readlink(f"/proc/{pid}/cwd")) != data.resolve():
            return False
        fields = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # gone, a zombie, or another user's
        return False
    name, state = fields[fields.index("(") + 1 :].rsplit(") ", 1)
    return name == "postgres" and state[0] not in "ZX"


def _holder_by_ps(data: Path) -> list[int]:
    pid = pid_in_lock_file(data)
    if pid is None:
        return []
    listed = subprocess.run(  # noqa: S603 - fixed program
        ["/bin/ps", "-o", "stat=,comm=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.split()
    is_postgres = len(listed) > 1 and listed[1].endswith("postgres") and not listed[0].startswith("Z")
    return [pid] if is_postgres else []


def pid_in_lock_file(data: Path) -> int | None:
    """Return the process id in `postmaster.pid`; None if the file is absent, empty or damaged."""
    try:
        first = (data / "postmaster.pid").read_text(errors="replace").partition("\n")[0]
    except OSError:
        return None
    return int(first) if re.fullmatch(r"[1-9]\d{0,9}", first.strip()) else None
