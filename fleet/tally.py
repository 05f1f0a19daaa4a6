"""Running sums of what the gate holds and has done, by tier.

Tokens are counts, times seconds, ratios tokens to tokens. Prevents: status and metrics walking over every
lease.
"""

from __future__ import annotations

from fleet.offers import Lease
from fleet.outcomes import TIERS


class Tally:
    """In-flight and dispatched tokens and the longest wait, by tier."""

    __slots__ = ("dispatched_tokens", "in_flight_tokens", "longest_wait_s", "most_passed_ratio")

    def __init__(self) -> None:
        self.in_flight_tokens = dict.fromkeys(TIERS, 0)
        self.dispatched_tokens = dict.fromkeys(TIERS, 0)
        self.longest_wait_s = dict.fromkeys(TIERS, 0.0)
        self.most_passed_ratio = dict.fromkeys(TIERS, 0.0)

    def open(self, lease: Lease) -> None:
        """Count a lease that was opened."""
        ticket, tokens = lease.ticket, lease.tokens
        tier = ticket.tier
        self.in_flight_tokens[tier] += tokens
        self.dispatched_tokens[tier] += tokens
        if lease.queued_s > self.longest_wait_s[tier]:
            self.longest_wait_s[tier] = lease.queued_s
        if ticket.passed_tokens and ticket.tokens:  # one that asks for nothing has no ratio
            ratio = ticket.passed_tokens / ticket.tokens
            if ratio > self.most_passed_ratio[tier]:
                self.most_passed_ratio[tier] = ratio

    def grow(self, lease: Lease, more_tokens: int) -> None:
        """Count tokens by which an open lease was extended."""
        self.in_flight_tokens[lease.tier] += more_tokens

    def close(self, lease: Lease) -> None:
        """Count a lease that was closed."""
        self.in_flight_tokens[lease.ticket.tier] -= lease.tokens
