"""How much of a node is in use when requests are booked by what they hold on average.

Tokens are KV tokens, times monotonic seconds. A request that has reserved prompt and output holds, at a
random moment, its prompt and a part of its output; of n independent ones the sum stays within its mean and
z standard deviations but for a chosen probability. Prevents: nodes half empty because each request reserves
its end all its life, and the opposite: overbooking that goes on while the engine runs out of memory.

What keeps it honest is not the formula but two readings: a KV cache fuller than the guard takes nothing
new, and an engine that preempted is booked in full for a while.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from fleet.offers import Holding, NodeState

#: After a preemption everything reserved is booked for so long.
BACK_OFF_S = 60.0


@dataclass(frozen=True)
class Overbooking:
    """How far the policy lets bookings go beyond the budget."""

    deviations: float  # z: standard deviations kept free
    guard_ratio: float  # of the KV cache in use, above which nothing new starts


def deviations(overflow_probability: float) -> float:
    """Return z with P(normal > z) = `overflow_probability` (0 < p <= 0.5)."""
    return -NormalDist().inv_cdf(overflow_probability)


class Expected:
    """What the requests on one node hold on average, and whether room is measured by it now."""

    __slots__ = ("_back_off_until_s", "_gap", "_preemptions", "_spread", "_variance", "is_used", "left_out")

    def __init__(self) -> None:
        self.left_out = 0  # tokens reserved that are not held on average
        self._variance = 0.0
        self._spread = 0.0  # largest variance of one request so far: that of the next one, at most
        self._gap = 0  # largest part of a reservation left out so far
        self._preemptions: int | None = None
        self._back_off_until_s = float("-inf")
        self.is_used = False

    def count(self, tokens: int, held: Holding) -> None:
        """Count a request in: `tokens` reserved, of which it holds `held` on average. Out: `-tokens`.

        A request that holds on average all that it reserved is not counted.
        """
        if tokens < 0:
            self.left_out += tokens + held.tokens
            self._variance = max(0.0, self._variance - held.variance)
            return
        left_out = tokens - held.tokens
        self.left_out += left_out
        self._variance += held.variance
        if held.variance > self._spread:
            self._spread = held.variance
        if left_out > self._gap:
            self._gap = left_out

    def observe(self, state: NodeState) -> None:
        """Take in a reading: it says whether averages may be trusted."""
        if None not in (state.preemptions, self._preemptions):
            risen = (state.preemptions or 0) > (self._preemptions or 0)
            if risen:
                self._back_off_until_s = state.seen_at_s + BACK_OFF_S
        self._preemptions = state.preemptions
        self.is_used = state.kv_used_ratio is not None and state.seen_at_s >= self._back_off_until_s

    def in_use(self, reserved_tokens: int, rule: Overbooking) -> int:
        """Return the tokens taken, room kept for the deviations of one more request.

        Where averages are not trusted: all that is reserved, and what one more would leave out.
        """
        if not self.is_used:
            return reserved_tokens + self._gap
        held = reserved_tokens - self.left_out
        return math.ceil(held + rule.deviations * math.sqrt(self._variance + self._spread))
