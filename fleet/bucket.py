"""A tenant's token rate with burst, in exact integers.

Rates are tokens per minute, levels are tokens, times monotonic seconds. Inside, a token is 60e9 units,
so that one nanosecond at one token per minute is one unit and nothing is ever rounded: a million refunds
leave no drift. Prevents: a late refund that mints tokens, a quota of 0 that means "default", and a
request that can never pass because one gateway's part of the burst is smaller than it.
"""

from __future__ import annotations

from typing import Final

#: Inside, for exactness: a nanosecond at one token per minute.
_UNITS_PER_TOKEN: Final = 60_000_000_000
_NS_PER_S: Final = 1_000_000_000
#: Units per token, and more than floats can be wrong by.
_SURELY_ENOUGH: Final = 60_000_001_000.0


class RateBucket:
    """A token bucket: at most `burst_tokens` at once, `tokens_per_minute` in the long run.

    In any t seconds at most burst + rate * t tokens are admitted. One exception keeps small parts of a
    quota usable: a request larger than the whole burst passes when the bucket is full and leaves it in
    debt, so the excess is paid before anything else passes. A rate of 0 admits nothing.
    """

    __slots__ = ("_at_ns", "_units", "burst_tokens", "charged_tokens", "level_tokens", "tokens_per_minute")

    def __init__(self, tokens_per_minute: int, burst_tokens: int, now_s: float) -> None:
        self.tokens_per_minute = tokens_per_minute
        self.burst_tokens = burst_tokens
        self.charged_tokens = 0  # since it was made, less what was refunded
        self.level_tokens = burst_tokens  # whole ones; below 0: in debt
        self._units = 0  # of the next token; apart, so that neither number outgrows a machine word
        self._at_ns = int(now_s * _NS_PER_S)

    def _refill(self, now_s: float) -> None:
        now_ns = int(now_s * _NS_PER_S)
        elapsed_ns = now_ns - self._at_ns
        if elapsed_ns > 0:
            self._at_ns = now_ns
            if self.level_tokens < self.burst_tokens:
                self._add_units(elapsed_ns * self.tokens_per_minute)

    def _add_units(self, units: int) -> None:
        """Let units (>= 0) flow in; what does not fit under the burst is lost."""
        units += self._units
        whole = units // _UNITS_PER_TOKEN
        self.level_tokens += whole
        self._units = units - whole * _UNITS_PER_TOKEN
        if self.level_tokens >= self.burst_tokens:
            self.level_tokens = self.burst_tokens
            self._units = 0

    def admits(self, tokens: int, now_s: float) -> bool:
        """Say whether `tokens` may be charged now. Changes nothing but the clock."""
        rate = self.tokens_per_minute
        if rate == 0:
            return False
        now_ns = int(now_s * _NS_PER_S)
        elapsed_ns = now_ns - self._at_ns
        if elapsed_ns > 0:  # as `_refill`, which would cost a call for each request
            self._at_ns = now_ns
            missing = self.burst_tokens - self.level_tokens
            if missing > 0:
                # Most are full again: told without the product, which may outgrow a machine word.
                if float(elapsed_ns) * rate > (missing + 1.0) * _SURELY_ENOUGH:
                    self.level_tokens = self.burst_tokens
                    self._units = 0
                else:
                    self._add_units(elapsed_ns * rate)
        return self.level_tokens >= tokens or self.level_tokens >= self.burst_tokens

    def wait_s(self, tokens: int, now_s: float) -> float | None:
        """Return the seconds until `tokens` are admitted if nothing else is; None: never."""
        if self.tokens_per_minute == 0:
            return None
        self._refill(now_s)
        missing = (min(tokens, self.burst_tokens) - self.level_tokens) * _UNITS_PER_TOKEN - self._units
        return max(0, missing) / self.tokens_per_minute / _NS_PER_S

    def charge(self, tokens: int) -> None:
        """Take tokens, into debt if need be."""
        self.charged_tokens += tokens
        self.level_tokens -= tokens

    def refund(self, tokens: int) -> None:
        """Give tokens back; what does not fit under the burst is lost."""
        self.charged_tokens -= tokens
        level_tokens = self.level_tokens + tokens
        if level_tokens >= self.burst_tokens:
            level_tokens = self.burst_tokens
            self._units = 0
        self.level_tokens = level_tokens

    def left_tokens(self, now_s: float) -> int:
        """Return whole tokens in the bucket, rounded down; negative when in debt."""
        self._refill(now_s)
        return self.level_tokens

    def is_full(self, now_s: float) -> bool:
        """Say whether the bucket holds its whole burst."""
        self._refill(now_s)
        return self.level_tokens >= self.burst_tokens

    def resume(self, level_tokens: int, elapsed_s: float) -> None:
        """Go on from a level seen `elapsed_s` ago (>= 0) by another process. Only ever lowers the level."""
        refilled = int(elapsed_s * _NS_PER_S) * self.tokens_per_minute
        whole = refilled // _UNITS_PER_TOKEN
        resumed = level_tokens + whole, refilled - whole * _UNITS_PER_TOKEN
        self.level_tokens, self._units = min((self.level_tokens, self._units), resumed)

    def change(self, tokens_per_minute: int, burst_tokens: int, now_s: float) -> None:
        """Set new limits. Time up to now counts at the old rate; the level never rises by it."""
        self._refill(now_s)
        self.tokens_per_minute = tokens_per_minute
        self.burst_tokens = burst_tokens
        if self.level_tokens >= burst_tokens:
            self.level_tokens = burst_tokens
            self._units = 0
