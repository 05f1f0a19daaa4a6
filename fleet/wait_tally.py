"""Waits of a month counted instead of kept: 30 million floats in 8 MB, any quantile within 0.05 %.

A wait's bucket is the upper 20 bits of its 32-bit float: sign, exponent and 11 bits of mantissa, so buckets
are in the order of the waits and each is 1/2048 of its own height. Waits are seconds. Prevents: a snapshot
of a hundred megabytes, and quantiles that change when a simulation is stopped and goes on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fleet.errors import InvalidInput

_SHIFT = 12
_BUCKETS = 1 << (31 - _SHIFT)  # the sign bit is never set
#: How far a quantile may lie below the true one, as a ratio.
ERROR_RATIO = 1 / 2048


@dataclass(slots=True)
class WaitTally:
    """Counts of waits, none of them negative."""

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_BUCKETS, dtype=np.int64))
    longest_s: float = 0.0

    @property
    def total(self) -> int:
        """How many waits were counted."""
        return int(self.counts.sum())

    def add(self, waits_s: NDArray[np.float32]) -> None:
        """Count these."""
        if waits_s.size == 0:
            return
        if not float(waits_s.min()) >= 0:  # also refuses what is no number
            raise InvalidInput("a wait is negative or no number", hint="This is a fault of the simulation")
        keys = np.ascontiguousarray(waits_s + np.float32(0)).view(np.uint32) >> _SHIFT  # -0 becomes 0
        self.counts += np.bincount(keys, minlength=_BUCKETS)
        self.longest_s = max(self.longest_s, float(waits_s.max()))

    def quantiles(self, shares: Sequence[float]) -> tuple[float, ...]:
        """Return, for each share, the wait it does not exceed, rounded down by at most 0.05 %."""
        cumulative = np.cumsum(self.counts)
        total = int(cumulative[-1])
        if total == 0:
            return tuple(0.0 for _ in shares)
        ranks = [max(1, math.ceil(share * total)) for share in shares]
        places = np.searchsorted(cumulative, ranks).astype(np.uint32)
        return tuple(float(value) for value in (places << _SHIFT).view(np.float32))

    def sparse(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the buckets that hold something, and what they hold."""
        keys = np.flatnonzero(self.counts).astype(np.int32)
        return keys, self.counts[keys]


def restored(keys: NDArray[np.int32], held: NDArray[np.int64], longest_s: float) -> WaitTally:
    """Return the tally that `sparse` told of. Raises InvalidInput for what it never tells."""
    if keys.shape != held.shape or (keys.size and not (0 <= keys.min() <= keys.max() < _BUCKETS)):
        raise InvalidInput("the snapshot's waits are damaged", hint="Start the simulation anew")
    tally = WaitTally(longest_s=longest_s)
    tally.counts[keys] = held
    return tally
