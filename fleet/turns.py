"""Whose turn it is: flows by start tag, equal ones in the order in which they were put in.

Start tags are virtual time (tokens by weight, >= 0). Virtual time is cut into days. Only the present day is
kept in order; what starts on a later one lies there as it came and is put in order when that day begins, so
that putting a flow in touches nothing but the end of a list. Days get shorter where many flows start on
one. Prevents: walking through a heap of a thousand flows, cold in memory, at each start.
Source: Brown, "Calendar Queues" (CACM 31, 1988); there are no years, and no days that nothing starts on.
"""

from __future__ import annotations

import heapq
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleet.fairflows import Flow

    Turn = tuple[float, int, Flow]

#: More on one day are worth shorter days ...
_CROWDED = 48
#: ... of about so many each ...
_WANTED = 12
#: ... but no shorter than a millionth of virtual time.
_MOST_DAYS_PER_UNIT = 1e6


class Turns:
    """The flows of a lane. Order is by (start tag, number in which they were put in), exactly."""

    __slots__ = ("_count", "_days", "_days_per_unit", "_later", "_present", "_today")

    def __init__(self) -> None:
        self._present: list[Turn] = []  # a heap: all that starts on the present day or before
        self._today = -1
        self._later: dict[int, list[Turn]] = {}  # by day
        self._days: list[int] = []  # a heap of its keys
        self._days_per_unit = 1 / 65_536
        self._count = 0

    def add(self, start: float, flow: Flow) -> None:
        """Put a flow in."""
        self._count += 1
        turn = (start, self._count, flow)
        day = int(start * self._days_per_unit)
        if day <= self._today:
            heapq.heappush(self._present, turn)
        else:
            self._put_off(day, turn)

    def first(self) -> Turn | None:
        """Return (start tag, number, flow) of the first; None when there is none."""
        if not self._present and not self._begin_day():
            return None
        return self._present[0]

    def drop_first(self) -> None:
        """Take the first out."""
        heapq.heappop(self._present)

    def __iter__(self) -> Iterator[Turn]:
        """Yield (start tag, number, flow) of all, in order."""
        return iter(sorted(chain(self._present, *self._later.values())))

    def put_back_first(self, start: float, flow: Flow) -> None:
        """Put the first, which is `flow`, to a later start."""
        self._count += 1
        turn = (start, self._count, flow)
        day = int(start * self._days_per_unit)
        if day <= self._today:
            heapq.heapreplace(self._present, turn)
        else:
            heapq.heappop(self._present)
            self._put_off(day, turn)

    def _put_off(self, day: int, turn: Turn) -> None:
        turns = self._later.get(day)
        if turns is None:
            self._later[day] = [turn]
            heapq.heappush(self._days, day)
        else:
            turns.append(turn)

    def _begin_day(self) -> bool:
        """Let the next day begin on which something starts. False: there is none."""
        if not self._days:
            return False
        turns = self._later[self._days[0]]
        if len(turns) > _CROWDED and self._days_per_unit < _MOST_DAYS_PER_UNIT:
            self._shorten_days(turns)
        self._today = day = heapq.heappop(self._days)
        self._present = turns = self._later.pop(day)
        heapq.heapify(turns)
        return True

    def _shorten_days(self, turns: list[Turn]) -> None:
        """Make days so short that those that start on one day now are spread over several."""
        starts = [start for start, _, _ in turns]
        spread = max(starts) - min(starts)
        if spread <= 0:
            return  # they start at once: no day is short enough
        wanted = max(2 * self._days_per_unit, len(turns) / _WANTED / spread)
        self._days_per_unit = min(wanted, _MOST_DAYS_PER_UNIT)
        every, self._later, self._days = list(self._later.values()), {}, []
        for listed in every:
            for turn in listed:
                self._put_off(int(turn[0] * self._days_per_unit), turn)
