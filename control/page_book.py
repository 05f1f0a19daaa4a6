"""From pages to samples: remembers each node's last page, so that a new one yields increments.

Times are seconds on the monotonic clock, from start of request to start of request, but for `unix_s`.
Pure: no clock and no I/O of its own. Prevents: an increment spread over time nobody covered, one taken
between pages of two processes, and a frozen engine that looks calm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from control.rounds import EngineSample
from fleet.data_quality import SourceWatch, page_findings
from fleet.errors import NotMeasured
from fleet.lifesigns import Life
from fleet.quality_kinds import Finding
from fleet.readings import EngineReading, EngineWindow, PageReading
from fleet.windows import window_and_next

#: More periods than this between two pages: the increment is right, its place in time is not.
MAX_GAP_PERIODS = 3.0
_LIFE_FLAGS = {Life.FROZEN: ("frozen",), Life.STUCK: ("stalled",)}


@dataclass(slots=True)
class _Seen:
    """The last page of one node, when it was asked for, and what the pages before it told."""

    url: str
    page: PageReading
    started_s: float
    watch: SourceWatch = field(default_factory=SourceWatch)


@dataclass(frozen=True, slots=True)
class Taken:
    """What a page gave: one sample an engine, and what is wrong with the page."""

    samples: tuple[EngineSample, ...]
    findings: tuple[Finding, ...]


class PageBook:
    """The last page of every node. Owned by one event loop."""

    def __init__(self, *, period_s: float) -> None:
        self._period_s = period_s
        self._seen: dict[str, _Seen] = {}

    def keep_only(self, urls: Mapping[str, str]) -> None:
        """Forget nodes that are gone or moved to another address. `urls` is by node."""
        self._seen = {name: seen for name, seen in self._seen.items() if urls.get(name) == seen.url}

    def asked_s(self, node: str) -> float | None:
        """Return when the last page of a node was asked for; None before its first."""
        seen = self._seen.get(node)
        return None if seen is None else seen.started_s

    def remember(self, node: str, url: str, page: PageReading, started_s: float) -> None:
        """Keep a page without engines: an idle old engine's, whose counters stand at 0."""
        seen = self._seen.get(node)
        if seen is None:
            self._seen[node] = _Seen(url, page, started_s)
        else:
            seen.page, seen.started_s = page, started_s

    def take(
        self,
        node: str,
        url: str,
        page: PageReading,
        started_s: float,
        *,
        unix_s: float,
        content_type: str | None = None,
    ) -> Taken:
        """Return the samples of a page with engines, asked for at `started_s` (`unix_s` by the wall)."""
        names = unique_names(page.engines)
        seen = self._seen.get(node)
        watch = SourceWatch() if seen is None else seen.watch
        signs = watch.take(names, page, started_s, unix_s)
        if signs.is_other_process:
            windows, kept, covered_s = _first_sights(page, ("two_writers",)), page, None
        else:
            windows, kept, covered_s = self._windows(seen, page, started_s)
        self._seen[node] = _Seen(url, kept, started_s, watch)
        samples = tuple(
            EngineSample(name, replace(w, flags=(*w.flags, *_LIFE_FLAGS.get(life, ()))), covered_s)
            for name, w, life in zip(names, windows, signs.lives, strict=True)
        )
        found = page_findings(page, content_type) + watch.findings(names, page, windows, signs)
        return Taken(samples, tuple(found))

    def _windows(
        self, seen: _Seen | None, page: PageReading, started_s: float
    ) -> tuple[tuple[EngineWindow, ...], PageReading, float | None]:
        """Return the windows, the page to hold the next one against, and the seconds covered."""
        if seen is None or started_s <= seen.started_s:
            return _first_sights(page, ()), page, None
        seconds = started_s - seen.started_s
        if seconds > (MAX_GAP_PERIODS + 0.5) * self._period_s:
            return _first_sights(page, ("gap",)), page, None
        try:
            return *window_and_next(seen.page, page, seconds), seconds
        except NotMeasured:
            return _first_sights(page, ()), page, None


def unique_names(engines: Sequence[EngineReading]) -> list[str]:
    """Return a name for each engine; the model is added where two models share an engine label."""
    labels = [engine.engine for engine in engines]
    return [
        f"{engine.engine}/{engine.model}" if labels.count(engine.engine) > 1 else engine.engine
        for engine in engines
    ]


def _first_sights(page: PageReading, flags: tuple[str, ...]) -> tuple[EngineWindow, ...]:
    """Return windows that know the gauges only: nothing was seen before."""
    return tuple(
        EngineWindow(
            engine=e.engine,
            model=e.model,
            length_s=0.0,
            restarted=False,
            arrivals=None,
            completed=None,
            errors=None,
            aborted=None,
            prompt_tokens=None,
            prompt_tokens_computed=None,
            generation_tokens=None,
            preemptions=None,
            prefix_cache_hits=None,
            prefix_cache_queries=None,
            running=e.running,
            waiting=e.waiting,
            waiting_capacity=e.waiting_capacity,
            kv_used_ratio=e.kv_used_ratio,
            kv_capacity_tokens=e.kv_capacity_tokens,
            histograms={},
            flags=(*e.flags, *flags),
        )
        for e in page.engines
    )
