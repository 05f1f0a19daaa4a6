"""What waits, and which of it starts now.

Joins the fair queue with the nodes' room. Tokens are counts, times monotonic seconds. A request that is
next but does not fit is parked: others may pass it, for room that is too small for it would lie idle, but
no more tokens than it needs itself; then the nodes it can use are kept free until it fits. Prevents: a
large request starving behind small ones, and small ones of a low tier taking each gap from a high one.
"""

from __future__ import annotations

from fleet.budget import NodeBudget, Pool
from fleet.fairqueue import FairQueue
from fleet.lines import Line, Lines
from fleet.offers import Ticket
from fleet.outcomes import Tier
from fleet.placement import Placement
from fleet.policy import Policy
from fleet.tierstate import TierState
from fleet.wait_estimate import LASTING_S, Rival, wait_s


class Backlog:
    """The queue of one gate and the rules by which it empties."""

    book: NodeBudget  # where what `next_start` returned last starts

    def __init__(self, placement: Placement, lines: Lines) -> None:
        self.queue = FairQueue(lines.states)
        self._placement = placement
        self._lines = lines
        self._pools: list[Pool] = []
        self._is_fifo = False
        self._parked: list[Ticket] = []  # in the order in which they were set aside
        self._is_in_turn = False  # what was found last was that which was next
        self._look = 0  # number of the present look at all that is next: in each, what fails is tried once

    def apply(self, policy: Policy) -> None:
        """Take in weights, order and nodes. What waits keeps its place in its flow."""
        weights = {name: tenant.weight for name, tenant in policy.tenants.items()}
        self.queue.apply({tier: policy.tiers[tier].weight for tier in self.queue.tiers})
        for tier, state in self.queue.tiers.items():
            state.timeout_s = policy.tiers[tier].queue_timeout_s
            state.apply(weights)
        self._is_fifo = policy.admission.order == "fifo"
        bound = {one.name for one in policy.admission.size_classes if one.pool is not None}
        self._lines.apply(self._placement.pools, bound)
        self._pools = list({id(pool): pool for pool in self._placement.pools.values()}.values())

    def stranded(self) -> list[Ticket]:
        """Return what waits though no listed node takes new requests of its kind, by age.

        A node that is unhealthy or out may come back; one that drains or is not listed was taken away.
        """
        lost = {line for line in self._lines if line.requests and not _is_served(line)}
        tiers = {line.tier for line in lost}
        found = [one for tier in tiers for one in self.queue.newest_first(tier) if one.line in lost]
        return sorted(found, key=_number)

    def place(self, ticket: Ticket, now_s: float) -> NodeBudget | None:
        """Return the node a request could start on now; None when none has room."""
        pool = ticket.line.pool
        if pool is None or ticket.room_tokens > pool.most_room:
            return None
        if not self._parked:
            return self._placement.choose(ticket, (), now_s)
        keep_free: list[Ticket] = []
        for one in self._parked:
            if one is not ticket and not self._may_pass(ticket, one):
                if self._placement.keeps_all(one, ticket):
                    return None
                keep_free.append(one)
        return self._placement.choose(ticket, keep_free, now_s)

    def _may_pass(self, ticket: Ticket, parked: Ticket) -> bool:
        """Say whether `ticket` may start on a node that `parked` could use.

        Between tiers: while its tier is ahead of the parked one's by less than the parked request needs.
        Inside a tier: while less than that has passed. A parked request may pass those parked later.
        """
        if ticket.is_parked and ticket.ticket_id < parked.ticket_id:
            return True
        if ticket.tier is parked.tier:
            return parked.passed_tokens + ticket.tokens <= parked.tokens
        state, other = ticket.line.state, parked.line.state
        return (state.start - other.start) * state.weight <= parked.tokens  # `lead_tokens`, without a call

    def join(self, ticket: Ticket, now_s: float) -> None:
        """Queue a request."""
        self.queue.push(ticket)
        line = ticket.line
        if line.requests == 1:
            line.waits_since_s = now_s
            if not line.model.meter.is_busy:
                line.model.meter.set_busy(True, now_s)

    def kept_from(self, ticket: Ticket) -> list[Ticket]:
        """Return the parked requests that it may not pass."""
        return [one for one in self._parked if not self._may_pass(ticket, one)]

    def leave(self, ticket: Ticket, now_s: float) -> None:
        """Take a waiting request out without service."""
        if ticket.is_parked:
            self._parked.remove(ticket)
        self.queue.discard(ticket)
        model = ticket.line.model
        if not model.requests:
            model.meter.set_busy(False, now_s)

    def start(self, ticket: Ticket, book: NodeBudget, *, in_turn: bool, now_s: float) -> None:
        """Take a waiting request out: it starts on `book`'s node."""
        self.queue.count_served(ticket)
        self.leave(ticket, now_s)
        ticket.line.model.meter.add(ticket.tokens, now_s)
        self._count_start(ticket, book, in_turn=in_turn, tenant_in_turn=in_turn)
        self._note_ahead(ticket, book)

    def _note_ahead(self, ticket: Ticket, book: NodeBudget) -> None:
        """Note how far its tier is ahead now of others that wait for the node, against the bound.

        The bound is its own size and that of the request of the other tier that is next and does not fit.
        """
        state = ticket.line.state
        for other in self.queue.states:
            if other.requests and other is not state:
                lead = state.lead_tokens(other)
                if lead > other.most_ahead_ratio * ticket.tokens:
                    bound = self._ahead_bound(ticket, other, book)
                    if bound:
                        other.most_ahead_ratio = max(other.most_ahead_ratio, lead / bound)

    def _ahead_bound(self, ticket: Ticket, other: TierState, book: NodeBudget) -> int:
        """Return the tokens by which it may be ahead of another tier; 0: nobody there waits for the node.

        Requests that are next later than it was do not count.
        """
        next_here = [
            one.tokens
            for one in self._parked
            if one.tier is other.tier
            and not (ticket.is_parked and ticket.ticket_id < one.ticket_id)
            and self._placement.may_use(one, book)
        ]
        return max(next_here) + ticket.tokens if next_here else 0

    def start_directly(self, ticket: Ticket, book: NodeBudget) -> None:
        """Count a request that starts without having waited, while others wait."""
        is_alone = ticket.line.state.requests == 0
        self._count_start(ticket, book, in_turn=False, tenant_in_turn=is_alone)

    def _count_start(
        self, ticket: Ticket, book: NodeBudget, *, in_turn: bool, tenant_in_turn: bool
    ) -> None:
        state = ticket.line.state
        self.queue.charge_tier(state, ticket.tokens, in_turn)
        if not ticket.is_parked:
            state.charge_tenant(ticket, tenant_in_turn)
        for parked in self._parked:
            if parked.tier is ticket.tier:
                was_before = ticket.is_parked and ticket.ticket_id < parked.ticket_id
                if not was_before and self._placement.may_use(parked, book):
                    parked.passed_tokens += ticket.tokens

    def look(self) -> None:
        """Begin to look at all that is next."""
        self._look += 1

    def next_start(self, now_s: float) -> Ticket | None:
        """Return what starts next on `book`, already taken out of the queue; None: no more, until `look`.

        The caller books each on its node before asking for the next.
        """
        if not self.queue.requests or not self.may_start():
            return None
        ticket = self._next_start(now_s)
        if ticket is None:
            return None
        self.start(ticket, self.book, in_turn=self._is_in_turn, now_s=now_s)
        if ticket.is_parked:
            self._look += 1  # what was kept from its nodes may have them now
        return ticket

    def may_start(self) -> bool:
        """Say whether some node has room for the smallest request that waits. False is sure."""
        least = self.queue.least_tokens
        for pool in self._pools:
            if pool.waiting and pool.most_room >= least and pool.count_most_room() >= least:
                return True
        return False

    def _next_start(self, now_s: float) -> Ticket | None:
        while (state := self.queue.next_tier(self._look)) is not None:
            self._is_in_turn = self.queue.is_in_turn
            if self._parked:
                ticket = self._next_parked(state.tier, now_s)
                if ticket is not None:
                    return ticket
            ticket = self._next_head(state, now_s)
            if ticket is not None:
                return ticket
            state.failed_look = self._look
        return None

    def _next_parked(self, tier: Tier, now_s: float) -> Ticket | None:
        for ticket in self._parked:
            if ticket.tier is tier and ticket.failed_look != self._look:
                pool = ticket.line.pool
                may_fit = pool is not None and ticket.room_tokens <= pool.most_room
                if may_fit and self._finds_room(ticket, now_s):
                    return ticket
                ticket.failed_look = self._look
        return None

    def _finds_room(self, ticket: Ticket, now_s: float) -> bool:
        """Say whether it could start now; `book` is then where."""
        book = self.place(ticket, now_s)
        if book is None:
            return False
        self.book = book
        return True

    def _next_head(self, state: TierState, now_s: float) -> Ticket | None:
        if self._parked and self._holds_all_back(state):
            return None
        is_in_turn = self._is_in_turn
        while True:
            has_parked = False
            self._is_in_turn = is_in_turn
            for ticket in state.heads():
                lane = ticket.line.lanes[ticket.size_class]
                if lane.failed_head_look != self._look:
                    pool = lane.line.pool
                    may_fit = pool is not None and ticket.room_tokens <= pool.most_room
                    if may_fit and self._finds_room(ticket, now_s):
                        return ticket
                    if lane.parked is not None or self._nothing_fits(ticket):
                        lane.failed_head_look = self._look
                    else:
                        self.queue.park(ticket, lane)
                        self._parked.append(ticket)
                        ticket.failed_look = self._look
                        has_parked = True
                self._is_in_turn = False
            if not has_parked:
                return None

    def _holds_all_back(self, state: TierState) -> bool:
        """Say whether in each lane of a tier one is parked that not even the smallest may pass now."""
        least = self.queue.least_tokens
        for lane in state.lanes:
            parked = lane.parked
            if parked is None or parked.tokens - parked.passed_tokens >= least:
                return False
            if not self._placement.keeps_all(parked, parked):
                return False
        return True

    def _nothing_fits(self, ticket: Ticket) -> bool:
        """Say whether nothing that waits would fit on its nodes: then the order stays open."""
        pool, least = ticket.line.pool, self.queue.least_tokens
        return pool is None or pool.most_room < least or pool.count_most_room() < least

    def expected_wait_s(self, ticket: Ticket, now_s: float) -> float | None:
        """Return how long a request about to join would wait; None without enough evidence."""
        line = ticket.line
        model = line.model
        rate = model.meter.tokens_per_s(now_s)
        if rate is None:
            return None
        lasting_weight = 0
        passing: list[Rival] = []
        if line.requests < model.requests:
            for other in model.lines.values():
                if other.requests and other is not line:
                    state = other.state
                    if now_s - other.waits_since_s > LASTING_S:
                        lasting_weight += state.weight
                    else:
                        passing.append((state.weight, other.tokens, state.timeout_s))
        ahead = self.queue.tokens_ahead(ticket, is_fifo=self._is_fifo)
        return wait_s(ahead, line.state.weight, passing, rate, lasting_weight)

    def clearing_s(self, ticket: Ticket, now_s: float) -> float | None:
        """Return how long its model's queue takes to drain at the present rate; None: not known."""
        rate = ticket.line.model.meter.tokens_per_s(now_s)
        if rate is None:
            return None
        return (ticket.line.model.tokens + ticket.tokens) / rate


def _is_served(line: Line) -> bool:
    return any(book.target is not None and not book.target.draining for book in line.pool or ())


def _number(ticket: Ticket) -> int:
    return ticket.ticket_id
