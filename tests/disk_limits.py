"""Makes the files of this process meet the limits of a disk and of a system, for a moment."""

from __future__ import annotations

import os
import resource
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def files_of_at_most(size_bytes: int) -> Generator[None]:
    """Have files grow to this size and no further, as on a full disk: the last write is cut short."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def no_more_files() -> Generator[None]:
    """Have no file open any more; those that are open stay so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_free = os.dup(0)
    os.close(next_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
