"""The only place that reads the machine's clocks.

`now()` is wall time (timezone-aware UTC) for records and people; `monotonic_s()` is for durations and
deadlines. Prevents: a wall-clock jump expiring every queue, lease or quota at once.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """What the effectful edge passes in, so that tests and simulations can own time."""

    def now(self) -> datetime:
        """Return wall time, timezone-aware UTC."""
        ...

    def unix_s(self) -> float:
        """Return wall time as Unix seconds: `now()` without the date, at a fifth of its cost."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds on a clock that never goes back; only differences mean anything."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    # Read a dozen times for each request: these are the C functions, without one of ours around them.
    unix_s = staticmethod(time.time)
    monotonic_s = staticmethod(time.monotonic)


class ManualClock:
    """A clock that moves only when told. For tests and virtual time."""

    def __init__(self, start: datetime) -> None:
        self._start = start
        self._elapsed_s = 0.0

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed_s)

    def unix_s(self) -> float:
        return self.now().timestamp()

    def monotonic_s(self) -> float:
        return self._elapsed_s

    def advance(self, seconds: float) -> None:
        """Move both clocks forward by `seconds` (>= 0)."""
        if seconds < 0:
            raise ValueError("time does not go back")
        self._elapsed_s += seconds
