"""What waits, and which of it starts now.

Joins the fair queue with the nodes' room. Tokens are counts, times monotonic seconds. A request that is
next but does not fit is parked: others may pass it, for room that is too small for it would lie idle, but
no more tokens than it needs itself; then the nodes it can use are kept free until it fits. Prevents: a
large request starving behind small ones, and small ones of a low tier taking each gap from a high one.
"""

from __future__ import annotations

from collections.abc import Iterator

from fleet.budget import NodeBudget
from fleet.drain import DrainMeter
from fleet.fairqueue import FairQueue, LaneKey, lane_of
from fleet.offers import Ticket
from fleet.outcomes import TIERS, Tier
from fleet.placement import Placement
from fleet.policy import Policy


class _Blocked:
    """What was found not to fit while starting what does."""

    __slots__ = ("lanes", "parked", "tiers")

    def __init__(self) -> None:
        self.tiers: set[Tier] = set()
        self.lanes: set[tuple[Tier, LaneKey]] = set()
        self.parked: set[int] = set()


class Backlog:
    """The queue of one gate and the rules by which it empties."""

    def __init__(self, placement: Placement) -> None:
        self.queue = FairQueue()
        self._placement = placement
        self._is_fifo = False
        self._parked: dict[tuple[Tier, LaneKey], Ticket] = {}
        self._meters: dict[str, DrainMeter] = {}

    def apply(self, policy: Policy) -> None:
        """Take in weights and order. What waits keeps its place."""
        self.queue.set_weights({tier: policy.tiers[tier].weight for tier in TIERS})
        self._is_fifo = policy.admission.order == "fifo"

    def place(self, ticket: Ticket, now_s: float) -> NodeBudget | None:
        """Return the node a request could start on now; None when none has room."""
        if not self._placement.may_have_room(ticket):
            return None
        keep_free: list[Ticket] = []
        for one in self._parked.values():
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
        return self.queue.lead_tokens(ticket.tier, parked.tier) <= parked.tokens

    def is_contended(self, ticket: Ticket) -> bool:
        """Say whether something waits for a node that it could start on."""
        queue = self.queue
        return queue.requests > 0 and self._placement.shares_nodes(ticket, queue.waiting_keys())

    def join(self, ticket: Ticket, now_s: float) -> None:
        """Queue a request."""
        self.queue.push(ticket)
        model = ticket.request.model
        meter = self._meters.get(model)
        if meter is None:
            meter = self._meters[model] = DrainMeter(now_s)
        meter.set_busy(True, now_s)

    def rejoin(self, ticket: Ticket, now_s: float) -> None:
        """Queue a request again that was started, the last to be displaced."""
        self.join(ticket, now_s)
        self.queue.count_as_oldest(ticket)

    def kept_from(self, ticket: Ticket) -> list[Ticket]:
        """Return the parked requests that it may not pass."""
        return [one for one in self._parked.values() if not self._may_pass(ticket, one)]

    def leave(self, ticket: Ticket, now_s: float) -> None:
        """Take a waiting request out without service."""
        self.queue.discard(ticket)
        model = ticket.request.model
        if ticket.is_parked:
            del self._parked[ticket.tier, lane_of(ticket)]
        self._meters[model].set_busy(self.queue.is_waiting(model), now_s)

    def start(self, ticket: Ticket, book: NodeBudget, *, in_turn: bool, now_s: float) -> None:
        """Take a waiting request out: it starts on `book`'s node."""
        self.queue.count_served(ticket)
        self.leave(ticket, now_s)
        self._meters[ticket.request.model].add(ticket.tokens)
        self._count_start(ticket, book, in_turn=in_turn, tenant_in_turn=in_turn)

    def start_directly(self, ticket: Ticket, book: NodeBudget) -> None:
        """Count a request that starts without having waited."""
        tier_in_turn = self.queue.requests == 0
        tenant_in_turn = self.queue.length(ticket.tier) == 0
        self._count_start(ticket, book, in_turn=tier_in_turn, tenant_in_turn=tenant_in_turn)

    def _count_start(
        self, ticket: Ticket, book: NodeBudget, *, in_turn: bool, tenant_in_turn: bool
    ) -> None:
        self.queue.charge_tier(ticket.tier, ticket.tokens, in_turn=in_turn)
        if not ticket.is_parked:
            self.queue.charge_tenant(ticket, in_turn=tenant_in_turn)
        for parked in self._parked.values():
            was_before = ticket.is_parked and ticket.ticket_id < parked.ticket_id
            if parked.tier is ticket.tier and not was_before and self._placement.may_use(parked, book):
                parked.passed_tokens += ticket.tokens

    def starts(self, now_s: float) -> Iterator[tuple[Ticket, NodeBudget]]:
        """Yield what starts now, one by one, already taken out of the queue.

        The caller books each on its node before asking for the next.
        """
        blocked = _Blocked()
        while self.queue.requests:
            found = self._next_start(blocked, now_s)
            if found is None:
                return
            ticket, book, in_turn = found
            self.start(ticket, book, in_turn=in_turn, now_s=now_s)
            if ticket.is_parked:
                blocked = _Blocked()  # what was kept from its nodes may have them now
            yield ticket, book

    def _next_start(self, blocked: _Blocked, now_s: float) -> tuple[Ticket, NodeBudget, bool] | None:
        for place, tier in enumerate(self.queue.tiers_in_turn()):
            if tier in blocked.tiers:
                continue
            parked = self._next_parked(tier, blocked, now_s)
            if parked is not None:
                return *parked, place == 0
            head = self._next_head(tier, blocked, now_s)
            if head is not None:
                ticket, book, is_first = head
                return ticket, book, place == 0 and is_first
            blocked.tiers.add(tier)
        return None

    def _next_parked(self, tier: Tier, blocked: _Blocked, now_s: float) -> tuple[Ticket, NodeBudget] | None:
        if not self._parked:
            return None
        for (parked_tier, _), ticket in self._parked.items():
            if parked_tier is tier and ticket.ticket_id not in blocked.parked:
                book = self.place(ticket, now_s)
                if book is not None:
                    return ticket, book
                blocked.parked.add(ticket.ticket_id)
        return None

    def _next_head(
        self, tier: Tier, blocked: _Blocked, now_s: float
    ) -> tuple[Ticket, NodeBudget, bool] | None:
        while True:
            has_parked = False
            for place, ticket in enumerate(self.queue.heads(tier)):
                key = (tier, lane_of(ticket))
                if key in blocked.lanes:
                    continue
                book = self.place(ticket, now_s)
                if book is not None:
                    return ticket, book, place == 0
                if key in self._parked or self._nothing_fits(ticket):
                    blocked.lanes.add(key)
                else:
                    self.queue.park(ticket)
                    self._parked[key] = ticket
                    blocked.parked.add(ticket.ticket_id)
                    has_parked = True
            if not has_parked:
                return None

    def _nothing_fits(self, ticket: Ticket) -> bool:
        """Say whether nothing that waits would fit on its nodes: then the order stays open."""
        least = self.queue.least_tokens()
        placement = self._placement
        return placement.most_room(ticket) < least or placement.count_most_room(ticket) < least

    def expected_wait_s(self, ticket: Ticket, now_s: float) -> float | None:
        """Return how long a request about to join would wait; None without enough evidence."""
        meter = self._meters.get(ticket.request.model)
        rate = meter.tokens_per_s(now_s) if meter is not None else None
        if rate is None:
            return None
        return self.queue.expected_wait_s(ticket, rate, is_fifo=self._is_fifo)

    def clearing_s(self, ticket: Ticket, now_s: float) -> float | None:
        """Return how long its model's queue takes to drain at the present rate; None: not known."""
        meter = self._meters.get(ticket.request.model)
        rate = meter.tokens_per_s(now_s) if meter is not None else None
        if rate is None:
            return None
        return (self.queue.waiting_tokens(ticket.request.model) + ticket.tokens) / rate
