"""What a request is taken to need, and where it stands in its flow.

Tokens are counts, times monotonic seconds. Output is booked at a quantile of what its endpoint produced so
far, for each answer asked for, never above the client's own bound. Prevents: reserving `max_tokens`, or
all there is when the client did not say, for an answer that is usually short.
"""

from __future__ import annotations

import math
from typing import Final

from fleet.accounts import Account
from fleet.lengths import ENOUGH, REFRESH_EVERY, LengthSketch
from fleet.lines import Line, Lines
from fleet.offers import Holding, Lease, Request, Ticket
from fleet.outcomes import TIERS, Tier
from fleet.placement import size_class_of
from fleet.policy import Admission, Policy
from fleet.pool_names import class_of

#: What booked output comes from, in words.
HISTORY: Final = "the endpoint's history"
PRIOR: Final = "the default until there is history"
CLIENT: Final = "the client's max_tokens"
HALF_NODE: Final = "half of the largest node's budget"
#: Tokens per second; pure shortest-job-first still breaks ties by arrival.
_SLOWEST_AGING = 1e-3


class Tickets:
    """Makes tickets under the policy in force."""

    def __init__(self, lines: Lines, prior_output_tokens: int) -> None:
        """`prior_output_tokens` is booked for an answer until its endpoint has 200 completions."""
        self._lines = lines
        self._prior_tokens = prior_output_tokens
        self.timeouts_s: dict[Tier, float] = {}
        self._next_id = 0
        self._take(Admission())

    def apply(self, policy: Policy) -> None:
        """Take in sizes, order and timeouts. Tickets already made keep theirs."""
        self.timeouts_s = {tier: policy.tiers[tier].queue_timeout_s for tier in TIERS}
        self._take(policy.admission)

    def _take(self, admission: Admission) -> None:
        """Keep at hand what each request asks for."""
        self._quantile = admission.output_reservation_quantile
        self._classes = admission.size_classes
        self._is_overbooking = admission.reservation == "overbook"
        # "as if it had come later by the time that aging takes to make up for its size"
        is_aging = admission.order == "sjf_aging"
        self._tokens_per_s = max(admission.aging_rate, _SLOWEST_AGING) if is_aging else math.inf

    def output(self, request: Request, tier: Tier) -> int:
        """Return the output that would be booked for a request in a tier."""
        return self._output(request, self._lines.find(request.model, tier))[0]

    def _output(self, request: Request, line: Line) -> tuple[int, str]:
        """Return the output to book and why. Without `max_tokens` at most half of the largest budget."""
        sketch = line.model.lengths.get(request.endpoint)
        expected = None
        if sketch is not None:
            quantile = self._quantile
            expected = sketch.answers.get(quantile) or sketch.quantile(quantile)
        basis = HISTORY
        if expected is None:
            expected, basis = self._prior_tokens, PRIOR
        expected *= request.choices
        bound = request.max_tokens
        if bound is not None:
            return (expected, basis) if expected < bound else (bound, CLIENT)
        pool = line.pool
        bound = (pool.budgets()[1] // 2 if pool is not None else 0) or expected
        return (expected, basis) if expected <= bound else (bound, HALF_NODE)

    def learn(self, ticket: Ticket, output_tokens: int) -> None:
        """Take in what a completed request produced, all its answers together."""
        request, lengths = ticket.request, ticket.line.model.lengths
        sketch = lengths.get(request.endpoint)
        if sketch is None:
            sketch = lengths[request.endpoint] = LengthSketch()
        fresh = sketch.fresh  # as `LengthSketch.add`, which would cost a call for each request
        fresh.append(output_tokens if request.choices <= 1 else output_tokens // request.choices)
        if len(fresh) >= REFRESH_EVERY or sketch.seen < ENOUGH:
            sketch.take_in()

    def make(self, request: Request, account: Account, tier: Tier, now_s: float) -> Ticket:
        """Return a ticket for a request that came now."""
        model = self._lines.models.get(request.model)
        line = self._lines.find(request.model, tier) if model is None else model.lines[tier]
        output_tokens, basis = self._output(request, line)
        prompt_tokens = request.prompt_tokens
        tokens = prompt_tokens + output_tokens
        size_class = size_class_of(tokens, self._classes) if self._classes else None
        if size_class is not None and size_class.pool is not None:
            line = self._lines.find(class_of(request.model, size_class.name), tier)
        self._next_id += 1
        ticket = Ticket(
            self._next_id,
            request,
            account,
            line,
            line.tier,
            None if size_class is None else size_class.name,
            account.weight,
            prompt_tokens,
            output_tokens,
            tokens,
            basis,
            now_s,
            now_s + line.state.timeout_s,
            now_s + tokens / self._tokens_per_s,
        )
        if self._is_overbooking:
            self._overbook(ticket)
        return ticket

    def move(self, ticket: Ticket) -> None:
        """Let a ticket that does not wait stand where it would stand today."""
        ticket.line = self._lines.now(ticket.line)

    def again(self, lease: Lease, now_s: float) -> Ticket:
        """Return the ticket of a started request that waits again, at its old place in its flow."""
        self._next_id += 1
        return lease.ticket.again(self._next_id, now_s)

    def _overbook(self, ticket: Ticket) -> None:
        """Set what the ticket holds on average; nothing changes while its endpoint has no history.

        An answer that may be at most m tokens long varies by at most m^2 / 4.
        """
        request = ticket.request
        sketch = ticket.line.model.lengths.get(request.endpoint)
        residency = None if sketch is None else sketch.residency()
        if residency is None:
            return
        mean, variance = residency
        most = ticket.output_tokens
        held = ticket.prompt_tokens + min(most, math.ceil(mean * request.choices))
        ticket.held = Holding(held, min(variance * request.choices, most * most / 4))
        ticket.room_tokens = held
