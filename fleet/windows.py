"""What each engine did between two pages: increments that survive restarts, and who arrived and left.

Counts are requests (sequences where one request asks for several) and tokens, times seconds. Prevents:
negative or doubled counts at a restart, an absent series read as a jump from 0, and client aborts
vanishing from the balance (vLLM's Python front end counts them nowhere).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from operator import sub

from fleet.counters import increment
from fleet.errors import InvalidInput, NotMeasured
from fleet.readings import EngineReading, EngineWindow, Histogram, PageReading, PageState

#: A finish for one of these is not a completion. Everything else is, unknown future reasons included.
NOT_COMPLETED = frozenset({"abort", "error"})
_COUNTERS = (
    "prompt_tokens",
    "prompt_tokens_computed",
    "generation_tokens",
    "preemptions",
    "prefix_cache_hits",
    "prefix_cache_queries",
)
#: Pages that show a gauge when it is first set: the Rust front end, and registries of several processes.
_LATE_GAUGES = frozenset({"openmetrics", "prometheus_text_multiprocess"})
#: Two pages cannot be nearer; below it a rate of counts leaves the range of floating point.
SECONDS_MIN = 1e-6
_NEW = EngineReading(engine="", model=None, running=0, waiting=0)


@dataclass(frozen=True, slots=True)
class _Pair:
    """One engine on two pages. `zero_before` says that a series absent before stood at 0."""

    before: EngineReading
    after: EngineReading
    restarted: bool
    zero_before: bool

    def increment(self, old: int | None, new: int | None) -> int | None:
        if new is None:
            return None
        if self.restarted:
            return new
        if old is None:
            return new if self.zero_before else None
        return int(increment(old, new))

    def finished(self) -> dict[str, int]:
        pairs = {
            reason: self.increment(self.before.finished.get(reason), count)
            for reason, count in self.after.finished.items()
        }
        return {reason: count for reason, count in pairs.items() if count is not None}


def window(before: PageReading, after: PageReading, seconds: float) -> tuple[EngineWindow, ...]:
    """Return what each engine of `after` did since `before`, read `seconds` earlier (start to start).

    An engine restarted where the page's process start time changed or any of its counters fell; then its
    increments are what came since. A histogram's sum may fall without one. An engine or series not on
    the earlier page counts from 0 where that page was whole. Raises NotMeasured when `after` has no
    engines or `before` could not be read, InvalidInput unless seconds is finite and SECONDS_MIN or more.
    """
    return window_and_next(before, after, seconds)[0]


def window_and_next(
    before: PageReading, after: PageReading, seconds: float
) -> tuple[tuple[EngineWindow, ...], PageReading]:
    """Return what `window` and `with_answers_owed` return, of one comparison of the two pages."""
    _check(before, after, seconds)
    pairs, page_restarted = _pairs(before, after)
    departures = _departures(before, after, pairs, page_restarted)
    windows = tuple(_engine_window(pair, departures, after, seconds) for pair in pairs)
    return windows, replace(after, answers_owed=departures.owed)


def aborted_between(before: PageReading, after: PageReading) -> int | None:
    """Return aborts of all engines of a page together, None where the page does not count its answers."""
    pairs, page_restarted = _pairs(before, after)
    return _departures(before, after, pairs, page_restarted).aborted


def with_answers_owed(before: PageReading, after: PageReading) -> PageReading:
    """Return `after`, knowing how many requests its engines finished that its HTTP side has yet to count.

    Hand it in as `before` of the next window: the answers counted then are no arrivals of their own. A
    request owes its answer for one window at most, so that what never asks over HTTP owes nothing for long.
    """
    pairs, page_restarted = _pairs(before, after)
    return replace(after, answers_owed=_departures(before, after, pairs, page_restarted).owed)


def _pairs(before: PageReading, after: PageReading) -> tuple[list[_Pair], bool]:
    page_restarted = _page_restarted(before, after)
    olds = {(e.engine, e.model): e for e in before.engines}
    pairs: list[_Pair] = []
    for engine in after.engines:
        old = olds.get((engine.engine, engine.model), _NEW)
        restarted = page_restarted or (
            old is not _NEW and _engine_restarted(old, engine, is_whole=not after.dropped)
        )
        pairs.append(_Pair(old, engine, restarted, zero_before=not before.dropped))
    return pairs, page_restarted


def _check(before: PageReading, after: PageReading, seconds: float) -> None:
    if not (isfinite(seconds) and seconds >= SECONDS_MIN):
        raise InvalidInput(
            f"two pages are at least {SECONDS_MIN:g} seconds apart, not {seconds:g}",
            field="seconds",
            hint="Give the time between the two requests",
        )
    for page, allowed in ((before, (PageState.OK, PageState.NO_ENGINE_SERIES)), (after, (PageState.OK,))):
        if page.state not in allowed:
            raise NotMeasured(
                f"{page.source} is no engine's page: {page.state.value}", hint=page.hint, field="page"
            )


def _page_restarted(before: PageReading, after: PageReading) -> bool:
    old, new = before.process_start_time_s, after.process_start_time_s
    if old is not None and new is not None and old != new:
        return True
    return _fell(before.http_finished, after.http_finished)


def _fell(old: int | None, new: int | None) -> bool:
    return old is not None and new is not None and new < old


def _engine_restarted(old: EngineReading, new: EngineReading, *, is_whole: bool) -> bool:
    """True when a counter fell, or went away from a page of which no line was left out."""
    counters = [(getattr(old, name), getattr(new, name)) for name in _COUNTERS]
    counters += [(count, new.finished.get(reason)) for reason, count in old.finished.items()]
    if any(_fell(a, b) or (is_whole and a is not None and b is None) for a, b in counters):
        return True
    return any(
        name in new.histograms
        and histogram.edges == new.histograms[name].edges
        and new.histograms[name].count < histogram.count
        for name, histogram in old.histograms.items()
    )


@dataclass(frozen=True, slots=True)
class _Departures:
    """Requests that left the page's engines in the window, as its HTTP side counts them.

    `http` are 2xx answers that reached an engine, None where the page does not count them;
    `counts_at_start` says that they are counted when they begin (the Rust front end), so that they are
    arrivals already. `aborted` is for all engines together, `owed` the answers still to be counted.
    """

    http: int | None
    counts_at_start: bool
    aborted: int | None
    is_one_engine: bool
    owed: int = 0


def _departures(
    before: PageReading, after: PageReading, pairs: list[_Pair], page_restarted: bool
) -> _Departures:
    restarted = page_restarted or all(pair.restarted for pair in pairs)
    whole = not before.dropped

    def grown(old: int | None, new: int | None) -> int | None:
        if new is None or (old is None and not whole and not restarted):
            return None
        return new if restarted or old is None else int(increment(old, new))

    http = grown(before.http_finished, after.http_finished)
    is_rust = after.shape == "openmetrics" and http is not None
    if is_rust or http is None:
        return _Departures(http, is_rust, None, len(pairs) == 1)
    rejected = grown(before.admission_rejections, after.admission_rejections) or 0
    failed = grown(before.http_failed, after.http_failed) or 0
    http -= max(0, rejected - failed)  # refused inside an answer that had begun with 200
    if not restarted:
        http -= before.answers_owed  # of requests that an earlier window counted
    requests = sum(_requests_finished(pair) for pair in pairs)
    owed = min(requests, max(0, requests - http))
    return _Departures(max(0, http), False, max(0, http - requests), len(pairs) == 1, owed)


def _requests_finished(pair: _Pair) -> int:
    """Requests, not sequences, that finished: one with n = 5 is one."""
    grown, _ = _histogram(pair, "params_n")
    return grown.count if grown is not None else sum(pair.finished().values())


def _engine_window(
    pair: _Pair, departures: _Departures, after: PageReading, seconds: float
) -> EngineWindow:
    new, finished = pair.after, pair.finished()
    flags = [*new.flags, *(("restart",) if pair.restarted else ())]
    is_lazy = after.shape == "openmetrics" or after.dialect == "vllm_v0"
    # a lazy page shows a reason at its first finish; a reason without a known increment spoils the sum
    is_known = (bool(new.finished) or is_lazy) and len(finished) == len(new.finished)
    completed = sum(n for reason, n in finished.items() if reason not in NOT_COMPLETED)
    aborted = _aborted(pair, departures, finished, flags)
    histograms: dict[str, Histogram] = {}
    for name in new.histograms:
        grown, problem = _histogram(pair, name)
        if grown is not None:
            histograms[name] = grown
        elif problem:
            flags.append(problem)
    left = sum(finished.values()) + (0 if finished.get("abort") else aborted or 0)
    return EngineWindow(
        engine=new.engine,
        model=new.model,
        length_s=seconds,
        restarted=pair.restarted,
        arrivals=_arrivals(pair, departures, left, flags, after.shape in _LATE_GAUGES)
        if is_known
        else None,
        completed=completed if is_known else None,
        errors=finished.get("error", 0 if after.shape == "openmetrics" else None),
        aborted=aborted,
        running=new.running,
        waiting=new.waiting,
        waiting_capacity=new.waiting_capacity,
        kv_used_ratio=new.kv_used_ratio,
        kv_capacity_tokens=new.kv_capacity_tokens,
        histograms=histograms,
        flags=tuple(flags),
        **{name: pair.increment(getattr(pair.before, name), getattr(new, name)) for name in _COUNTERS},
    )


def _aborted(
    pair: _Pair, departures: _Departures, finished: dict[str, int], flags: list[str]
) -> int | None:
    """Aborts of one engine: counted, or estimated from the HTTP side, or None where nobody knows.

    The Python front end has an abort counter that never moves for clients that leave, so 0 there proves
    nothing (vLLM issue 31503).
    """
    if departures.counts_at_start:
        return finished.get("abort", 0)
    if departures.aborted is None:
        return finished.get("abort") or None
    if departures.is_one_engine or departures.aborted == 0:
        return max(departures.aborted, finished.get("abort", 0))
    flags.append("aborts_not_attributed")  # the page counts them for all its engines together
    return None


def _arrivals(
    pair: _Pair, departures: _Departures, left: int, flags: list[str], gauges_come_late: bool
) -> int | None:
    """Requests that reached the engine: those that left and the growth of those inside, never below 0.

    The larger of the HTTP count and the engine's own is taken: the first misses all but one sequence of
    a request, the second misses aborts.
    """
    new, old = pair.after, pair.before
    if departures.counts_at_start and departures.is_one_engine and departures.http is not None:
        return departures.http
    if new.running is None or new.waiting is None:
        return None
    inside = new.running + new.waiting
    if not pair.restarted:
        if (old.running is None or old.waiting is None) and not (gauges_come_late and pair.zero_before):
            return None
        inside -= (old.running or 0) + (old.waiting or 0)  # a gauge not written yet: nothing has run
    if departures.http is not None and departures.is_one_engine and not departures.counts_at_start:
        left = max(left, departures.http)
    elif departures.http is None or departures.aborted:
        flags.append("arrivals_lower_bound")
    if left + inside < 0:
        flags.append("arrivals_clamped")
    return max(0, left + inside)


def _histogram(pair: _Pair, name: str) -> tuple[Histogram | None, str]:
    """Return the increments of one histogram, or None and why: its bounds changed, or a bucket fell."""
    new, old = pair.after.histograms.get(name), pair.before.histograms.get(name)
    if new is None:
        return None, ""
    if pair.restarted:
        return new, ""
    if old is None:
        return (new, "") if pair.zero_before else (None, "")
    if old.edges != new.edges:
        return None, f"histogram_edges_changed:{name}"
    counts = tuple(map(sub, new.counts, old.counts))  # as many: one for each bound and one above
    if min(counts) < 0:
        return None, f"histogram_bucket_fell:{name}"
    total = None if old.sum is None or new.sum is None else new.sum - old.sum
    return Histogram(edges=new.edges, counts=counts, sum=total), ""
