"""Whether the queue takes one more request: its length by tier and in all, and how long it would wait.

Requests and tokens are counts, times monotonic seconds. Prevents: a queue whose memory a burst decides, and
a client kept waiting for an answer that cannot come in time.
"""

from __future__ import annotations

from fleet.backlog import Backlog
from fleet.limiters import Limiter, Limiters, Mode
from fleet.offers import Limit, Refused, Ticket
from fleet.outcomes import TIERS, Outcome, Tier
from fleet.policy import MAX_QUEUED_REQUESTS, Policy
from fleet.refusals import Refusals


class QueueBounds:
    """The bounds of one gate's queue."""

    def __init__(self, backlog: Backlog, refusals: Refusals, max_queued_requests: int | None) -> None:
        """`max_queued_requests`: of all tiers, at this gate, whatever the policy says; None: no more."""
        self._backlog = backlog
        self._refusals = refusals
        self._own_bound = MAX_QUEUED_REQUESTS if max_queued_requests is None else max_queued_requests
        self._requests = self._own_bound
        self._tokens: int | None = None
        self._bounds: dict[Tier, tuple[int, float]] = {}  # of a tier: requests, seconds
        self._limiters = Limiters()

    def apply(self, policy: Policy) -> None:
        """Take in the bounds. What waits beyond a smaller one goes on waiting."""
        admission = policy.admission
        self._requests = min(self._own_bound, admission.max_waiting_requests or self._own_bound)
        self._tokens = admission.max_waiting_tokens
        tiers = {tier: policy.tiers[tier] for tier in TIERS}
        self._bounds = {tier: (one.max_queued_requests, one.queue_timeout_s) for tier, one in tiers.items()}
        self._limiters = policy.limiters

    def refusal(self, ticket: Ticket, now_s: float) -> Refused | None:
        """Return a refusal when its tier's queue is full or too slow for it."""
        bound, timeout_s = self._bounds[ticket.tier]
        queued = ticket.line.state.requests
        if queued >= bound and not self._lets_through(ticket, Limiter.QUEUE_LENGTH):
            return self._is_full(ticket, now_s, f"({ticket.tier})", queued, bound)
        wait_s = ticket.expected_wait_s = self._backlog.expected_wait_s(ticket, now_s)
        if wait_s is None or wait_s <= timeout_s or self._lets_through(ticket, Limiter.EXPECTED_WAIT):
            return None
        reason = f"it would wait about {wait_s:.1f} s; {ticket.tier} requests wait at most {timeout_s:g} s"
        base_s = self.clearing_s(ticket, now_s)
        return self._refusals.refuse(Outcome.REJECTED_TOO_LATE, reason, base_s=base_s)

    def _lets_through(self, ticket: Ticket, limiter: Limiter) -> bool:
        mode = self._limiters.mode(limiter)
        if mode is Mode.SHADOW and limiter not in ticket.would_refuse:
            ticket.would_refuse += (limiter,)
        return mode is not Mode.ENFORCE

    def to_displace(self, ticket: Ticket) -> list[Ticket] | None:
        """Return who must leave for the ticket to fit the whole queue, newest of the lowest tier first.

        Empty: nobody. None: it does not fit. Only an interactive request displaces, and only as many as
        make room for it: where that is not enough nobody leaves.
        """
        queue = self._backlog.queue
        over_requests = queue.requests + 1 - self._requests
        bound = self._tokens
        over_tokens = 0 if bound is None else queue.tokens + ticket.tokens - bound
        if over_requests <= 0 and over_tokens <= 0:
            return []
        is_at_own_bound = queue.requests >= self._own_bound
        if not is_at_own_bound and self._lets_through(ticket, Limiter.QUEUE_LENGTH):
            return []
        if ticket.tier is not Tier.INTERACTIVE:
            return None
        leaving: list[Ticket] = []
        for tier in (Tier.BEST_EFFORT, Tier.BATCH):
            for victim in queue.newest_first(tier):
                leaving.append(victim)
                over_requests -= 1
                over_tokens -= victim.tokens
                if over_requests <= 0 and over_tokens <= 0:
                    return leaving
        return None

    def full(self, ticket: Ticket, now_s: float) -> Refused:
        """Return the refusal of a ticket that the queue as a whole does not take."""
        queue = self._backlog.queue
        if queue.requests >= self._requests or self._tokens is None:
            return self._is_full(ticket, now_s, "(all tiers)", queue.requests, self._requests)
        reason = (
            f"{queue.tokens} tokens wait where at most {self._tokens} may (all tiers); "
            f"this request needs {ticket.tokens}"
        )
        limit = Limit("queued_tokens", self._tokens, queue.tokens, ticket.tokens)
        base_s = self.clearing_s(ticket, now_s)
        return self._refusals.refuse(Outcome.REJECTED_QUEUE_FULL, reason, base_s=base_s, limit=limit)

    def _is_full(self, ticket: Ticket, now_s: float, which: str, queued: int, bound: int) -> Refused:
        reason = f"{queued} requests wait where at most {bound} may {which}"
        limit = Limit("queued_requests", bound, queued, 1)
        base_s = self.clearing_s(ticket, now_s)
        return self._refusals.refuse(Outcome.REJECTED_QUEUE_FULL, reason, base_s=base_s, limit=limit)

    def clearing_s(self, ticket: Ticket, now_s: float) -> float:
        """Return when the queue will have drained; its timeout where the drain rate is not known."""
        clearing_s = self._backlog.clearing_s(ticket, now_s)
        return self._bounds[ticket.tier][1] if clearing_s is None else clearing_s
