"""How the simulations' inner loops are compiled, and where their machine code is kept.

Owns the decorator `compiled` and the folder of the cache, whose name is a digest over every kernel. Numba
looks only at the file a function stands in: of a callee in another file it would go on using the code of
before (numba manual, "Notes on Caching": changes in other files are not recognized). Prevents: figures of
a model that was edited or upgraded hours ago.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Any

from numba import (  # pyright: ignore[reportMissingTypeStubs]
    config,
    njit,  # pyright: ignore[reportUnknownVariableType]
)


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
                return folder
    return None


_settings: Any = config
if not _settings.CACHE_DIR:  # NUMBA_CACHE_DIR was not set by whoever runs us
    _settings.CACHE_DIR = str(_cache_folder(Path(__file__).parent) or "")

#: Without a folder each process compiles for itself: numba would refuse to.
compiled: Any = njit(cache=bool(_settings.CACHE_DIR), nogil=True)
