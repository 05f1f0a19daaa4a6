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


def _cache_folder(package: Path) -> Path:
    """Return where the code goes: beside the bytecode; where we may not write, in the user's cache."""
    name = f"kernels-{digest_of(package)}"
    beside = package / "__pycache__" / name
    with contextlib.suppress(OSError):
        beside.mkdir(parents=True, exist_ok=True)
    return beside if os.access(beside, os.W_OK) else Path.home() / ".cache" / "rhodeck" / name


_settings: Any = config
if not _settings.CACHE_DIR:  # NUMBA_CACHE_DIR was not set by whoever runs us
    _settings.CACHE_DIR = str(_cache_folder(Path(__file__).parent))

compiled: Any = njit(cache=True, nogil=True)
