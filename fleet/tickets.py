"""What a request is taken to need, and where it stands in its flow.

Tokens are counts, times monotonic seconds. Output is booked at a quantile of what its endpoint produced so
far, for each answer asked for, never above the client's own bound. Prevents: reserving `max_tokens`, or
all there is when the client did not say, for an answer that is usually short.
"""

from __future__ import annotations

import math
from dataclasses import replace

from fleet.accounts import Account
from fleet.lengths import OutputLengths
from fleet.limiters import Limiter
from fleet.offers import Holding, Lease, Request, Ticket
from fleet.outcomes import TIERS, Tier
from fleet.placement import Placement, size_class_of
from fleet.policy import Admission, Policy, TierPolicy

#: What booked output comes from, in words.
HISTORY = "the endpoint's history"
PRIOR = "the default until there is history"
CLIENT = "the client's max_tokens"
HALF_NODE = "half of the largest node's budget"
#: Tokens per second; pure shortest-job-first still breaks ties by arrival.
_SLOWEST_AGING = 1e-3


class Tickets:
    """Makes tickets under the policy in force."""

    def __init__(self, placement: Placement, prior_output_tokens: int) -> None:
        """`prior_output_tokens` is booked for an answer until its endpoint has 200 completions."""
        self._placement = placement
        self.lengths = OutputLengths()
        self._prior_tokens = prior_output_tokens
        self._admission = Admission()
        self.tiers: dict[Tier, TierPolicy] = {}
        self._next_id = 0

    def apply(self, policy: Policy) -> None:
        """Take in sizes, order and timeouts. Tickets already made keep theirs."""
        self._admission = policy.admission
        self.tiers = {tier: policy.tiers[tier] for tier in TIERS}

    def output(self, request: Request, tier: Tier) -> tuple[int, str]:
        """Return the output to book and why. Without `max_tokens` at most half of the largest budget."""
        quantile = self._admission.output_reservation_quantile
        basis = HISTORY
        expected = self.lengths.quantile(request.model, request.endpoint, quantile)
        if expected is None:
            expected, basis = self._prior_tokens, PRIOR
        expected *= request.choices
        bound = request.max_tokens
        if bound is not None:
            return (expected, basis) if expected < bound else (bound, CLIENT)
        bound = self._placement.largest_budget(request.model, tier) // 2 or expected
        return (expected, basis) if expected <= bound else (bound, HALF_NODE)

    def learn(self, request: Request, output_tokens: int) -> None:
        """Take in what a completed request produced, all its answers together."""
        self.lengths.add(request.model, request.endpoint, output_tokens // max(request.choices, 1))

    def make(
        self,
        request: Request,
        account: Account,
        tier: Tier,
        now_s: float,
        would_refuse: tuple[Limiter, ...] = (),
    ) -> Ticket:
        """Return a ticket for a request that came now."""
        admission = self._admission
        output_tokens, basis = self.output(request, tier)
        tokens = request.prompt_tokens + output_tokens
        size_class = size_class_of(tokens, admission.size_classes) if admission.size_classes else None
        key = now_s  # "as if it had come later by the time that aging takes to make up for its size"
        if admission.order == "sjf_aging":
            key += tokens / max(admission.aging_rate, _SLOWEST_AGING)
        self._next_id += 1
        ticket = Ticket(
            self._next_id,
            request,
            account.name,
            account.policy.weight,
            tier,
            None if size_class is None else size_class.name,
            request.prompt_tokens,
            output_tokens,
            tokens,
            now_s,
            now_s + self.tiers[tier].queue_timeout_s,
            key,
        )
        ticket.output_basis = basis
        ticket.room_tokens = tokens
        if admission.reservation == "overbook":
            self._overbook(ticket)
        if would_refuse:
            ticket.would_refuse = would_refuse
        return ticket

    def again(self, lease: Lease, now_s: float) -> Ticket:
        """Return the ticket of a started request that waits again."""
        if lease.ticket is None:
            raise ValueError("a lease without its ticket cannot be queued again")
        self._next_id += 1
        return place_again(lease.ticket, self._next_id, now_s)

    def _overbook(self, ticket: Ticket) -> None:
        """Set what the ticket holds on average; nothing changes while its endpoint has no history.

        An answer that may be at most m tokens long varies by at most m^2 / 4.
        """
        request = ticket.request
        residency = self.lengths.residency(request.model, request.endpoint)
        if residency is None:
            return
        mean, variance = residency
        most = ticket.output_tokens
        held = ticket.prompt_tokens + min(most, math.ceil(mean * request.choices))
        ticket.held = Holding(held, min(variance * request.choices, most * most / 4))
        ticket.room_tokens = held


def lease_of(ticket: Ticket, node: str, now_s: float) -> Lease:
    """Return the lease of a request that starts on `node` now."""
    lease = Lease(
        ticket.ticket_id,
        ticket.request,
        ticket.account,
        ticket.tier,
        node,
        ticket.size_class,
        ticket.prompt_tokens,
        ticket.output_tokens,
        ticket.tokens,
        now_s - ticket.arrived_at_s,
        now_s,
    )
    lease.ticket = ticket
    lease.held = ticket.held
    if ticket.would_refuse:
        lease.would_refuse = ticket.would_refuse
    if ticket.is_ghost or not ticket.is_charged:
        lease.is_ghost = ticket.is_ghost
        lease.is_charged = ticket.is_charged
    return lease


def place_again(ticket: Ticket, ticket_id: int, now_s: float) -> Ticket:
    """Return the ticket of a request that waits again from now on, at its old place in its flow."""
    return replace(
        ticket,
        ticket_id=ticket_id,
        arrived_at_s=now_s,
        deadline_s=now_s + (ticket.deadline_s - ticket.arrived_at_s),
        is_waiting=True,
        is_parked=False,
        passed_tokens=0,
        requeues=ticket.requeues + 1,
    )
