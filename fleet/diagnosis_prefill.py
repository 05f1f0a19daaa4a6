"""What a prompt token costs the requests that are decoding, read from windows of different load.

ITL of a window against its decode concurrency b and the prefill tokens p a step carried: itl = a + m b +
g p, all coefficients >= 0, over the engines of a pool. Seconds and tokens. Prevents: a long gap between
tokens blamed on prompts where the batch made it long, and the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fleet.diagnosis_engine_facts import EngineFacts
from fleet.readings import EngineWindow, Histogram

MIN_POINTS = 12
MIN_EVENTS = 50


@dataclass(frozen=True, slots=True)
class StepModel:
    """Where the time between two tokens goes, at the interval's mean load."""

    decode_s: float  # a + m b: a step without prefill
    per_token_s: float  # g
    prefill_tokens: float  # a step, as decoding requests see it
    largest_step_tokens: (
        float  # upper end of the bucket above which fewer than 0.2 % of steps lie, or the cap
    )

    @property
    def prefill_share(self) -> float:
        """Part of the mean gap that prefill takes, 0..1."""
        prefill_s = self.per_token_s * self.prefill_tokens
        return prefill_s / (prefill_s + self.decode_s) if prefill_s + self.decode_s > 0 else 0.0


def step_model(engines: Sequence[EngineFacts]) -> StepModel | None:
    """Return the fit over all windows of `engines`, None without step histograms or enough load."""
    rows = [row for e in engines for t in e.windows if (row := _row(t.window)) is not None]
    if len(rows) < MIN_POINTS:
        return None
    batch, prefill, itl, weight = (np.asarray(column, np.float64) for column in zip(*rows, strict=True))
    root = np.sqrt(weight)
    design = np.column_stack((np.ones_like(batch), batch, prefill)) * root[:, None]
    scale = np.maximum(np.abs(design).max(axis=0), 1e-12)
    from scipy.optimize import nnls  # pyright: ignore[reportUnknownVariableType] # slow to import

    found = np.asarray(nnls(design / scale, itl * root)[0], np.float64) / scale  # pyright: ignore[reportUnknownArgumentType]
    alpha, slope, per_token = (float(v) for v in found)
    mean_batch, mean_prefill = (
        float(np.average(batch, weights=weight)),
        float(np.average(prefill, weights=weight)),
    )
    steps = [h for e in engines if (h := e.histogram("iteration_tokens")) is not None]
    budgets = [
        budget
        for e in engines
        if (budget := e.evidence.launch.max_num_batched_tokens)
        and e.evidence.launch.chunked_prefill is not False
    ]
    largest = min(_largest(steps), max(budgets)) if len(budgets) == len(engines) else _largest(steps)
    return StepModel(alpha + slope * mean_batch, per_token, mean_prefill, largest)


def _row(w: EngineWindow) -> tuple[float, float, float, float] | None:
    """Return (b, prefill tokens a step, ITL, decode events) of a window that says all of it."""
    itl, steps = w.histograms.get("itl_s"), w.histograms.get("iteration_tokens")
    computed = w.prompt_tokens_computed if w.prompt_tokens_computed is not None else w.prompt_tokens
    if itl is None or itl.sum is None or steps is None or computed is None or w.restarted:
        return None
    if itl.count < MIN_EVENTS or steps.count <= 0 or w.length_s <= 0 or itl.sum <= 0:
        return None
    return itl.sum / w.length_s, computed / steps.count, itl.sum / itl.count, float(itl.count)


def _largest(steps: Sequence[Histogram]) -> float:
    """Return the upper end of the highest bucket that at least 0.2 % of the steps reach."""
    largest = 0.0
    for histogram in steps:
        tail, total = 0, histogram.count
        for bound, count in zip(
            reversed((*histogram.edges, histogram.edges[-1])), reversed(histogram.counts), strict=True
        ):
            tail += count
            if tail > 0.002 * total:
                largest = max(largest, bound)
                break
    return largest
