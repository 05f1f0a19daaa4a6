"""How fast a queue drains, learned only while there is one.

Tokens per second of queued time. A rate measured while nothing waits is the arrival rate, not the
capacity; reading it as capacity would refuse the first burst after a quiet night. Prevents exactly that.
"""

from __future__ import annotations

import math
from typing import Final

_HORIZON_S: Final = 10.0
_FORGET_AFTER_S: Final = 60.0
_ENOUGH_STARTS: Final = 10.0
_ENOUGH_BUSY_S: Final = 1.0


class DrainMeter:
    """Tokens started per second of backlog, over about the last 10 s of backlog."""

    __slots__ = ("_at_s", "_busy_s", "_starts", "_tokens", "is_busy")

    def __init__(self) -> None:
        self._at_s = -math.inf
        self.is_busy = False  # something waits
        self._busy_s = 0.0
        self._tokens = 0.0
        self._starts = 0.0

    def set_busy(self, is_busy: bool, now_s: float) -> None:
        """Say whether something waits from now on."""
        self._advance(now_s)
        self.is_busy = is_busy

    def _advance(self, now_s: float) -> None:
        elapsed_s = now_s - self._at_s
        if elapsed_s <= 0:
            return
        if self.is_busy:
            kept = math.exp(-elapsed_s / _HORIZON_S)
            self._busy_s = self._busy_s * kept + _HORIZON_S * (1 - kept)
            self._tokens *= kept
            self._starts *= kept
        elif elapsed_s > _FORGET_AFTER_S:
            self._busy_s = self._tokens = self._starts = 0.0
        self._at_s = now_s

    def add(self, tokens: int, now_s: float) -> None:
        """Count a request that left the queue to start."""
        if now_s > self._at_s:
            self._advance(now_s)
        self._tokens += tokens
        self._starts += 1

    def tokens_per_s(self, now_s: float) -> float | None:
        """Return the drain rate (> 0), or None without enough evidence."""
        if now_s > self._at_s:
            self._advance(now_s)
        if self._starts < _ENOUGH_STARTS or self._busy_s < _ENOUGH_BUSY_S or self._tokens <= 0:
            return None
        return self._tokens / self._busy_s
