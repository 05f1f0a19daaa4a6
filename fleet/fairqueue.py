"""Who is next: tiers by weight, tenants by weight inside a tier, shortest job first inside a tenant.

Shares are in tokens. Both levels are start-time fair queues: what is backlogged is served in proportion
to its weight, what is idle earns nothing, and whatever fits may run when nobody before it can (work
conserving). Prevents: strict priority starving a tier, and a tenant returning from idleness with credit.

Bounds. While a tier of weight w (of 100) has a request of k tokens that fits, the other tiers start at
most k * (100 - w) / w tokens, plus one largest request each, before it. While it does not fit, each
other tier may run ahead of its share by at most k tokens and one request, and inside its tier at most
k tokens pass it (`fleet.backlog`). Nothing waits beyond its tier's timeout.
Source: Goyal, Vin, Cheng, "Start-time Fair Queuing" (SIGCOMM 1996).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from fleet.fairflows import FairTags, Lane
from fleet.fairness import jain_index
from fleet.offers import Ticket, TierQueue
from fleet.outcomes import TIERS, Tier

#: A tenant's share says something after so long a backlog.
_LONG_ENOUGH_S = 5.0

#: (model, size class): the requests that compete for the same room.
LaneKey = tuple[str, str | None]


def lane_of(ticket: Ticket) -> LaneKey:
    """Return the lane a request waits in."""
    return ticket.request.model, ticket.size_class


class _TierState:
    """One tier's lanes and totals."""

    __slots__ = ("by_age", "lanes", "requests", "tags", "tokens")

    def __init__(self) -> None:
        self.lanes: dict[LaneKey, Lane] = {}
        self.tags = FairTags()
        self.by_age: deque[Ticket] = deque()
        self.requests = 0
        self.tokens = 0


