"""How well prompts are known before an engine counts them, as metric families.

Prevents: an estimate that is wrong for a model or a language, noticed only by refusals.
"""

from __future__ import annotations

from collections.abc import Iterator

from admission.estimate import PromptEstimator
from admission.metrics import Family
from admission.prompt_counts import PromptCounts
from fleet.messages import PromptFit

MAX_FITS = 100  # models named in a status
_PREFIX = "rhodeck_gateway_"


def prompt_fits(estimator: PromptEstimator) -> dict[str, PromptFit]:
    """Return by model how prompts are estimated, for the gateway's status; at most `MAX_FITS`."""
    learned = sorted(estimator.learned().items())[:MAX_FITS]
    return {
        model: PromptFit(bytes_per_token=ratio, error_ratio=min(error, 1e9))
        for model, (ratio, error) in learned
        if len(model) <= 200
    }


def estimate_families(estimator: PromptEstimator, counts: PromptCounts | None) -> Iterator[Family]:
    """Yield ratio and error by model, and how prompts were counted where a tokenizer is configured."""
    learned = estimator.learned()
    ratios = {(model,): ratio for model, (ratio, _) in learned.items()}
    errors = {(model,): error for model, (_, error) in learned.items()}
    yield Family(
        _PREFIX + "bytes_per_token", "Bytes of prompt a token, as engines count.", ("model",), ratios
    )
    yield Family(
        _PREFIX + "prompt_estimate_error_ratio",
        "Absolute differences of estimated and counted prompts, by what was counted.",
        ("model",),
        errors,
    )
    if counts is not None:
        yield Family(
            _PREFIX + "prompt_counts_total",
            "Prompts by how an exact count was got, or why not.",
            ("result",),
            {(result,): count for result, count in counts.results.items()},
            "counter",
        )
