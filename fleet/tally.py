"""Running sums of what the gate holds and has done, by tier.

Tokens are counts, times seconds, ratios tokens to tokens. A tier's sums hang on the lines of its tickets:
a start finds them without asking a dictionary. Prevents: status and metrics walking over every lease.
"""

from __future__ import annotations

from fleet.offers import Lease
from fleet.outcomes import TIERS, Tier


class TierTally:
    """In-flight and dispatched tokens, the longest wait and the most that passed, of one tier."""

    __slots__ = ("dispatched_tokens", "in_flight_tokens", "longest_wait_s", "most_passed_ratio")

    def __init__(self) -> None:
        self.in_flight_tokens = 0
        self.dispatched_tokens = 0
        self.longest_wait_s = 0.0
        self.most_passed_ratio = 0.0

    def open(self, lease: Lease) -> None:
        """Count a lease that was opened."""
        tokens, queued_s = lease.tokens, lease.queued_s
        self.in_flight_tokens += tokens
        self.dispatched_tokens += tokens
        if queued_s > self.longest_wait_s:
            self.longest_wait_s = queued_s
        ticket = lease.ticket
        if ticket.passed_tokens and tokens:  # one that asks for nothing has no ratio
            ratio = ticket.passed_tokens / ticket.tokens
            if ratio > self.most_passed_ratio:
                self.most_passed_ratio = ratio


class Tally:
    """The sums of all tiers."""

    __slots__ = ("tiers",)

    def __init__(self) -> None:
        self.tiers = {tier: TierTally() for tier in TIERS}

    def in_flight_tokens(self) -> dict[Tier, int]:
        """Return the tokens of open leases by tier."""
        return {tier: one.in_flight_tokens for tier, one in self.tiers.items()}

    def dispatched_tokens(self) -> dict[Tier, int]:
        """Return the tokens of all leases so far, as they were opened."""
        return {tier: one.dispatched_tokens for tier, one in self.tiers.items()}

    def longest_wait_s(self) -> dict[Tier, float]:
        """Return the longest wait of any request that started."""
        return {tier: one.longest_wait_s for tier, one in self.tiers.items()}

    def most_passed_ratio(self) -> dict[Tier, float]:
        """Return what most passed a parked request that started, to its own size."""
        return {tier: one.most_passed_ratio for tier, one in self.tiers.items()}
