"""The JSON of `rhodeck metrics`: pages and windows as plain dictionaries.

Keys follow `fleet.readings`; `count` is added to histograms. `counts` are per bucket, not cumulative, and
have one more entry than `edges`, the last being observations above the last edge. Unknown is null, an
unbounded end of an interval is null with `censored` true. Prevents: Infinity and NaN in JSON.
"""

from __future__ import annotations

from dataclasses import asdict
from math import isfinite
from typing import Any

from fleet.histograms import mean, quantile
from fleet.readings import EngineReading, EngineWindow, Histogram, PageReading

QUANTILES: dict[str, float] = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
COUNTS = (
    "arrivals",
    "completed",
    "errors",
    "aborted",
    "prompt_tokens",
    "prompt_tokens_computed",
    "generation_tokens",
    "preemptions",
    "prefix_cache_hits",
    "prefix_cache_queries",
)
_GAUGES = ("running", "waiting", "waiting_capacity", "kv_used_ratio", "kv_capacity_tokens")

Json = dict[str, Any]


def page_json(page: PageReading) -> Json:
    """One page: what it is, and its engines."""
    return {
        "source": page.source,
        "dialect": page.dialect,
        "shape": page.shape,
        "state": page.state.value,
        "hint": page.hint,
        "process_start_time_s": page.process_start_time_s,
        "http_finished": page.http_finished,
        "http_failed": page.http_failed,
        "admission_rejections": page.admission_rejections,
        "lora_adapters": None if page.lora_adapters is None else list(page.lora_adapters),
        "dropped": list(page.dropped),
        "engines": [_engine_json(engine) for engine in page.engines],
        "not_exported": None if page.names is None else list(page.names.not_exported),
        "gpus": [asdict(gpu) for gpu in page.gpus],
    }


def failure_json(source: str, state: str, message: str, hint: str) -> Json:
    """A source that gave no page, in the form of a page without engines."""
    return {
        "source": source,
        "dialect": None,
        "shape": None,
        "state": state,
        "hint": hint,
        "error": message,
        "dropped": [],
        "engines": [],
    }


def _engine_json(engine: EngineReading) -> Json:
    histograms = {name: histogram_json(h) for name, h in engine.histograms.items()}
    return asdict(engine) | {"histograms": histograms, "flags": list(engine.flags)}


def histogram_json(histogram: Histogram) -> Json:
    return {
        "edges": list(histogram.edges),
        "counts": list(histogram.counts),
        "sum": histogram.sum,
        "count": histogram.count,
    }


def window_json(
    before: PageReading, after: PageReading, windows: tuple[EngineWindow, ...], node: EngineWindow
) -> Json:
    """What each engine did between two pages, and all of them together."""
    return {
        "before": before.source,
        "after": after.source,
        "engines": [_window_json(w) for w in windows],
        "node": _window_json(node),
    }


def _window_json(window: EngineWindow) -> Json:
    increments = {name: getattr(window, name) for name in COUNTS}
    return {
        "engine": window.engine,
        "model": window.model,
        "seconds": window.length_s,
        "restarted": window.restarted,
        "increments": increments,
        "rates": {n: None if v is None else v / window.length_s for n, v in increments.items()},
        "end": {name: getattr(window, name) for name in _GAUGES},
        "histograms": {n: _grown_json(h) for n, h in window.histograms.items()},
        "flags": list(window.flags),
    }


def _grown_json(histogram: Histogram) -> Json:
    quantiles = {name: _quantile_json(histogram, q) for name, q in QUANTILES.items()}
    return histogram_json(histogram) | {"mean": mean(histogram), "quantiles": quantiles}


def _quantile_json(histogram: Histogram, q: float) -> Json | None:
    """None for an empty histogram: no observations, no quantile."""
    found = quantile(histogram, q)
    if found is None:
        return None
    return {
        "estimate": found.estimate,
        "lo": _finite(found.lo),
        "hi": _finite(found.hi),
        "censored": found.is_censored,
        "too_few": found.too_few,
        "below_first_edge": found.is_below_first_edge,
        "rank_ci95": [found.rank_lo, found.rank_hi],
        "ci_lo": _finite(found.ci_lo),
        "ci_hi": _finite(found.ci_hi),
    }


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
