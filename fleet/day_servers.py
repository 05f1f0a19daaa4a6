"""What stands behind the gate in a day: service times as drawn, or engines that slow down as they fill.

Requests are named by their place in the day's traffic. Times are seconds, sizes tokens. Prevents: two loops
over a day that differ in more than what serves.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple, Protocol

from fleet.engine_group import Ended, EngineGroup
from fleet.engine_profile import EngineProfile
from fleet.offers import NodeState


class Asked(NamedTuple):
    """One request as the day's traffic has it."""

    place: int
    at_s: float
    flow: int
    prompt_tokens: int
    service_s: float  # heeded where service times are drawn
    output_tokens: int


class DayServers(Protocol):
    """What a day asks of what serves its requests."""

    def follow(self, nodes: Iterable[str]) -> None:
        """Take in which nodes are in the plan now. Others finish what they hold."""
        ...

    def start(self, asked: Asked, node: str, rank: int, now_s: float) -> None:
        """Begin to serve a request."""
        ...

    def ended(self, until_s: float) -> Ended | None:
        """Return who ended first, at or before `until_s`; None: nobody does."""
        ...

    def produced(self, place: int, now_s: float) -> int:
        """Return the output tokens that a request being served has."""
        ...

    def lose(self, nodes: set[str]) -> list[int]:
        """End what runs on these nodes, unanswered; return it."""
        ...

    def states(self, nodes: Iterable[str], now_s: float) -> list[NodeState]:
        """Return what a poll of the nodes would say."""
        ...


class DrawnServers:
    """Each request takes as long as was drawn for it, whatever else is served."""

    def __init__(self, kv_capacity_tokens: int) -> None:
        self._capacity = kv_capacity_tokens
        self._ends: list[tuple[float, int]] = []
        self._serving: dict[int, tuple[Asked, str, float]] = {}

    def follow(self, nodes: Iterable[str]) -> None:
        """Nothing: nodes hold no state."""

    def start(self, asked: Asked, node: str, rank: int, now_s: float) -> None:
        """Begin to serve a request."""
        heappush(self._ends, (now_s + asked.service_s, asked.place))
        self._serving[asked.place] = (asked, node, now_s)

    def ended(self, until_s: float) -> Ended | None:
        """Return who ended first, at or before `until_s`."""
        if not self._ends or self._ends[0][0] > until_s:
            return None
        at_s, place = heappop(self._ends)
        del self._serving[place]
        return Ended(at_s, (place,), ())

    def produced(self, place: int, now_s: float) -> int:
        """Return its answer's length times the share of its time that has passed."""
        asked, _, begun_s = self._serving[place]
        return int(asked.output_tokens * min((now_s - begun_s) / asked.service_s, 1.0))

    def lose(self, nodes: set[str]) -> list[int]:
        """End what runs on these nodes."""
        lost = [place for place, (_, node, _) in self._serving.items() if node in nodes]
        for place in lost:
            del self._serving[place]
        self._ends = [end for end in self._ends if end[1] in self._serving]
        heapify(self._ends)
        return lost

    def states(self, nodes: Iterable[str], now_s: float) -> list[NodeState]:
        """Return that all is well."""
        return [NodeState(name, True, now_s, self._capacity, 0.0, 0, 0) for name in nodes]


class GroupedEngines:
    """Engines of one profile: the more they hold, the longer each token takes."""

    def __init__(self, profile: EngineProfile) -> None:
        self._group = EngineGroup(profile)
        self._capacity = profile.kv_capacity_tokens
        self._here: set[str] = set()  # engines there are, those that only finish included
        self._serving: dict[int, tuple[str, int]] = {}  # node and place in it

    @property
    def preemptions(self) -> int:
        """How often a sequence lost its KV blocks and was computed again."""
        return self._group.preemptions

    def follow(self, nodes: Iterable[str]) -> None:
        """Begin engines that are new; forget those that are not in the plan and hold nothing."""
        wanted = set(nodes)
        for name in sorted(wanted - self._here):
            self._group.add(name)
        gone = {name for name in self._here - wanted if self._group.is_empty(name)}
        for name in gone:
            self._group.remove(name)
        self._here = (self._here | wanted) - gone

    def start(self, asked: Asked, node: str, rank: int, now_s: float) -> None:
        """Begin to serve a request."""
        place = self._group.submit(asked.place, node, asked.prompt_tokens, asked.output_tokens, now_s, rank)
        self._serving[asked.place] = (node, place)

    def ended(self, until_s: float) -> Ended | None:
        """Return who ended first, at or before `until_s`, with all that ended with the same step."""
        found = self._group.run_until(until_s)
        if found is None:
            return None
        for name in found.names:
            del self._serving[name]
        return found

    def produced(self, place: int, now_s: float) -> int:
        """Return the tokens that came out."""
        return self._group.produced(*self._serving[place])

    def lose(self, nodes: set[str]) -> list[int]:
        """End what runs on these nodes."""
        lost: list[int] = []
        for name in sorted(nodes & self._here):
            lost += self._group.remove(name)
            self._here.discard(name)
        for place in lost:
            del self._serving[place]
        return lost

    def states(self, nodes: Iterable[str], now_s: float) -> list[NodeState]:
        """Return what each engine says of itself."""
        found: list[NodeState] = []
        for name in nodes:
            one = self._group.state(name)
            found.append(
                NodeState(name, True, now_s, self._capacity, one.kv_used_ratio, one.running, one.waiting)
            )
        return found
