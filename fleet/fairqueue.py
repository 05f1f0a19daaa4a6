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
from collections.abc import Iterator, Mapping
from typing import Final

from fleet.fairflows import LARGEST_DEBT_TOKENS, Lane
from fleet.fairness import jain_index
from fleet.gate_snapshot import TierQueue
from fleet.offers import Ticket
from fleet.outcomes import Tier
from fleet.tierstate import TierState

#: A tenant's share says something after so long a backlog.
_LONG_ENOUGH_S: Final = 5.0


class FairQueue:
    """All that waits at one gate."""

    def __init__(self, tiers: dict[Tier, TierState]) -> None:
        self.tiers = tiers
        self.states = list(self.tiers.values())
        self._virtual = 0.0  # time of the level of tiers
        self._most_owed = LARGEST_DEBT_TOKENS
        self._first: Ticket | None = None  # whose deadline comes first, unless it has left
        self._early: list[tuple[float, int, Ticket]] = []  # deadlines before those of who came before
        self._requests_by_bits = [0] * 64
        self._bits_waiting = 0  # bit b is set while a request whose size has b bits waits
        self.least_tokens = 0  # a size that no waiting request is below, at most half too low
        self.requests = 0
        self.tokens = 0
        self.is_in_turn = False  # the tier found last

    def push(self, ticket: Ticket) -> None:
        """Queue a request."""
        if not self.requests:
            self._catch_up()
        line, state = ticket.line, ticket.line.state
        lane = line.lanes.get(ticket.size_class)
        if lane is None:
            lane = line.lanes[ticket.size_class] = Lane(line, ticket.size_class)
            state.lanes.append(lane)
        lane.push(ticket, state.tags)
        deadline_s = ticket.deadline_s
        if state.add(ticket):
            self._note_early(ticket)
        first = self._first
        if first is None or deadline_s < first.deadline_s:
            self._first = ticket
        tokens = ticket.tokens
        line.count(tokens, 1)
        self.requests += 1
        self.tokens += tokens
        bits = min(ticket.room_tokens.bit_length(), 63)
        self._requests_by_bits[bits] += 1
        self._bits_waiting = waiting = self._bits_waiting | 1 << bits
        self.least_tokens = (waiting & -waiting) >> 1

    def _catch_up(self) -> None:
        """Let no tier start before the virtual time to which those that waited for nobody have moved it."""
        for state in self.states:
            if state.start < self._virtual:
                state.start = self._virtual

    def apply(self, weights: Mapping[Tier, int]) -> None:
        """Take in the weights of tiers. What each owes stays as many tokens: it weighs as it does now."""
        virtual = self._virtual
        for tier, state in self.tiers.items():
            weight = weights[tier]
            if state.start > virtual and weight != state.weight:
                state.start = virtual + (state.start - virtual) * state.weight / weight
            state.weight = weight

    def _note_early(self, ticket: Ticket) -> None:
        early = self._early
        heapq.heappush(early, (ticket.deadline_s, ticket.ticket_id, ticket))
        if len(early) > 2 * self.requests + 64:
            self._early = [entry for entry in early if entry[2].is_waiting]
            heapq.heapify(self._early)

    def discard(self, ticket: Ticket) -> None:
        """Take a waiting request out, wherever it stands."""
        ticket.is_waiting = False
        flow = ticket.flow
        if flow is not None:
            if ticket.is_parked:
                flow.lane.parked = None
            else:
                flow.leave(ticket)
        tokens = ticket.tokens
        ticket.line.state.remove(ticket)
        ticket.line.count(tokens, -1)
        self.requests -= 1
        self.tokens -= tokens
        bits, by_bits = min(ticket.room_tokens.bit_length(), 63), self._requests_by_bits
        by_bits[bits] -= 1
        if not by_bits[bits]:
            self._bits_waiting = waiting = self._bits_waiting & ~(1 << bits)
            self.least_tokens = (waiting & -waiting) >> 1

    def count_served(self, ticket: Ticket) -> None:
        """Count a start for its tenant's share while it is backlogged. Call before it leaves."""
        flow = ticket.flow
        if flow is not None and flow.is_gone:
            flow = flow.lane.flows.get(flow.account)  # a push may have forgotten it, and it have come again
        if flow is not None:
            flow.served_tokens += ticket.tokens

    def jain(self, tier: Tier, now_s: float) -> float | None:
        """Return Jain's index (0..1) of what backlogged tenants of a tier got by weight and second.

        Over those backlogged for `_LONG_ENOUGH_S`, each since it is; None: fewer than two, or none served.
        """
        rates: dict[str, float] = {}
        lanes = self.tiers[tier].lanes
        for lane in lanes:
            for flow in lane.flows.values():
                backlogged_s = now_s - flow.since_s
                if flow.requests and backlogged_s >= _LONG_ENOUGH_S:
                    rate = flow.served_tokens / flow.weight / backlogged_s
                    rates[flow.account] = rates.get(flow.account, 0.0) + rate
        for lane in lanes:
            if lane.parked is not None and now_s - lane.parked.arrived_at_s >= _LONG_ENOUGH_S:
                rates.setdefault(lane.parked.account, 0.0)  # it has got nothing since that one waits
        return jain_index(list(rates.values())) if len(rates) >= 2 else None

    def park(self, ticket: Ticket, lane: Lane) -> None:
        """Set the head of a lane aside, so that the lane's other tenants have their turn.

        It still waits and counts, and its tenant is charged for it now.
        """
        if ticket.flow is not None:
            ticket.flow.leave(ticket)
        ticket.is_parked = True
        lane.parked = ticket
        ticket.line.state.charge_tenant(ticket, in_turn=False)

    def next_tier(self, look: int) -> TierState | None:
        """Return the tier whose turn it is, of those with something waiting that have not failed at `look`.

        `is_in_turn` says whether it would be its turn among those that have failed as well.
        """
        first: TierState | None = None
        found: TierState | None = None
        for state in self.states:
            if state.requests:
                if first is None or state.start < first.start:
                    first = state
                if state.failed_look != look and (found is None or state.start < found.start):
                    found = state
        self.is_in_turn = found is first
        return found

    def charge_tier(self, state: TierState, tokens: int, in_turn: bool) -> None:
        """Count tokens that start against their tier; the same rule as `FairTags.charge`."""
        start, virtual = state.start, self._virtual
        if in_turn and start > virtual:
            self._virtual = virtual = start
            for one in self.states:
                if one.start < virtual:
                    one.start = virtual
        if 4 * tokens > self._most_owed:
            self._most_owed = 4 * tokens
        ends, latest = start + tokens / state.weight, virtual + self._most_owed / state.weight
        state.start = ends if ends < latest else latest

    def charge_alone(self, ticket: Ticket) -> None:
        """Count a start while nothing waits, in tier and tenant: it is everybody's turn."""
        tokens, state, start = ticket.tokens, ticket.line.state, self._virtual
        if state.start > start:
            self._virtual = start = state.start  # the others follow when one of them waits
        if 4 * tokens > self._most_owed:
            self._most_owed = 4 * tokens
        state.start = start + tokens / state.weight  # in turn nobody owes more than one request
        tags, name = state.tags, ticket.holder.name
        tag = tags.by_key.get(name) or tags.find(name)
        start = tag.finish
        if start < tags.virtual:
            start = tags.virtual
        tags.virtual = start
        tag.weight = ticket.weight
        tag.finish = start + tokens / ticket.weight
        if 4 * tokens > tags.most_owed:
            tags.most_owed = 4 * tokens
        for lane in state.lanes:
            lane.next = None

    def expired(self, now_s: float) -> list[Ticket]:
        """Return the requests whose deadline is reached, earliest first. The caller takes them out."""
        first_s = self.next_deadline_s()
        if first_s is None or first_s > now_s:
            return []
        found: dict[int, Ticket] = {}
        for state in self.states:
            found |= {ticket.ticket_id: ticket for ticket in state.expired(now_s)}
        while self._early and self._early[0][0] <= now_s:
            _, number, ticket = heapq.heappop(self._early)
            if ticket.is_waiting:
                found[number] = ticket
        return sorted(found.values(), key=lambda ticket: (ticket.deadline_s, ticket.ticket_id))

    def next_deadline_s(self) -> float | None:
        """Return the earliest deadline of a waiting request; None when nothing waits."""
        first = self._first
        if first is not None and first.is_waiting:
            return first.deadline_s
        self._first = first = self._find_first()
        return None if first is None else first.deadline_s

    def _find_first(self) -> Ticket | None:
        if not self.requests:
            self._early.clear()
            return None
        while self._early and not self._early[0][2].is_waiting:
            heapq.heappop(self._early)
        found = [one for state in self.states if (one := state.first_due()) is not None]
        if self._early:
            found.append(self._early[0][2])
        return min(found, key=lambda ticket: ticket.deadline_s)

    def length(self, tier: Tier) -> int:
        """Return how many requests of a tier wait."""
        return self.tiers[tier].requests

    def newest_first(self, tier: Tier) -> Iterator[Ticket]:
        """Yield what waits in a tier, what joined last first. Nothing may join or leave meanwhile."""
        return self.tiers[tier].newest_first()

    def state(self, tier: Tier, now_s: float) -> TierQueue:
        """Return a tier's length, tokens and oldest wait."""
        state = self.tiers[tier]
        oldest_s = state.oldest_s()
        return TierQueue(state.requests, state.tokens, 0.0 if oldest_s is None else now_s - oldest_s)

    def tokens_ahead(self, ticket: Ticket, *, is_fifo: bool) -> float:
        """Return the tokens of its model and tier that start before a request about to join.

        The smaller of two estimates: all that waits; or what stands before it in its own flow, and as much
        of the others by their weights.
        """
        line = ticket.line
        lane = line.lanes.get(ticket.size_class)
        flow = lane.flows.get(ticket.holder.name) if lane is not None else None
        if lane is None or flow is None or not flow.requests:
            active = ticket.weight + (lane.active_weight if lane is not None else 0)
            return min(line.tokens, ticket.tokens * active / ticket.weight)
        before = flow.tokens if is_fifo else flow.tokens_before(ticket)
        return min(line.tokens, before * lane.active_weight / flow.weight)
