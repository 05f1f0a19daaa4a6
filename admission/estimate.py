"""How many tokens a prompt will be, from its bytes: a ratio per model, learned from what engines counted.

Bytes and tokens are counts. Token ids are counted exactly. Prevents: exact tokenisation in the request
path (hundreds of microseconds per KB), and a fixed guess that is wrong for a language or a model.

And how many tokens an event of a stream carries, likewise: engines put several into one where they are told
to (vLLM's --stream-interval), predict ahead (speculative decoding) or write faster than is read.
"""

from __future__ import annotations

import math
from typing import Final

from admission.calls import Prompt

PRIOR_BYTES_PER_TOKEN: Final = 4.0
_PRIOR_TOKENS: Final = 2_000.0  # weight of the prior
_KEPT: Final = 0.999  # weight an observation keeps at the next one: about the last thousand count
_MODELS: Final = 1_000
FIRST_EVENTS: Final = 2  # of a stream: taken to carry a token each
_PRIOR_EVENTS: Final = 20.0  # of one token each


class _Learned:
    """What engines taught of one model. Sums decay."""

    __slots__ = ("counted", "engine_s", "missed", "output_tokens", "ratio", "seen_bytes", "seen_tokens")

    def __init__(self) -> None:
        self.ratio = PRIOR_BYTES_PER_TOKEN
        self.seen_bytes = self.seen_tokens = 0.0  # of texts
        self.missed = self.counted = 0.0  # |estimate - count|, count
        self.engine_s = self.output_tokens = 0.0  # of finished requests


class PromptEstimator:
    """Bytes per token by model, tokens per event of its streams. Only prompts that are all text teach."""

    def __init__(self) -> None:
        self._models: dict[str, _Learned] = {}
        self._events: dict[
            tuple[str, str], tuple[float, float]
        ] = {}  # tokens, events after the first two; decayed

    def bytes_per_token(self, model: str) -> float:
        """Return the current ratio, > 0."""
        known = self._models.get(model)
        return PRIOR_BYTES_PER_TOKEN if known is None else known.ratio

    def tokens(self, model: str, prompt: Prompt) -> int:
        """Return the estimate, rounded up."""
        return _tokens(prompt, self.bytes_per_token(model))

    def learn(self, model: str, prompt: Prompt, prompt_tokens: int) -> None:
        """Take in what an engine counted for a prompt."""
        text_tokens = prompt_tokens - prompt.extra_tokens
        if not prompt.text_bytes or prompt.exact_tokens or text_tokens <= 0:
            return
        one = self._of(model)
        if one is None:
            return
        one.missed = one.missed * _KEPT + abs(_tokens(prompt, one.ratio) - prompt_tokens)
        one.counted = one.counted * _KEPT + prompt_tokens
        one.seen_bytes = one.seen_bytes * _KEPT + prompt.text_bytes
        one.seen_tokens = one.seen_tokens * _KEPT + text_tokens
        ratio = (PRIOR_BYTES_PER_TOKEN * _PRIOR_TOKENS + one.seen_bytes) / (_PRIOR_TOKENS + one.seen_tokens)
        one.ratio = min(max(ratio, 0.25), 64.0)

    def learned(self) -> dict[str, tuple[float, float]]:
        """Return by model its bytes a token, and the estimate's error before each count was known.

        The error is a ratio >= 0: the sum of absolute differences by the sum of counts, over about the last
        thousand prompts. Models whose engines counted nothing yet are absent.
        """
        return {
            model: (one.ratio, one.missed / one.counted)
            for model, one in self._models.items()
            if one.counted > 0
        }

    def learn_pace(self, model: str, output_tokens: int, engine_s: float) -> None:
        """Take in how long a finished request took in the engine."""
        one = self._of(model) if output_tokens > 0 else None
        if one is not None:
            one.engine_s = one.engine_s * _KEPT + engine_s
            one.output_tokens = one.output_tokens * _KEPT + output_tokens

    def output_after(self, model: str, engine_s: float, at_most: int) -> int:
        """Return about how many tokens an engine produced in `engine_s`; `at_most` before it has learned.

        For an answer that was not streamed and whose client left: nobody counted it.
        """
        one = self._models.get(model)
        if one is None or one.engine_s <= 0:
            return at_most
        return min(at_most, math.ceil(engine_s * one.output_tokens / one.engine_s))

    def learn_events(self, model: str, endpoint: str, output_tokens: int, events: int) -> None:
        """Take in what an engine counted for a stream of so many events that ended well.

        The first two are left out: they open an answer or carry a token, however many later ones do.
        """
        key = (model, endpoint)
        later = events - FIRST_EVENTS
        if (
            later > 0
            and output_tokens > FIRST_EVENTS
            and (key in self._events or len(self._events) < _MODELS)
        ):
            tokens, seen = self._events.get(key, (0.0, 0.0))
            self._events[key] = (tokens * _KEPT + output_tokens - FIRST_EVENTS, seen * _KEPT + later)

    def tokens_per_event(self, model: str, endpoint: str) -> float:
        """Return how many tokens an event after the first two carries, > 0; 1 before any was learned."""
        tokens, events = self._events.get((model, endpoint), (0.0, 0.0))
        return (tokens + _PRIOR_EVENTS) / (events + _PRIOR_EVENTS)

    def _of(self, model: str) -> _Learned | None:
        """Return what is kept of a model; None: too many are known."""
        one = self._models.get(model)
        if one is None and len(self._models) < _MODELS:
            one = self._models[model] = _Learned()
        return one


def _tokens(prompt: Prompt, bytes_per_token: float) -> int:
    return math.ceil(prompt.text_bytes / bytes_per_token) + prompt.exact_tokens + prompt.extra_tokens
