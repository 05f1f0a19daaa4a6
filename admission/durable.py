"""Files that are whole after a crash, in a folder that one process owns.

Written beside, flushed, renamed, folder flushed. Prevents: a half-written file that replaces a good one,
a rename that a power cut undoes, and two gateways writing into one spool.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def lock_folder(folder: Path) -> int | None:
    """Take `folder` for this process; return the descriptor that holds it, None if another has it.

    The kernel gives it back when the process ends, however it ends.
    """
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def write_whole(path: Path, content: bytes) -> None:
    """Replace `path` by `content`; after return it survives a power cut. Readable by its owner only.

    Raises OSError when the disk refuses; `path` then still holds what it held.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    beside.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make creations, renames and removals in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