class FairQueue:
    """All that waits at one gate."""

    def __init__(self) -> None:
        self._tiers = {tier: _TierState() for tier in TIERS}
        self._tier_tags = FairTags()
        self._tier_starts = dict.fromkeys(TIERS, 0.0)  # start tags, kept: read far more than changed
        self._weights: Mapping[Tier, int] = dict.fromkeys(TIERS, 1)
        self._deadlines: list[tuple[float, int, Ticket]] = []
        self._waiting_by_model: dict[tuple[str, Tier], tuple[int, int]] = {}
        self._requests_by_bits = [0] * 64
        self._bits_waiting = 0  # bit b is set while a request whose size has b bits waits
        self._parked: set[Ticket] = set()
        self.requests = 0
        self.tokens = 0

    def set_weights(self, weights: Mapping[Tier, int]) -> None:
        """Set the tiers' shares (> 0). What waits keeps its place inside its tier."""
        self._weights = weights

    def push(self, ticket: Ticket) -> None:
        """Queue a request."""
        state = self._tiers[ticket.tier]
        lane_key = lane_of(ticket)
        lane = state.lanes.get(lane_key)
        if lane is None:
            lane = state.lanes[lane_key] = Lane()
        flow = lane.flow(ticket.account, ticket.weight, state.tags)
        flow.push(ticket)
        state.by_age.append(ticket)
        heapq.heappush(self._deadlines, (ticket.deadline_s, ticket.ticket_id, ticket))
        self._count(ticket, 1)

    def count_as_oldest(self, ticket: Ticket) -> None:
        """Put the request that joined last before all others of its tier by age: it was here already."""
        by_age = self._tiers[ticket.tier].by_age
        by_age.rotate(1)

    def discard(self, ticket: Ticket) -> None:
        """Take a waiting request out, wherever it stands."""
        ticket.is_waiting = False
        state = self._tiers[ticket.tier]
        if ticket.is_parked:
            self._parked.discard(ticket)
        else:
            flow = state.lanes[lane_of(ticket)].flows[ticket.account]
            flow.count(ticket, -1)
            flow.compact()
        self._count(ticket, -1)
        if len(state.by_age) > 2 * state.requests + 64:
            state.by_age = deque(one for one in state.by_age if one.is_waiting)
        if len(self._deadlines) > 2 * self.requests + 64:
            self._deadlines = [entry for entry in self._deadlines if entry[2].is_waiting]
            heapq.heapify(self._deadlines)

    def count_served(self, ticket: Ticket) -> None:
        """Count a start for its tenant's share while it is backlogged. Call before it leaves."""
        lane = self._tiers[ticket.tier].lanes.get(lane_of(ticket))
        flow = None if lane is None else lane.flows.get(ticket.account)
        if flow is not None:
            flow.served_tokens += ticket.tokens

    def jain(self, tier: Tier, now_s: float) -> float | None:
        """Return Jain's index (0..1) of what backlogged tenants of a tier got by weight and second.

        Over those backlogged for `_LONG_ENOUGH_S`, each since it is; None: fewer than two, or none served.
        """
        rates: dict[str, float] = {}
        for lane in self._tiers[tier].lanes.values():
            for flow in lane.flows.values():
                backlogged_s = now_s - flow.since_s
                if flow.requests and backlogged_s >= _LONG_ENOUGH_S:
                    rate = flow.served_tokens / flow.weight / backlogged_s
                    rates[flow.account] = rates.get(flow.account, 0.0) + rate
        for ticket in self._parked:
            if ticket.tier is tier and now_s - ticket.arrived_at_s >= _LONG_ENOUGH_S:
                rates.setdefault(ticket.account, 0.0)  # it has got nothing since that one waits
        return jain_index(list(rates.values())) if len(rates) >= 2 else None

    def park(self, ticket: Ticket) -> None:
        """Set the head of a lane aside, so that the lane's other tenants have their turn.

        It still waits and counts, and its tenant is charged for it now.
        """
        flow = self._tiers[ticket.tier].lanes[lane_of(ticket)].flows[ticket.account]
        heapq.heappop(flow.heap)
        flow.count(ticket, -1)
        ticket.is_parked = True
        self._parked.add(ticket)
        self.charge_tenant(ticket, in_turn=False)

    def _count(self, ticket: Ticket, sign: int) -> None:
        tier, more = ticket.tier, ticket.tokens
        state = self._tiers[tier]
        self._count_size(ticket.room_tokens.bit_length(), sign)
        if sign < 0:
            more = -more
        self.requests += sign
        self.tokens += more
        state.requests += sign
        state.tokens += more
        key = (ticket.request.model, tier)
        requests, tokens = self._waiting_by_model.get(key, (0, 0))
        requests += sign
        if requests:
            self._waiting_by_model[key] = (requests, tokens + more)
        else:
            del self._waiting_by_model[key]

    def _count_size(self, bits: int, sign: int) -> None:
        bits = bits if bits < 63 else 63
        by_bits = self._requests_by_bits
        by_bits[bits] += sign
        if sign > 0:
            self._bits_waiting |= 1 << bits
        elif not by_bits[bits]:
            self._bits_waiting &= ~(1 << bits)

    def heads(self, tier: Tier) -> list[Ticket]:
        """Return the next request of each lane of a tier, the one whose turn it is first."""
        state = self._tiers[tier]
        if not state.requests:
            return []
        if len(state.lanes) == 1:
            (lane,) = state.lanes.values()
            only = lane.head(state.tags)
            if only is not None:
                return [only[1]]
        found: list[tuple[float, int, Ticket]] = []
        for lane_key, lane in list(state.lanes.items()):
            head = lane.head(state.tags)
            if head is None:
                del state.lanes[lane_key]
            else:
                found.append((head[0], head[1].ticket_id, head[1]))
        found.sort()
        return [ticket for _, _, ticket in found]

    def tiers_in_turn(self) -> list[Tier]:
        """Return the tiers that have something waiting, the one whose turn it is first."""
        states = self._tiers
        waiting = [tier for tier in TIERS if states[tier].requests]
        if len(waiting) > 1:
            waiting.sort(key=self._tier_starts.__getitem__)
        return waiting

    def lead_tokens(self, tier: Tier, other: Tier) -> float:
        """Return the tokens by which `tier` is ahead of its share against `other`; below 0: behind."""
        starts = self._tier_starts
        return (starts[tier] - starts[other]) * self._weights[tier]

    def charge_tier(self, tier: Tier, tokens: int, *, in_turn: bool) -> None:
        """Count tokens that start against their tier."""
        tags, starts = self._tier_tags, self._tier_starts
        tags.charge(tier, tokens, self._weights[tier], in_turn=in_turn)
        if in_turn:
            for one in TIERS:
                starts[one] = tags.start(one)
        else:
            starts[tier] = tags.start(tier)

    def charge_tenant(self, ticket: Ticket, *, in_turn: bool) -> None:
        """Count tokens that start against their tenant; those of a parked request count on parking."""
        tags = self._tiers[ticket.tier].tags
        tags.charge(ticket.account, ticket.tokens, ticket.weight, in_turn=in_turn)

    def expired(self, now_s: float) -> list[Ticket]:
        """Return the requests whose deadline is reached, earliest first. They still wait."""
        found: list[Ticket] = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            ticket = heapq.heappop(self._deadlines)[2]
            if ticket.is_waiting:
                found.append(ticket)
        return found

    def next_deadline_s(self) -> float | None:
        """Return the earliest deadline of a waiting request; None when nothing waits."""
        while self._deadlines and not self._deadlines[0][2].is_waiting:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def length(self, tier: Tier) -> int:
        """Return how many requests of a tier wait."""
        return self._tiers[tier].requests

    def standing(self, tier: Tier) -> tuple[int, int]:
        """Return how many requests and tokens of a tier wait."""
        state = self._tiers[tier]
        return state.requests, state.tokens

    def is_waiting(self, model: str) -> bool:
        """Say whether any request for a model waits."""
        return any((model, tier) in self._waiting_by_model for tier in TIERS)

    def least_tokens(self) -> int:
        """Return a size that no waiting request is below, at most half too low."""
        waiting = self._bits_waiting
        return (waiting & -waiting) >> 1

    def waiting_keys(self) -> Iterable[tuple[str, Tier]]:
        """Return the (model, tier) for which something waits."""
        return self._waiting_by_model.keys()

    def waiting_tokens(self, model: str) -> int:
        """Return the tokens that wait for a model, all tiers."""
        return sum(self._waiting_by_model.get((model, tier), (0, 0))[1] for tier in TIERS)

    def newest_first(self, tier: Tier) -> Iterator[Ticket]:
        """Yield what waits in a tier, what joined last first. Nothing may join or leave meanwhile."""
        by_age = self._tiers[tier].by_age
        while by_age and not by_age[-1].is_waiting:
            by_age.pop()
        return (ticket for ticket in reversed(by_age) if ticket.is_waiting)

    def state(self, tier: Tier, now_s: float) -> TierQueue:
        """Return a tier's length, tokens and oldest wait."""
        state = self._tiers[tier]
        by_age = state.by_age
        while by_age and not by_age[0].is_waiting:
            by_age.popleft()
        oldest_s = 0.0
        for ticket in by_age:
            if ticket.is_waiting:
                oldest_s = max(oldest_s, now_s - ticket.arrived_at_s)
                if not ticket.requeues:  # from here on in order of arrival
                    break
        return TierQueue(state.requests, state.tokens, oldest_s)

    def expected_wait_s(self, ticket: Ticket, tokens_per_s: float, *, is_fifo: bool) -> float:
        """Return how long a request about to join would wait at a drain rate of its model (> 0).

        The smaller of two estimates: all of its tier is served first at the tier's share; or what stands
        before it in its own flow is served at the flow's share. Larger requests of its flow are taken
        to stand behind it (shortest job first), so the estimate is low rather than high.
        """
        model, tier = ticket.request.model, ticket.tier
        by_model, weights = self._waiting_by_model, self._weights
        tier_weight = all_weights = weights[tier]
        for one in TIERS:
            if one is not tier and (model, one) in by_model:
                all_weights += weights[one]
        rate = tokens_per_s * (tier_weight / all_weights)
        _, tier_tokens = by_model.get((model, tier), (0, 0))
        lane = self._tiers[tier].lanes.get(lane_of(ticket))
        flow = lane.flows.get(ticket.account) if lane is not None else None
        if lane is None or flow is None or not flow.requests:
            active = ticket.weight + (lane.active_weight if lane is not None else 0)
            return min(tier_tokens, ticket.tokens * active / ticket.weight) / rate
        bits = ticket.tokens.bit_length()
        before = flow.tokens
        if not is_fifo:
            before = 0
            for size, tokens in flow.tokens_by_bits.items():
                if size <= bits:
                    before += tokens
        return min(tier_tokens, before * lane.active_weight / flow.weight) / rate
