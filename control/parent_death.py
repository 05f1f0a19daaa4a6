"""A child that does not outlive its parent: the kernel signals it when the parent dies (Linux).

Prevents: an orphan that keeps a port or a data folder after its owner was killed with `kill -9`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def has_death_signal() -> bool:
    """Return whether the kernel can signal a child when its parent dies (Linux)."""
    return sys.platform == "linux"


def die_with_parent(on_death: signal.Signals) -> Callable[[], None]:
    """Return what the child runs between fork and exec, after its uid was changed (which clears the
    setting). It gets `on_death` when the *thread* that forked it ends. Everything it touches is resolved
    here, in the parent."""
    prctl, parent, number = ctypes.CDLL(None).prctl, os.getpid(), int(on_death)

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the signal was armed
            os._exit(1)

    return arm
