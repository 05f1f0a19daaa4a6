"""One tier's part of the queue: its lanes, its totals, and who has waited longest.

Tokens are counts, times monotonic seconds. Prevents: a search through ten thousand waiting requests for the
one whose time is up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, takewhile

from fleet.fairflows import FairTags, Lane
from fleet.offers import Ticket
from fleet.outcomes import Tier
from fleet.places import Places


class _ByAge:
    """Requests in the order in which they joined."""

    __slots__ = ("_latest_s", "places")

    def __init__(self) -> None:
        self.places: Places[Ticket] = Places()
        self._latest_s = 0.0  # latest deadline among them

    def add(self, ticket: Ticket) -> bool:
        """Append a request. True: its deadline comes before that of one that came before it."""
        places = self.places
        is_early = places.taken > 0 and ticket.deadline_s < self._latest_s
        if not is_early:
            self._latest_s = ticket.deadline_s
        ticket.place = places.add(ticket)
        return is_early

    def expired(self, now_s: float) -> Iterator[Ticket]:
        """Yield those whose deadline is reached, up to the first whose is not."""
        return takewhile(lambda ticket: ticket.deadline_s <= now_s, self.places.oldest_first())


class TierState:
    """What waits in one tier."""

    __slots__ = (
        "_by_age",
        "_returned",
        "failed_look",
        "lanes",
        "most_ahead_ratio",
        "requests",
        "start",
        "tags",
        "tier",
        "timeout_s",
        "tokens",
        "weight",
    )

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.weight = 1  # its share; only `FairQueue.apply` changes it, with `start`
        self.timeout_s = 0.0
        self.most_ahead_ratio = 0.0  # other tiers past one that waited here, to their bound: at most 1
        self.start = 0.0  # of its next request, in virtual time of the level of tiers
        self.lanes: list[Lane] = []
        self.failed_look = 0  # of the backlog, at which nothing of it fitted
        self.tags = FairTags()  # of its tenants
        self.requests = 0
        self.tokens = 0
        self._by_age = _ByAge()
        self._returned = _ByAge()  # of them those that were started once: they stand before all others

    def lead_tokens(self, other: TierState) -> float:
        """Return the tokens by which it is ahead of its share against another tier; below 0: behind."""
        return (self.start - other.start) * self.weight

    def heads(self) -> list[Ticket]:
        """Return each lane's next, the one whose turn it is first."""
        lanes = self.lanes
        if len(lanes) == 1:
            lane = lanes[0]
            head = lane.next or lane.head(self.tags)
            if head is not None:
                return [head]
        found: list[tuple[float, int, Ticket]] = []
        emptied = False
        for lane in lanes:
            head = lane.next or lane.head(self.tags)
            if head is not None:
                found.append((lane.next_tag, head.ticket_id, head))
            elif lane.parked is None:
                emptied = True
        if emptied:
            self._drop_empty_lanes()
        found.sort()
        return [head for _, _, head in found]

    def charge_tenant(self, ticket: Ticket, in_turn: bool) -> None:
        """Count tokens that start against their tenant; those of a parked request count on parking."""
        flow, tags = ticket.flow, self.tags
        tag = tags.find(ticket.holder.name) if flow is None else flow.tag
        tags.charge(tag, ticket.tokens, ticket.holder.weight, in_turn)
        for lane in self.lanes:
            lane.next = None

    def apply(self, weights: Mapping[str, int]) -> None:
        """Take in the weights of its tenants; those not named keep theirs until they are gone."""
        for lane in self.lanes:
            lane.forget_gone()
        self.tags.apply(weights, {name for lane in self.lanes for name in lane.flows})
        for lane in self.lanes:
            lane.apply(weights, self.tags)

    def add(self, ticket: Ticket) -> bool:
        """Count a request in. True: its deadline comes before that of one that came before it."""
        self.requests += 1
        self.tokens += ticket.tokens
        return (self._returned if ticket.requeues else self._by_age).add(ticket)

    def remove(self, ticket: Ticket) -> None:
        """Count a request out."""
        self.requests -= 1
        self.tokens -= ticket.tokens
        (self._returned if ticket.requeues else self._by_age).places.remove(ticket.place)

    def first_due(self) -> Ticket | None:
        """Return the one whose deadline comes first, but for those whose deadline is early."""
        oldest, returned = self._by_age.places.oldest(), self._returned.places.oldest()
        if oldest is None or (returned is not None and returned.deadline_s < oldest.deadline_s):
            return returned
        return oldest

    def oldest_s(self) -> float | None:
        """Return when the one that has waited longest joined; None when nothing waits."""
        found = [
            one.arrived_at_s
            for one in (self._by_age.places.oldest(), self._returned.places.oldest())
            if one
        ]
        return min(found, default=None)

    def expired(self, now_s: float) -> Iterator[Ticket]:
        """Yield those whose deadline is reached."""
        return chain(self._by_age.expired(now_s), self._returned.expired(now_s))

    def newest_first(self) -> Iterator[Ticket]:
        """Yield what waits, what joined last first, what was started once last of all."""
        return chain(self._by_age.places.newest_first(), self._returned.places.oldest_first())

    def _drop_empty_lanes(self) -> None:
        """Forget lanes in which nothing waits."""
        for lane in self.lanes:
            if not lane.active_weight and lane.parked is None:
                del lane.line.lanes[lane.size_class]
        self.lanes = [lane for lane in self.lanes if lane.active_weight or lane.parked is not None]
