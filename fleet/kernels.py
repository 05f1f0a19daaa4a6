"""How the simulations' inner loops are compiled, and where their machine code is kept.

Owns the decorator `compiled` and the folder of the cache, whose name is a digest over every kernel. Numba
looks only at the file a function stands in: of a callee in another file it would go on using the code of
before (numba manual, "Notes on Caching": changes in other files are not recognized). Prevents: figures of
a model that was edited or upgraded hours ago, and a folder of machine code left behind by each version.

A process holds a shared lock on its folder for as long as it lives: numba would fail in one whose folder
goes. Who removes one holds it alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import Any

from numba import (  # pyright: ignore[reportMissingTypeStubs]
    config,
    njit,  # pyright: ignore[reportUnknownVariableType]
)

#: Folders that stay: the present one, and the one used before it (an upgrade may be taken back).
KEPT = 2
#: One without a lock stays for so many seconds after it was made.
UNLOCKED_S = 7 * 86_400.0
_FOLDER = re.compile(r"kernels-[0-9a-f]{16}")
_LOCK = "in-use"


def digest_of(folder: Path) -> str:
    """Return 16 hex digits that change with any kernel (`*_kernel.py`) in `folder`."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*_kernel.py")):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _cache_folder(package: Path) -> Path | None:
    """Return where the code goes: beside the bytecode or in the user's cache; None: nowhere may we."""
    parents = [package / "__pycache__"]
    with contextlib.suppress(RuntimeError):  # a user without a home
        parents.append(Path.home() / ".cache" / "rhodeck")
    for parent in parents:
        folder = parent / f"kernels-{digest_of(package)}"
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                _hold(folder)
                _remove_old(folder)
                return folder
    return None


def _hold(folder: Path) -> None:
    """Lock a folder for as long as this process lives, made anew where somebody just removed it.

    Where its lock cannot be opened or files cannot be locked, nobody else can lock it to remove it either.
    """
    with contextlib.suppress(OSError):
        while True:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(folder / _LOCK, os.O_RDONLY | os.O_CREAT, 0o644)
            except FileNotFoundError:
                continue
            os.utime(folder)
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # released when the process ends, however it does
            if _is_at(descriptor, folder / _LOCK):
                return
            os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Say whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _remove_old(present: Path) -> None:
    """Remove folders of other versions but for the newest, by when they were last taken into use.

    One that a process holds stays, and for a week one of a release that took no locks.
    """
    others = [
        one
        for one in present.parent.iterdir()
        if _FOLDER.fullmatch(one.name) and one != present and not one.is_symlink() and one.is_dir()
    ]
    for old in sorted(others, key=_used_s, reverse=True)[KEPT - 1 :]:
        with contextlib.suppress(OSError):  # held, gone already, or not ours to remove
            if (old / _LOCK).exists():
                _remove_unheld(old)
            elif _used_s(present) - _used_s(old) > UNLOCKED_S:
                shutil.rmtree(old)


def _remove_unheld(folder: Path) -> None:
    """Remove a folder, or raise OSError where a process holds it."""
    descriptor = os.open(folder / _LOCK, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(descriptor, folder / _LOCK):
            shutil.rmtree(folder)
    finally:
        os.close(descriptor)


def _used_s(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:  # removed by another process meanwhile
        return 0.0


_settings: Any = config
if not _settings.CACHE_DIR:  # NUMBA_CACHE_DIR was not set by whoever runs us
    _settings.CACHE_DIR = str(_cache_folder(Path(__file__).parent) or "")

#: Without a folder each process compiles for itself: numba would refuse to.
compiled: Any = njit(cache=bool(_settings.CACHE_DIR), nogil=True)
