"""How many tokens a prompt will be, from its bytes: a ratio per model, learned from what engines counted.

Bytes and tokens are counts. Token ids are counted exactly. Prevents: exact tokenisation in the request
path (hundreds of microseconds per KB), and a fixed guess that is wrong for a language or a model.
"""

from __future__ import annotations

import math

from admission.calls import Prompt

PRIOR_BYTES_PER_TOKEN = 4.0
_PRIOR_TOKENS = 2_000.0  # weight of the prior
_KEPT = 0.999  # weight an observation keeps at the next one: about the last thousand count
_MODELS = 1_000


class PromptEstimator:
    """Bytes per token by model. Only prompts that are all text teach."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}  # model: bytes, tokens; decayed
        self._ratios: dict[str, float] = {}  # as they follow from that
        self._pace: dict[
            str, tuple[float, float]
        ] = {}  # model: seconds in the engine, output tokens; decayed
        self._missed: dict[
            str, tuple[float, float]
        ] = {}  # model: sum of |estimate - count|, of counts; decayed

    def bytes_per_token(self, model: str) -> float:
        """Return the current ratio, > 0."""
        return self._ratios.get(model, PRIOR_BYTES_PER_TOKEN)

    def tokens(self, model: str, prompt: Prompt) -> int:
        """Return the estimate, rounded up."""
        from_text = math.ceil(prompt.text_bytes / self.bytes_per_token(model))
        return from_text + prompt.exact_tokens + prompt.extra_tokens

    def learn(self, model: str, prompt: Prompt, prompt_tokens: int) -> None:
        """Take in what an engine counted for a prompt."""
        text_tokens = prompt_tokens - prompt.extra_tokens
        if not prompt.text_bytes or prompt.exact_tokens or text_tokens <= 0:
            return
        if model not in self._seen and len(self._seen) >= _MODELS:
            return
        missed, counted = self._missed.get(model, (0.0, 0.0))
        missed = missed * _KEPT + abs(self.tokens(model, prompt) - prompt_tokens)
        self._missed[model] = (missed, counted * _KEPT + prompt_tokens)
        seen_bytes, seen_tokens = self._seen.get(model, (0.0, 0.0))
        seen_bytes = seen_bytes * _KEPT + prompt.text_bytes
        seen_tokens = seen_tokens * _KEPT + text_tokens
        self._seen[model] = (seen_bytes, seen_tokens)
        ratio = (PRIOR_BYTES_PER_TOKEN * _PRIOR_TOKENS + seen_bytes) / (_PRIOR_TOKENS + seen_tokens)
        self._ratios[model] = min(max(ratio, 0.25), 64.0)

    def learned(self) -> dict[str, tuple[float, float]]:
        """Return by model its bytes a token, and the estimate's error before each count was known.

        The error is a ratio >= 0: the sum of absolute differences by the sum of counts, over about the last
        thousand prompts. Models whose engines counted nothing yet are absent.
        """
        return {
            model: (self.bytes_per_token(model), missed / counted)
            for model, (missed, counted) in self._missed.items()
        }

    def learn_pace(self, model: str, output_tokens: int, engine_s: float) -> None:
        """Take in how long a finished request took in the engine."""
        if output_tokens > 0 and (model in self._pace or len(self._pace) < _MODELS):
            seconds, tokens = self._pace.get(model, (0.0, 0.0))
            self._pace[model] = (seconds * _KEPT + engine_s, tokens * _KEPT + output_tokens)

    def output_after(self, model: str, engine_s: float, at_most: int) -> int:
        """Return about how many tokens an engine produced in `engine_s`; `at_most` before it has learned.

        For an answer that was not streamed and whose client left: nobody counted it.
        """
        seconds, tokens = self._pace.get(model, (0.0, 0.0))
        return min(at_most, math.ceil(engine_s * tokens / seconds)) if seconds > 0 else at_most
