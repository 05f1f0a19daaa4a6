"""How long the answers of each (model, endpoint) are: streaming quantiles of output tokens.

Counts are tokens. A sketch with logarithmic buckets (relative error at most 1 %, always rounded up) whose
counts are halved as it fills, so that old traffic fades. Prevents: reserving a client's `max_tokens`, or
all there is, for an answer that is usually short.
"""

from __future__ import annotations

import math
from typing import Final

#: Completions an endpoint needs before its own history is believed.
ENOUGH: Final = 200
_RELATIVE_ERROR = 0.01
_LOG_STEP = math.log(1 + _RELATIVE_ERROR)
_FADE_AT: Final = 20_000
#: Answers that are counted in together.
REFRESH_EVERY: Final = 64
_TABLED: Final = 4_096


def _bucket_of(output_tokens: int) -> int:
    return -1 if output_tokens < 1 else math.ceil(math.log(output_tokens) / _LOG_STEP - 1e-9)


#: Buckets of the usual lengths; a logarithm costs as much as the rest of counting one in.
_BUCKETS: Final = [_bucket_of(tokens) for tokens in range(_TABLED)]


class LengthSketch:
    """Streaming quantiles of one endpoint's output lengths.

    Source: Masson, Rim, Lee, "DDSketch" (VLDB 2019), section 2, with upper bucket edges.
    """

    __slots__ = ("_counts", "_places", "_powers", "_total", "answers", "fresh", "seen")

    def __init__(self) -> None:
        self._counts = [0]  # by bucket, from -1 on
        self._places: dict[float, int] = {}  # of the last answers in it
        self._total = 0
        self.answers: dict[float, int] = {}  # by quantile, until more is counted in
        self._powers = (0.0, 0.0, 0.0)  # sums of O, O^2, O^3
        self.fresh: list[int] = []  # not counted in yet
        self.seen = 0

    def add(self, output_tokens: int) -> None:
        """Count one finished answer of `output_tokens` (>= 0)."""
        fresh = self.fresh
        fresh.append(output_tokens)
        if len(fresh) >= REFRESH_EVERY or self.seen < ENOUGH:
            self.take_in()

    def take_in(self) -> None:
        """Count in what came since the last time."""
        fresh, counts = self.fresh, self._counts
        tokens = squares = cubes = 0
        for output_tokens in fresh:
            bucket = _BUCKETS[output_tokens] if 0 <= output_tokens < _TABLED else _bucket_of(output_tokens)
            if bucket + 1 >= len(counts):
                counts += [0] * (bucket + 2 - len(counts))
            counts[bucket + 1] += 1
            square = output_tokens * output_tokens
            tokens += output_tokens
            squares += square
            cubes += output_tokens * square
        first, second, third = self._powers
        self._powers = (first + tokens, second + squares, third + cubes)
        self._total += len(fresh)
        self.seen += len(fresh)
        fresh.clear()
        self.answers.clear()
        if self._total >= _FADE_AT:
            self._counts = [number // 2 for number in counts]
            self._total = sum(self._counts)
            first, second, third = self._powers
            self._powers = (first / 2, second / 2, third / 2)

    def quantile(self, quantile: float) -> int | None:
        """Return the length that `quantile` (0..1) of answers do not exceed, at most 1 % high.

        None before `ENOUGH` answers. At most 64 answers old.
        """
        if self.seen < ENOUGH:
            return None
        answer = self.answers.get(quantile)
        if answer is None:
            answer = self.answers[quantile] = self._compute(quantile)
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
        counts, rank = self._counts, math.ceil(quantile * self._total)
        place = self._places.get(quantile, 0)  # the last answer's: the next is close by
        passed = sum(counts[:place])
        while passed >= rank and place:
            place -= 1
            passed -= counts[place]
        while place < len(counts) - 1 and passed + counts[place] < rank:
            passed += counts[place]
            place += 1
        self._places[quantile] = place
        bucket = place - 1
        return 0 if bucket < 0 else math.floor(math.exp(bucket * _LOG_STEP) + 1e-9)


class OutputLengths:
    """Output history by model and endpoint."""

    __slots__ = ("_models",)

    def __init__(self) -> None:
        self._models: dict[str, dict[str, LengthSketch]] = {}

    def of_model(self, model: str) -> dict[str, LengthSketch]:
        """Return a model's sketches by endpoint; one made there later is part of the history."""
        return self._models.setdefault(model, {})

    def add(self, model: str, endpoint: str, output_tokens: int) -> None:
        """Count one completed answer. Aborted ones would bias lengths low: leave them out."""
        self.of_model(model).setdefault(endpoint, LengthSketch()).add(output_tokens)

    def quantile(self, model: str, endpoint: str, quantile: float) -> int | None:
        """Return the history's quantile in tokens; None before `ENOUGH` completions."""
        sketch = self._models.get(model, {}).get(endpoint)
        return None if sketch is None else sketch.quantile(quantile)
