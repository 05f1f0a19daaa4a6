"""How long the answers of each (model, endpoint) are: streaming quantiles of output tokens.

Counts are tokens. A sketch with logarithmic buckets (relative error at most 1 %, always rounded up) whose
counts are halved as it fills, so that old traffic fades. Prevents: reserving a client's `max_tokens`, or
all there is, for an answer that is usually short.
"""

from __future__ import annotations

import math

#: Completions an endpoint needs before its own history is believed.
ENOUGH = 200
_RELATIVE_ERROR = 0.01
_LOG_STEP = math.log(1 + _RELATIVE_ERROR)
_FADE_AT = 20_000
_REFRESH_EVERY = 64


class LengthSketch:
    """Streaming quantiles of one endpoint's output lengths.

    Source: Masson, Rim, Lee, "DDSketch" (VLDB 2019), section 2, with upper bucket edges.
    """

    __slots__ = ("_answers", "_counts", "_powers", "_since_refresh", "_total", "seen")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._total = 0
        self._since_refresh = 0
        self._answers: dict[float, int] = {}
        self._powers = (0.0, 0.0, 0.0)  # sums of O, O^2, O^3
        self.seen = 0

    def add(self, output_tokens: int) -> None:
        """Count one finished answer of `output_tokens` (>= 0)."""
        bucket = -1 if output_tokens < 1 else math.ceil(math.log(output_tokens) / _LOG_STEP - 1e-9)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self._total += 1
        first, second, third = self._powers
        square = output_tokens * output_tokens
        self._powers = (first + output_tokens, second + square, third + square * output_tokens)
        self.seen += 1
        self._since_refresh += 1
        if self._total >= _FADE_AT:
            self._counts = {b: n // 2 for b, n in self._counts.items() if n > 1}
            self._total = sum(self._counts.values())
            first, second, third = self._powers
            self._powers = (first / 2, second / 2, third / 2)
        if self._since_refresh >= _REFRESH_EVERY or self.seen <= ENOUGH:
            self._since_refresh = 0
            self._answers.clear()

    def quantile(self, quantile: float) -> int | None:
        """Return the length that `quantile` (0..1) of answers do not exceed, at most 1 % high.

        None before `ENOUGH` answers. At most 64 answers old.
        """
        if self.seen < ENOUGH:
            return None
        answer = self._answers.get(quantile)
        if answer is None:
            answer = self._answers[quantile] = self._compute(quantile)
        return answer

    def residency(self) -> tuple[float, float] | None:
        """Return mean and variance of what an answer under way holds, in tokens and tokens squared.

        Seen at a random moment, and so longer answers more often: E[O^2]/(2 E[O]) and E[O^3]/(3 E[O]) less
        the mean squared. None before `ENOUGH` answers, or where none has output.
        Source: renewal theory, e.g. Kleinrock, Queueing Systems vol. 1 (1975), 5.2 (residual life).
        """
        first, second, third = self._powers
        if self.seen < ENOUGH or first <= 0:
            return None
        mean = second / (2 * first)
        return mean, max(0.0, third / (3 * first) - mean * mean)

    def _compute(self, quantile: float) -> int:
        rank = math.ceil(quantile * self._total)
        passed = 0
        bucket = -1
        for bucket in sorted(self._counts):
            passed += self._counts[bucket]
            if passed >= rank:
                break
        return 0 if bucket < 0 else math.floor(math.exp(bucket * _LOG_STEP) + 1e-9)


class OutputLengths:
    """Output history by (model, endpoint)."""

    __slots__ = ("_sketches",)

    def __init__(self) -> None:
        self._sketches: dict[tuple[str, str], LengthSketch] = {}

    def add(self, model: str, endpoint: str, output_tokens: int) -> None:
        """Count one completed answer. Aborted ones would bias lengths low: leave them out."""
        key = (model, endpoint)
        sketch = self._sketches.get(key)
        if sketch is None:
            sketch = self._sketches[key] = LengthSketch()
        sketch.add(output_tokens)

    def residency(self, model: str, endpoint: str) -> tuple[float, float] | None:
        """Return mean and variance of what one answer under way holds; None before `ENOUGH`."""
        sketch = self._sketches.get((model, endpoint))
        return None if sketch is None else sketch.residency()

    def quantile(self, model: str, endpoint: str, quantile: float) -> int | None:
        """Return the history's quantile in tokens; None before `ENOUGH` completions."""
        sketch = self._sketches.get((model, endpoint))
        return None if sketch is None else sketch.quantile(quantile)
