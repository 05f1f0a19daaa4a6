"""Whose turn it is: flows by start tag, equal ones in the order in which they were put in.

Start tags are virtual time (tokens by weight, >= 0). Virtual time is cut into days. Only the present day is
kept in order; what starts on a later one lies there as it came and is put in order when that day begins, so
that putting a flow in touches nothing but the end of a list. Days get shorter where many flows start on
one. A flow knows its own turn: nothing is made for it. Prevents: walking through a heap of a thousand
flows, cold in memory, at each start.
Source: Brown, "Calendar Queues" (CACM 31, 1988); there are no years, and no days that nothing starts on.
"""

from __future__ import annotations

import heapq
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleet.fairflows import Flow

#: More on one day are worth shorter days ...
_CROWDED: Final = 48
#: ... of about so many each ...
_WANTED: Final = 12
#: ... but no shorter than a millionth of virtual time.
_MOST_DAYS_PER_UNIT: Final = 1e6
_TURN: Final = attrgetter("turn")
_TURN_NUMBER: Final = attrgetter("turn_number")


class Turns:
    """The flows of a lane. Order is by (start tag, number in which they were put in), exactly."""

    __slots__ = ("_count", "_days", "_days_per_unit", "_later", "_present", "_today")

    def __init__(self) -> None:
        self._present: list[Flow] = []  # all that start on the present day or before, the first one last
        self._today = -1
        self._later: dict[int, list[Flow]] = {}  # by day, in the order in which they were put in
        self._days: list[int] = []  # a heap of its keys
        self._days_per_unit = 1 / 65_536
        self._count = 0

    def add(self, start: float, flow: Flow) -> None:
        """Put in a flow that is not in."""
        self._count += 1
        flow.turn = start
        flow.turn_number = self._count
        day = int(start * self._days_per_unit)
        if day > self._today:
            self._put_off(day, flow)
            return
        present = self._present
        low, high = 0, len(present)
        while low < high:  # before those that start with it: they were put in before, and come last here
            middle = (low + high) >> 1
            if present[middle].turn > start:
                low = middle + 1
            else:
                high = middle
        present.insert(low, flow)

    def first(self) -> Flow | None:
        """Return the first, which starts at its `turn`; None when there is none."""
        if not self._present and not self._begin_day():
            return None
        return self._present[-1]

    def drop_first(self) -> None:
        """Take the first out."""
        self._present.pop()

    def __iter__(self) -> Iterator[Flow]:
        """Yield all, in order."""
        flows = sorted(chain(self._present, *self._later.values()), key=_TURN_NUMBER)
        return iter(sorted(flows, key=_TURN))

    def put_back_first(self, start: float, flow: Flow) -> None:
        """Put the first, which is `flow`, to a later start."""
        self._present.pop()
        self.add(start, flow)

    def _put_off(self, day: int, flow: Flow) -> None:
        flows = self._later.get(day)
        if flows is None:
            self._later[day] = [flow]
            heapq.heappush(self._days, day)
        else:
            flows.append(flow)

    def _begin_day(self) -> bool:
        """Let the next day begin on which something starts. False: there is none."""
        if not self._days:
            return False
        flows = self._later[self._days[0]]
        if len(flows) > _CROWDED and self._days_per_unit < _MOST_DAYS_PER_UNIT:
            self._shorten_days(flows)
        self._today = day = heapq.heappop(self._days)
        self._present = flows = self._later.pop(day)
        if len(flows) > 1:
            flows.reverse()  # sorting keeps equal ones as they stand
            flows.sort(key=_TURN, reverse=True)
        return True

    def _shorten_days(self, crowd: list[Flow]) -> None:
        """Make days so short that those that start on one day now are spread over several."""
        starts = [flow.turn for flow in crowd]
        spread = max(starts) - min(starts)
        if spread <= 0:
            return  # they start at once: no day is short enough
        wanted = max(2 * self._days_per_unit, len(crowd) / _WANTED / spread)
        self._days_per_unit = min(wanted, _MOST_DAYS_PER_UNIT)
        every = sorted(chain(*self._later.values()), key=_TURN_NUMBER)
        self._later, self._days = {}, []
        for flow in every:
            self._put_off(int(flow.turn * self._days_per_unit), flow)
