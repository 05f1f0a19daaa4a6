"""A tenant's token rate with burst, in exact integers.

Rates are tokens per minute, levels are tokens, times monotonic seconds. Inside, a token is 60e9 units,
so that one nanosecond at one token per minute is one unit and nothing is ever rounded: a million refunds
leave no drift. Prevents: a late refund that mints tokens, a quota of 0 that means "default", and a
request that can never pass because one gateway's part of the burst is smaller than it.
"""

from __future__ import annotations

#: Inside, for exactness: a nanosecond at one token per minute.
UNITS_PER_TOKEN = 60_000_000_000
_NS_PER_S = 1_000_000_000


class RateBucket:
    """A token bucket: at most `burst_tokens` at once, `tokens_per_minute` in the long run.

    In any t seconds at most burst + rate * t tokens are admitted. One exception keeps small parts of a
    quota usable: a request larger than the whole burst passes when the bucket is full and leaves it in
    debt, so the excess is paid before anything else passes. A rate of 0 admits nothing.
    """

    __slots__ = ("_at_ns", "_full", "burst_tokens", "charged_tokens", "level", "tokens_per_minute")

    def __init__(self, tokens_per_minute: int, burst_tokens: int, now_s: float) -> None:
        self.tokens_per_minute = tokens_per_minute
        self.burst_tokens = burst_tokens
        self.charged_tokens = 0  # since it was made, less what was refunded
        self.level = self._full = burst_tokens * UNITS_PER_TOKEN  # in units; below 0: in debt
        self._at_ns = int(now_s * _NS_PER_S)

    def _refill(self, now_s: float) -> None:
        now_ns = int(now_s * _NS_PER_S)
        elapsed_ns = now_ns - self._at_ns
        if elapsed_ns > 0:
            self._at_ns = now_ns
            level, full = self.level, self._full
            if level < full:
                level += elapsed_ns * self.tokens_per_minute
                self.level = level if level < full else full

    def admits(self, tokens: int, now_s: float) -> bool:
        """Say whether `tokens` may be charged now. Changes nothing but the clock."""
        rate = self.tokens_per_minute
        if rate == 0:
            return False
        level, full, now_ns = self.level, self._full, int(now_s * _NS_PER_S)
        elapsed_ns = now_ns - self._at_ns
        if elapsed_ns > 0:  # as `_refill`, which would cost a call for each request
            self._at_ns = now_ns
            if level < full:
                level += elapsed_ns * rate
                self.level = level = level if level < full else full
        return level >= tokens * UNITS_PER_TOKEN or level >= full

    def wait_s(self, tokens: int, now_s: float) -> float | None:
        """Return the seconds until `tokens` are admitted if nothing else is; None: never."""
        if self.tokens_per_minute == 0:
            return None
        self._refill(now_s)
        missing = min(tokens, self.burst_tokens) * UNITS_PER_TOKEN - self.level
        return max(0, missing) / self.tokens_per_minute / _NS_PER_S

    def charge(self, tokens: int) -> None:
        """Take tokens, into debt if need be."""
        self.charged_tokens += tokens
        self.level -= tokens * UNITS_PER_TOKEN

    def refund(self, tokens: int) -> None:
        """Give tokens back; what does not fit under the burst is lost."""
        self.charged_tokens -= tokens
        level = self.level + tokens * UNITS_PER_TOKEN
        self.level = level if level < self._full else self._full

    def left_tokens(self, now_s: float) -> int:
        """Return whole tokens in the bucket, rounded down; negative when in debt."""
        self._refill(now_s)
        return self.level // UNITS_PER_TOKEN

    def is_full(self, now_s: float) -> bool:
        """Say whether the bucket holds its whole burst."""
        self._refill(now_s)
        return self.level >= self._full

    def resume(self, level_tokens: int, elapsed_s: float) -> None:
        """Go on from a level seen `elapsed_s` ago (>= 0) by another process. Only ever lowers the level."""
        refilled = int(elapsed_s * _NS_PER_S) * self.tokens_per_minute
        self.level = min(self.level, level_tokens * UNITS_PER_TOKEN + refilled)

    def change(self, tokens_per_minute: int, burst_tokens: int, now_s: float) -> None:
        """Set new limits. Time up to now counts at the old rate; the level never rises by it."""
        self._refill(now_s)
        self.tokens_per_minute = tokens_per_minute
        self.burst_tokens = burst_tokens
        self._full = burst_tokens * UNITS_PER_TOKEN
        self.level = min(self.level, self._full)
