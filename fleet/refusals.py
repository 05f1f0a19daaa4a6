"""Refusals and evictions in words and numbers.

Times are seconds or milliseconds as named. Prevents: a refusal that does not say which limit it met, or
that sends every client back at the same moment.
"""

from __future__ import annotations

import random

from fleet.offers import Evicted, Limit, Refused, Ticket
from fleet.outcomes import Outcome
from fleet.placement import Outlook
from fleet.policy import RetryAfter
from fleet.retry_after import retry_after

#: Refusals that the same request would meet again however long it waited.
FINAL = frozenset({Outcome.REJECTED_TOO_LARGE, Outcome.REJECTED_TIER})

_LIMIT_WORDS = {
    "tokens_per_minute": "tokens per minute",
    "in_flight_tokens": "tokens in flight",
    "concurrent_requests": "concurrent requests",
}


def _rate_reason(tenant: str, limit: Limit, left: int, where: str) -> str:
    """A rate refuses by what its bucket holds, which is not the minute's quota less what was used."""
    burst = left + limit.used
    reason = (
        f"tenant {tenant} may use {max(left, 0)} tokens now {where}: {limit.quota} a minute flow back, "
        f"up to {burst} at once; this request needs {limit.needed}"
    )
    return reason + (f" and so passes when {burst} are there" if limit.needed > burst else "")


def _zero_reason(tenant: str, limit: Limit, words: str) -> str:
    if limit.whole:
        return (
            f"tenant {tenant} has a quota of {limit.whole} {words}, of which this gateway's part is 0 now: "
            "another gateway may take it"
        )
    return f"tenant {tenant} has a quota of 0 {words}: every request is refused until it is raised"


class Refusals:
    """Makes refusals under the policy's Retry-After bounds."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.bounds = RetryAfter()
        self.about: Ticket | None = None  # the request being decided on

    def _spread(self, outcome: Outcome, base_s: float | None) -> tuple[int | None, int | None]:
        if outcome in FINAL:
            return None, None
        base_s = self.bounds.floor_s if base_s is None else base_s
        return retry_after(base_s, self.bounds, self._rng)

    def refuse(
        self, outcome: Outcome, reason: str, *, base_s: float | None = None, limit: Limit | None = None
    ) -> Refused:
        """Return a refusal. `base_s`: when a retry may succeed; None: not known, soon."""
        whole_s, milliseconds = self._spread(outcome, base_s)
        return Refused(outcome, reason, whole_s, milliseconds, limit, self.about)

    def refuse_quota(
        self, tenant: str, outcome: Outcome, limit: Limit, *, where: str = "at this gateway"
    ) -> Refused:
        """Return a refusal by a tenant's quota. The rate's wait is never cut short by the jitter.

        No time helps against a quota of 0: its clients are told so, and to stay away for the longest time.
        """
        words = _LIMIT_WORDS[limit.name]
        if limit.quota == 0:
            reason = _zero_reason(tenant, limit, words)
        elif limit.left is not None:
            reason = _rate_reason(tenant, limit, limit.left, where)
        else:
            reason = (
                f"tenant {tenant} uses {limit.used} of {limit.quota} {words} {where}; "
                f"this request needs {limit.needed}"
            )
        base_s = limit.reset_s
        if base_s is None and limit.quota == 0 and not limit.whole:
            base_s = float(self.bounds.cap_s)
        elif base_s is not None:
            base_s /= max(0.5, 1 - self.bounds.jitter_ratio)
        return self.refuse(outcome, reason, base_s=base_s, limit=limit)

    def hopeless(self, ticket: Ticket, outlook: Outlook, largest_tokens: int) -> Refused:
        """Return the refusal of a request that no node can serve, however long it waits."""
        model = ticket.request.model
        if outlook is Outlook.NO_NODES:
            return self.refuse(Outcome.NO_NODES, f"no node takes {ticket.tier} requests for {model} now")
        reason = (
            f"the request needs {ticket.tokens} tokens ({ticket.prompt_tokens} prompt, "
            f"{ticket.output_tokens} output); the largest node budget for {model} is {largest_tokens}"
        )
        limit = Limit("node_tokens", largest_tokens, 0, ticket.tokens)
        return self.refuse(Outcome.REJECTED_TOO_LARGE, reason, limit=limit)

    def evict(self, ticket: Ticket, outcome: Outcome, reason: str, base_s: float | None) -> Evicted:
        """Return an eviction."""
        whole_s, milliseconds = self._spread(outcome, base_s)
        return Evicted(ticket, outcome, reason, whole_s, milliseconds)
