"""One node out of the engines of one page: sums, the spread between ranks, and windows for the whole.

Counts add over engines, KV use does not (the fullest rank decides). Prevents: showing one rank of eight
as the node, and an average that hides a rank with 117 requests waiting behind two with none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleet.histograms import merge
from fleet.readings import EngineReading, EngineWindow, Histogram, PageReading
from fleet.windows import aborted_between, window


@dataclass(frozen=True, slots=True)
class Spread:
    """A value over the engines of a page: `largest` is what verdicts use. None: an engine did not say."""

    total: int | None
    smallest: int | None
    largest: int | None


@dataclass(frozen=True, slots=True)
class PageTotals:
    """The engines of one page as one node. A sum is None when any engine does not say."""

    engines: int
    running: Spread
    waiting: Spread
    kv_used_ratio: float | None  # of the fullest engine
    kv_capacity_tokens: int | None
    finished: dict[str, int]
    prompt_tokens: int | None
    generation_tokens: int | None
    preemptions: int | None
    prefix_cache_hits: int | None  # None where engines count in different units, too
    prefix_cache_queries: int | None
    histograms: dict[str, Histogram]
    flags: tuple[str, ...]


def total(page: PageReading) -> PageTotals:
    """Return the engines of `page` as one node: counts added, KV use of the fullest."""
    engines = page.engines
    finished: dict[str, int] = {}
    for engine in engines:
        for reason, count in engine.finished.items():
            finished[reason] = finished.get(reason, 0) + count
    units = {"prefix_cache_unit_unknown" in engine.flags for engine in engines}
    return PageTotals(
        engines=len(engines),
        running=_spread([e.running for e in engines]),
        waiting=_spread([e.waiting for e in engines]),
        kv_used_ratio=max((e.kv_used_ratio for e in engines if e.kv_used_ratio is not None), default=None),
        kv_capacity_tokens=add(e.kv_capacity_tokens for e in engines),
        finished=finished,
        prompt_tokens=add(e.prompt_tokens for e in engines),
        generation_tokens=add(e.generation_tokens for e in engines),
        preemptions=add(e.preemptions for e in engines),
        prefix_cache_hits=add(e.prefix_cache_hits for e in engines) if len(units) == 1 else None,
        prefix_cache_queries=add(e.prefix_cache_queries for e in engines) if len(units) == 1 else None,
        histograms=_merged(engines),
        flags=_flags(engines),
    )


def node_window(before: PageReading, after: PageReading, seconds: float) -> EngineWindow:
    """Return what all engines of `after` did together since `before`; the engine is called "all".

    Aborts, which the page counts for all its engines together, are attributed here where `window` cannot.
    Raises as `window` does.
    """
    windows = window(before, after, seconds)
    if len(windows) == 1:
        return windows[0]
    together = aborted_between(before, after)
    aborted = add(w.aborted for w in windows)
    arrivals = add(w.arrivals for w in windows)
    flags = set(_flags(windows)) - {"aborts_not_attributed"}
    if aborted is None and together is not None:
        aborted = together
        arrivals = None if arrivals is None else arrivals + together
        flags -= {"arrivals_lower_bound"}
    return EngineWindow(
        engine="all",
        model=windows[0].model,
        length_s=seconds,
        restarted=any(w.restarted for w in windows),
        arrivals=arrivals,
        completed=add(w.completed for w in windows),
        errors=add(w.errors for w in windows),
        aborted=aborted,
        prompt_tokens=add(w.prompt_tokens for w in windows),
        prompt_tokens_computed=add(w.prompt_tokens_computed for w in windows),
        generation_tokens=add(w.generation_tokens for w in windows),
        preemptions=add(w.preemptions for w in windows),
        prefix_cache_hits=add(w.prefix_cache_hits for w in windows),
        prefix_cache_queries=add(w.prefix_cache_queries for w in windows),
        running=add(w.running for w in windows),
        waiting=add(w.waiting for w in windows),
        waiting_capacity=add(w.waiting_capacity for w in windows),
        kv_used_ratio=max((w.kv_used_ratio for w in windows if w.kv_used_ratio is not None), default=None),
        kv_capacity_tokens=add(w.kv_capacity_tokens for w in windows),
        histograms=_merged(windows),
        flags=tuple(sorted(flags)),
    )


def add(values: Iterable[int | None]) -> int | None:
    """Return the sum, None for no values or when any is None: half a sum is a wrong sum."""
    known = list(values)
    if not known:
        return None
    whole = [value for value in known if value is not None]
    return sum(whole) if len(whole) == len(known) else None


def _spread(values: list[int | None]) -> Spread:
    known = [value for value in values if value is not None]
    return Spread(add(values), min(known, default=None), max(known, default=None))


def _merged(parts: Sequence[EngineReading] | Sequence[EngineWindow]) -> dict[str, Histogram]:
    """Histograms that every part has, added; parts with different bounds keep the common ones."""
    if not parts:
        return {}
    names = [name for name in parts[0].histograms if all(name in part.histograms for part in parts)]
    merged = {name: merge(part.histograms[name] for part in parts) for name in names}
    return {name: histogram for name, histogram in merged.items() if histogram is not None}


def _flags(parts: Sequence[EngineReading] | Sequence[EngineWindow]) -> tuple[str, ...]:
    return tuple(sorted({flag for part in parts for flag in part.flags}))
