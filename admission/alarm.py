"""One timer for all that wait in one pool, instead of one for each.

Times are seconds on the loop's clock. A timer costs microseconds to set and to take back, and nearly all
are taken back: what is waited for comes. Here deadlines are numbers; the timer is set for the first of them
and, when it rings, for the next. Prevents: a deadline that nobody watches any more, and work for each
request that only those that fail need.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

_NEVER = float("inf")


class Waiting(Protocol):
    """Something that waits until `due_s`, which may move while it does."""

    due_s: float

    def time_is_up(self, now_s: float) -> None: ...


class Alarm:
    """Tells those that wait that their time is up."""

    __slots__ = ("_loop", "_rings_at_s", "_timer", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: set[Waiting] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at_s = _NEVER

    def watch(self, one: Waiting) -> None:
        """Tell `one` when its time is up; to be called again when it becomes due sooner."""
        self._waiting.add(one)
        if one.due_s < self._rings_at_s:
            self._set(one.due_s)

    def leave(self, one: Waiting) -> None:
        """Watch it no more. One that was not watched is left as it is."""
        self._waiting.discard(one)

    def close(self) -> None:
        """Stop the timer: nobody is told anything any more."""
        self._waiting.clear()
        self._set(_NEVER)

    def _set(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at_s = due_s
        self._timer = None if due_s == _NEVER else self._loop.call_at(due_s, self._ring)

    def _ring(self) -> None:
        now_s = self._loop.time()
        try:
            for one in [one for one in self._waiting if one.due_s <= now_s]:
                self._waiting.discard(one)
                one.time_is_up(now_s)
        finally:  # a fault of one costs no other its deadline
            self._set(min((one.due_s for one in self._waiting), default=_NEVER))
