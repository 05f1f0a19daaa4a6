"""What waits, and which of it starts now.

Joins the fair queue with the nodes' room. Tokens are counts, times monotonic seconds. A request that is
next but does not fit is parked: others may pass it, but once as many tokens as it needs itself have
started past it, a node is held free for it. Prevents: a large request starving behind small ones, and
small ones standing behind a large one while there is room for them.
"""

from __future__ import annotations

from collections.abc import Iterator

from fleet.budget import NodeBudget
from fleet.drain import DrainMeter
from fleet.fairqueue import FairQueue, LaneKey, lane_of
from fleet.offers import Ticket
from fleet.outcomes import TIERS, Tier
from fleet.placement import Need, Placement
from fleet.policy import Policy


class Backlog:
    """The queue of one gate and the rules by which it empties."""

    def __init__(self, placement: Placement) -> None:
        self.queue = FairQueue()
        self._placement = placement
        self._class_ratios: dict[str, float] = {}
        self._is_fifo = False
        self._parked: dict[tuple[Tier, LaneKey], Ticket] = {}
        self._holds: dict[str, Ticket] = {}
        self._meters: dict[str, DrainMeter] = {}

    def apply(self, policy: Policy) -> None:
        """Take in weights, order and size classes. What waits keeps its place."""
        self.queue.set_weights({tier: policy.tiers[tier].weight for tier in TIERS})
        self._class_ratios = {one.name: one.kv_share_ratio for one in policy.admission.size_classes}
        self._is_fifo = policy.admission.order == "fifo"

    def need(self, ticket: Ticket) -> Need:
        """Return what a request asks of a node under the policy in force."""
        request = ticket.request
        ratio = self._class_ratios.get(ticket.size_class, 1.0) if ticket.size_class is not None else 1.0
        return Need(
            request.model,
            ticket.tier,
            ticket.tokens,
            ticket.size_class,
            ratio,
            request.prefix_key,
            request.avoid,
        )

    def place(self, ticket: Ticket, now_s: float) -> NodeBudget | None:
        """Return the node a request could start on now; None when none has room."""
        held = self._holds
        if held:
            held = {name: holder for name, holder in held.items() if holder is not ticket}
        return self._placement.choose(self.need(ticket), held, now_s)

    def join(self, ticket: Ticket, now_s: float) -> None:
        """Queue a request."""
        self.queue.push(ticket)
        model = ticket.request.model
        meter = self._meters.get(model)
        if meter is None:
            meter = self._meters[model] = DrainMeter(now_s)
        meter.set_busy(True, now_s)

    def leave(self, ticket: Ticket, now_s: float) -> None:
        """Take a waiting request out without service."""
        self.queue.discard(ticket)
        model = ticket.request.model
        if ticket.is_parked:
            self._parked.pop((ticket.tier, lane_of(ticket)), None)
            self._holds = {name: one for name, one in self._holds.items() if one is not ticket}
        self._meters[model].set_busy(self.queue.is_waiting(model), now_s)

    def start(self, ticket: Ticket, book: NodeBudget, *, in_turn: bool, now_s: float) -> None:
        """Take a waiting request out: it starts on `book`'s node."""
        self.leave(ticket, now_s)
        self._meters[ticket.request.model].add(ticket.tokens)
        self._count_start(ticket, book, in_turn=in_turn, tenant_in_turn=in_turn, now_s=now_s)

    def start_directly(self, ticket: Ticket, book: NodeBudget, now_s: float) -> None:
        """Count a request that starts without having waited."""
        tier_in_turn = self.queue.requests == 0
        tenant_in_turn = self.queue.length(ticket.tier) == 0
        self._count_start(ticket, book, in_turn=tier_in_turn, tenant_in_turn=tenant_in_turn, now_s=now_s)

    def _count_start(
        self, ticket: Ticket, book: NodeBudget, *, in_turn: bool, tenant_in_turn: bool, now_s: float
    ) -> None:
        self.queue.charge_tier(ticket.tier, ticket.tokens, in_turn=in_turn)
        if not ticket.is_parked:
            self.queue.charge_tenant(ticket, in_turn=tenant_in_turn)
        for parked in self._parked.values():
            if self._placement.serves(book, parked.request.model):
                parked.passed_tokens += ticket.tokens
                if parked.passed_tokens >= parked.tokens:
                    self._hold_for(parked, now_s)

    def _hold_for(self, ticket: Ticket, now_s: float) -> None:
        """Keep a node free for a parked request, but never more than half of the nodes."""
        if ticket in self._holds.values():
            return
        if self._holds and 2 * (len(self._holds) + 1) > sum(1 for _ in self._placement):
            return
        book = self._placement.roomiest(self.need(ticket), self._holds, now_s)
        if book is not None:
            self._holds[book.name] = ticket

    def starts(self, now_s: float) -> Iterator[tuple[Ticket, NodeBudget]]:
        """Yield what starts now, one by one, already taken out of the queue.

        The caller books each on its node before asking for the next.
        """
        if self._holds:
            open_names = {book.name for book in self._placement if book.is_open(now_s)}
            self._holds = {name: one for name, one in self._holds.items() if name in open_names}
        blocked: set[tuple[Tier, LaneKey]] = set()
        tried: set[int] = set()
        while self.queue.requests:
            found = self._next_start(blocked, tried, now_s)
            if found is None:
                return
            ticket, book, in_turn = found
            self.start(ticket, book, in_turn=in_turn, now_s=now_s)
            yield ticket, book

    def _next_start(
        self, blocked: set[tuple[Tier, LaneKey]], tried: set[int], now_s: float
    ) -> tuple[Ticket, NodeBudget, bool] | None:
        for tier_place, tier in enumerate(self.queue.tiers_in_turn()):
            parked = self._next_parked(tier, tried, now_s)
            if parked is not None:
                return *parked, tier_place == 0
            found = self._next_head(tier, blocked, tried, now_s)
            if found is not None:
                ticket, book, place = found
                return ticket, book, tier_place == 0 and place == 0
        return None

    def _next_parked(self, tier: Tier, tried: set[int], now_s: float) -> tuple[Ticket, NodeBudget] | None:
        for (parked_tier, _), ticket in self._parked.items():
            if parked_tier is tier and ticket.ticket_id not in tried:
                tried.add(ticket.ticket_id)
                book = self.place(ticket, now_s)
                if book is not None:
                    return ticket, book
        return None

    def _next_head(
        self, tier: Tier, blocked: set[tuple[Tier, LaneKey]], tried: set[int], now_s: float
    ) -> tuple[Ticket, NodeBudget, int] | None:
        has_parked = True
        while has_parked:
            has_parked = False
            for place, ticket in enumerate(self.queue.heads(tier)):
                key = (tier, lane_of(ticket))
                if key in blocked:
                    continue
                book = self.place(ticket, now_s)
                if book is not None:
                    return ticket, book, place
                if key in self._parked:
                    blocked.add(key)
                else:
                    self.queue.park(ticket)
                    self._parked[key] = ticket
                    tried.add(ticket.ticket_id)
                    has_parked = True
        return None

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
