"""Where an engine's KV cache is heading: growth, time to exhaustion, preemptions, oversubscription.

Ratios 0..1 of the cache, seconds, tokens, requests. A forecast follows a trend only when the trend is
significant; else it is the present value. Prevents: a page at "KV 92 %" that does not say whether it is the
evening's plateau or three minutes from preempting, and a forecast made from one noisy gauge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

HISTORY_S = 300.0
HORIZON_S = 300.0
MIN_POINTS = 6
MIN_SPAN_S = 60.0
SIGNIFICANT_Z = 2.33  # one-sided 1 %
FULL = 1.0
RECENT_S = 60.0


@dataclass(frozen=True, slots=True)
class KvPoint:
    """One engine at the end of a round. None: not said."""

    at_s: float
    used_ratio: float
    running: int | None = None
    waiting: int | None = None
    preemptions: int | None = None  # in the round
    capacity_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class KvForecast:
    """An engine's KV cache now and in five minutes. None: not known, or (times) not heading there."""

    used_ratio: float
    growth_per_min: float | None  # of the ratio; None with too little history
    forecast_ratio: float | None  # in HORIZON_S, may exceed 1; the present value without a trend
    exhausted_in_s: float | None  # None: does not fill at the present trend
    running_growth_per_min: float | None
    preemptions: int | None  # over the history
    tokens_per_request: float | None  # KV held by one running request
    recomputed_tokens: float | None  # what preemptions threw away, at that size
    oversubscription: float | None  # KV that running and waiting requests want / capacity


def kv_forecast(points: Sequence[KvPoint]) -> KvForecast | None:
    """Return the forecast at the newest of `points`, oldest first; None without points.

    Growth is the Theil-Sen slope of the last five minutes, used when Mann-Kendall says rising at 1 %.
    Oversubscription is used x (running + waiting) / running: each waiting request wants what a running one
    holds on average. Needs 8 or more running requests over the last minute to say what one holds.
    """
    if not points:
        return None
    newest = points[-1]
    recent = [point for point in points if point.at_s > newest.at_s - HISTORY_S]
    growth, is_rising = _slope([p.at_s for p in recent], [p.used_ratio for p in recent])
    running = [(p.at_s, float(p.running)) for p in recent if p.running is not None]
    running_growth, _ = _slope([at for at, _ in running], [count for _, count in running])
    used = median(p.used_ratio for p in recent[-3:])
    forecast, exhausted_in_s = None if growth is None else used, None
    if growth is not None and is_rising and growth > 0:
        forecast = used + growth * HORIZON_S
        exhausted_in_s = max(0.0, FULL - used) / growth
    elif used >= FULL:
        exhausted_in_s = 0.0
    preempted = [p.preemptions for p in recent if p.preemptions is not None]
    preemptions = sum(preempted) if preempted else None
    held, wanted = _per_request(recent, newest)
    return KvForecast(
        used_ratio=newest.used_ratio,
        growth_per_min=None if growth is None else 60 * growth,
        forecast_ratio=forecast,
        exhausted_in_s=exhausted_in_s,
        running_growth_per_min=None if running_growth is None else 60 * running_growth,
        preemptions=preemptions,
        tokens_per_request=held,
        recomputed_tokens=None if held is None or preemptions is None else held * preemptions,
        oversubscription=wanted,
    )


def _per_request(recent: Sequence[KvPoint], newest: KvPoint) -> tuple[float | None, float | None]:
    """Return (tokens one running request holds, KV wanted over capacity), over the last minute."""
    minute = [
        (p.used_ratio, p.running, p.waiting)
        for p in recent
        if p.at_s > newest.at_s - RECENT_S and p.running is not None and p.running >= 8
    ]
    if not minute:
        return None, None
    share = median(used / running for used, running, _ in minute)
    held = None if newest.capacity_tokens is None else share * newest.capacity_tokens
    if newest.running is None or newest.waiting is None:
        return held, None
    return held, share * (newest.running + newest.waiting)


def _slope(at_s: Sequence[float], values: Sequence[float]) -> tuple[float | None, bool]:
    """Return (Theil-Sen slope per second, whether it rises significantly); None with too little."""
    if len(at_s) < MIN_POINTS or at_s[-1] - at_s[0] < MIN_SPAN_S:
        return None, False
    at, value = np.asarray(at_s, np.float64), np.asarray(values, np.float64)
    first, second = np.triu_indices(len(at), 1)
    rises = value[second] - value[first]
    n, s = len(at), float(np.sign(rises).sum())
    z = (s - 1) / np.sqrt(n * (n - 1) * (2 * n + 5) / 18) if s > 0 else 0.0
    return float(np.median(rises / (at[second] - at[first]))), bool(z > SIGNIFICANT_Z)
