"""Where the embedded server's socket lives: private, and short enough for the kernel.

A socket address holds about 104 bytes, fewer than many home folders have. Prevents: a start that fails
only for people with long user names, and a socket in a folder somebody else prepared.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import stat
import tempfile
from pathlib import Path

from fleet.errors import InvalidInput

#: sun_path is 104 bytes on macOS and 108 on Linux; `/.s.PGSQL.65535` and the final zero need 16.
_MAX_FOLDER_BYTES = 85
_PLAIN = re.compile(r"[A-Za-z0-9_./+-]+")
_SOCKET_NAME = re.compile(r"\.s\.PGSQL\.(\d{1,5})")


def socket_folder(instance: Path) -> Path:
    """Return the socket folder of `instance` (absolute): inside it, or a short one in the temp folder.

    The short one is named after a digest of the path, so every process finds the same.
    """
    inside = instance / "socket"
    if len(os.fsencode(inside)) <= _MAX_FOLDER_BYTES and _PLAIN.fullmatch(str(inside)):
        return inside
    digest = hashlib.sha256(os.fsencode(instance)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"rhodeck-{digest}"


def make_socket_folder(instance: Path, uid: int, gid: int) -> Path:
    """Create the folder for the server's account (0700) and empty it of a former server's sockets.

    Raises InvalidInput if something else, or somebody else's, is in its place.
    """
    folder = socket_folder(instance)
    try:
        folder.mkdir(mode=0o700)
        if os.geteuid() != uid:
            os.chown(folder, uid, gid)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or stat.S_IMODE(found.st_mode) != 0o700:
            raise InvalidInput(
                f"{folder} must be a folder of uid {uid} with mode 0700, "
                f"not uid {found.st_uid} with mode {stat.S_IMODE(found.st_mode):04o}",
                hint=f"Remove {folder} after checking who made it",
            ) from None
    for stale in folder.glob(".s.PGSQL.*"):
        stale.unlink(missing_ok=True)
    return folder


def remove_outside_folder(instance: Path) -> None:
    """Remove the folder in the temp folder, if `instance` needed one and its server is gone."""
    folder = socket_folder(instance)
    if folder.parent != instance:
        with contextlib.suppress(OSError):  # never made, or something is left in it
            folder.rmdir()


def server_port(instance: Path) -> int | None:
    """Return the port in the name of the socket that exists; None if no server made one."""
    try:
        names = sorted(os.listdir(socket_folder(instance)))
    except OSError:
        return None
    ports = [int(match[1]) for name in names if (match := _SOCKET_NAME.fullmatch(name))]
    return ports[0] if ports else None


def free_tcp_port() -> int:
    """Return a port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
