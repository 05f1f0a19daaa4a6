"""One round of metrics reading: every node and gateway asked once, each isolated from the others.

Owns: the previous page of each target, so that a round yields increments. Durations are seconds on the
monotonic clock, from start of request to start of request; every result of a round carries the round's
one wall-clock stamp. Prevents: one slow node delaying the rest, an increment spread over time nobody
covered, a frozen engine that looks calm, and a failure recorded as zero.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import aiohttp

from control.fetch import FetchedPage, FetchFailed, fetch_page, shown_url
from control.gateway_scrape import FlowWindow, GatewayPage, gateway_window, read_gateway_page
from control.own_metrics import ControlMetrics
from fleet.clock import Clock
from fleet.dialects import read_page
from fleet.errors import NotMeasured
from fleet.lifesigns import counts
from fleet.readings import EngineReading, EngineWindow, PageReading, PageState, Reason
from fleet.windows import window

#: Targets started together; groups follow each other over the first part of the period.
GROUP = 20
#: Bodies larger than this are read in a thread, so that a huge page does not hold up the loop.
INLINE_BYTES = 256 * 1024
#: More periods than this between two pages: the increment is right, its place in time is not.
MAX_GAP_PERIODS = 3.0
#: An engine with work whose page stood still for more than two pages and this long is frozen.
FROZEN_PAGES = 3
FROZEN_AFTER_S = 15.0
_RETRY_MIN_S = 0.2
_REASONS = {
    PageState.NO_ENGINE_SERIES: Reason.NO_ENGINE_SERIES,
    PageState.ROUTER: Reason.ROUTER,
    PageState.NOT_METRICS: Reason.NOT_METRICS,
    PageState.TOO_LARGE: Reason.TOO_LARGE,
}


@dataclass(frozen=True, slots=True)
class Target:
    """A node or gateway to ask."""

    name: str
    url: str  # of the metrics page
    pool: str = ""


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One engine in one round. Without `covered_s` only the gauges are known."""

    engine: str  # unique on its node
    window: EngineWindow
    covered_s: float | None


@dataclass(frozen=True, slots=True)
class NodeResult:
    """What one node gave: samples, or the reason why not."""

    node: str
    pool: str
    fetch_s: float | None
    samples: tuple[EngineSample, ...] = ()
    reason: Reason | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class GatewayResult:
    """What one gateway gave. `flows` is None when it could not be read."""

    gateway: str
    flows: tuple[FlowWindow, ...] | None
    reason: Reason | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Round:
    """One round, ready to be stored and assessed."""

    at: datetime
    period_s: float
    duration_s: float
    lag_s: float
    nodes: tuple[NodeResult, ...]
    gateways: tuple[GatewayResult, ...] = ()

    @property
    def nodes_sampled(self) -> int:
        return sum(bool(node.samples) for node in self.nodes)


@dataclass(slots=True)
class _Still:
    """How long an engine's page has not moved."""

    signature: tuple[object, ...]
    pages: int
    since_s: float


@dataclass(slots=True)
class _Seen:
    """The last page of one node and when it was asked for."""

    url: str
    page: PageReading
    started_s: float


class Scraper:
    """Asks nodes and gateways and remembers their last pages. Owned by one event loop."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        clock: Clock,
        metrics: ControlMetrics,
        *,
        period_s: float,
        deadline_s: float,
    ) -> None:
        self._http = http
        self._clock = clock
        self._metrics = metrics
        self.period_s = period_s
        self._deadline_s = deadline_s
        self._seen: dict[str, _Seen] = {}
        self._still: dict[tuple[str, str], _Still] = {}
        self._gateway_seen: dict[str, tuple[str, GatewayPage, float]] = {}

    async def run(
        self, nodes: Sequence[Target], gateways: Sequence[Target], at: datetime, *, lag_s: float = 0.0
    ) -> Round:
        """Ask every target once and return the round stamped `at`. Takes less than the period.

        Never raises for what a target does: that becomes its reason.
        """
        started_s = self._clock.monotonic_s()
        self._forget(nodes, gateways)
        async with asyncio.TaskGroup() as tasks:
            delays = self._delays(len(nodes))
            node_tasks = [
                tasks.create_task(self._node(target, delay))
                for target, delay in zip(nodes, delays, strict=True)
            ]
            gateway_tasks = [tasks.create_task(self._gateway(target)) for target in gateways]
        duration_s = self._clock.monotonic_s() - started_s
        self._metrics.rounds.inc()
        self._metrics.round_seconds.observe(duration_s)
        self._metrics.round_lag_seconds.set(lag_s)
        return Round(
            at=at,
            period_s=self.period_s,
            duration_s=duration_s,
            lag_s=lag_s,
            nodes=tuple(task.result() for task in node_tasks),
            gateways=tuple(task.result() for task in gateway_tasks),
        )

    def _delays(self, count: int) -> list[float]:
        """Spread groups over what the period leaves after the deadline, at most half of it."""
        groups = -(-count // GROUP)
        spread_s = max(0.0, min(0.5 * self.period_s, 0.95 * self.period_s - self._deadline_s))
        return [spread_s * (i // GROUP) / max(groups, 1) for i in range(count)]

    def _forget(self, nodes: Sequence[Target], gateways: Sequence[Target]) -> None:
        """Drop what is known of targets that are gone or moved to another address."""
        urls = {target.name: target.url for target in nodes}
        self._seen = {name: seen for name, seen in self._seen.items() if urls.get(name) == seen.url}
        self._still = {key: still for key, still in self._still.items() if key[0] in self._seen}
        urls = {target.name: target.url for target in gateways}
        self._gateway_seen = {k: v for k, v in self._gateway_seen.items() if urls.get(k) == v[0]}

    async def _fetch(self, url: str) -> FetchedPage:
        """Get a page; once more if the connection broke and there is time left."""
        started_s = self._clock.monotonic_s()
        try:
            return await fetch_page(self._http, url, clock=self._clock, deadline_s=self._deadline_s)
        except FetchFailed as problem:
            left_s = self._deadline_s - (self._clock.monotonic_s() - started_s)
            if problem.reason is not Reason.UNREACHABLE or left_s < _RETRY_MIN_S:
                raise
            self._metrics.scrape_retries.inc()
            return await fetch_page(self._http, url, clock=self._clock, deadline_s=left_s)

    async def _node(self, target: Target, delay_s: float) -> NodeResult:
        await asyncio.sleep(delay_s)
        asked_s = self._clock.monotonic_s()
        try:
            fetched = await self._fetch(target.url)
            page = await _read(fetched, target.url)
        except FetchFailed as problem:
            result = NodeResult(
                target.name, target.pool, self._since(asked_s), (), problem.reason, problem.detail
            )
        else:
            result = self._accept(target, page, fetched)
        self._metrics.scrapes.labels(result="ok" if result.reason is None else result.reason.value).inc()
        self._metrics.scrape_seconds.observe(self._since(asked_s))
        return result

    def _since(self, started_s: float) -> float:
        return self._clock.monotonic_s() - started_s

    def _accept(self, target: Target, page: PageReading, fetched: FetchedPage) -> NodeResult:
        reason = _REASONS.get(page.state)
        if reason is not None:
            if page.state is PageState.NO_ENGINE_SERIES:  # an idle old engine: its counters stand at 0
                self._seen[target.name] = _Seen(target.url, page, fetched.started_s)
            return NodeResult(target.name, target.pool, fetched.duration_s, (), reason, page.hint)
        samples = self._samples(target, page, fetched.started_s)
        self._seen[target.name] = _Seen(target.url, page, fetched.started_s)
        return NodeResult(target.name, target.pool, fetched.duration_s, samples)

    def _samples(self, target: Target, page: PageReading, started_s: float) -> tuple[EngineSample, ...]:
        names = _unique_names(page.engines)
        stuck = [
            self._stuck(target.name, name, engine, started_s)
            for name, engine in zip(names, page.engines, strict=True)
        ]
        windows, covered_s = self._windows(target.name, page, started_s)
        return tuple(
            EngineSample(name, replace(w, flags=(*w.flags, *remarks)), covered_s)
            for name, w, remarks in zip(names, windows, stuck, strict=True)
        )

    def _windows(
        self, node: str, page: PageReading, started_s: float
    ) -> tuple[tuple[EngineWindow, ...], float | None]:
        seen = self._seen.get(node)
        if seen is None or started_s <= seen.started_s:
            return _first_sights(page, ()), None
        seconds = started_s - seen.started_s
        if seconds > MAX_GAP_PERIODS * self.period_s + 0.5 * self.period_s:
            return _first_sights(page, ("gap",)), None
        try:
            return window(seen.page, page, seconds), seconds
        except NotMeasured:
            return _first_sights(page, ()), None

    def _stuck(self, node: str, name: str, engine: EngineReading, now_s: float) -> tuple[str, ...]:
        """Return ("frozen",) or ("stalled",) when an engine with work has not moved for a while."""
        signature = _signature(engine)
        still = self._still.get((node, name))
        if still is None or still.signature != signature:
            self._still[node, name] = _Still(signature, 1, now_s)
            return ()
        still.pages += 1
        if still.pages < FROZEN_PAGES or now_s - still.since_s < FROZEN_AFTER_S:
            return ()
        if engine.running:
            return ("frozen",)
        return ("stalled",) if engine.waiting else ()

    async def _gateway(self, target: Target) -> GatewayResult:
        try:
            fetched = await self._fetch(target.url)
        except FetchFailed as problem:
            self._metrics.gateway_scrapes.labels(result=problem.reason.value).inc()
            return GatewayResult(target.name, None, problem.reason, problem.detail)
        page = await asyncio.to_thread(read_gateway_page, fetched.body)
        if page is None:
            self._metrics.gateway_scrapes.labels(result=Reason.NOT_METRICS.value).inc()
            return GatewayResult(target.name, None, Reason.NOT_METRICS, "the page is no gateway's")
        before, seconds = None, 0.0
        if target.name in self._gateway_seen:
            _, before, before_s = self._gateway_seen[target.name]
            seconds = fetched.started_s - before_s
            if not 0 < seconds <= (MAX_GAP_PERIODS + 0.5) * self.period_s:
                before = None
        self._gateway_seen[target.name] = (target.url, page, fetched.started_s)
        self._metrics.gateway_scrapes.labels(result="ok").inc()
        return GatewayResult(target.name, tuple(gateway_window(before, page, seconds)))


async def _read(fetched: FetchedPage, url: str) -> PageReading:
    source = shown_url(url)
    if len(fetched.body) <= INLINE_BYTES:
        return read_page(fetched.body, source=source, content_type=fetched.content_type)
    return await asyncio.to_thread(
        read_page, fetched.body, source=source, content_type=fetched.content_type
    )


def _unique_names(engines: Sequence[EngineReading]) -> list[str]:
    """Return a name for each engine; the model is added where two models share an engine label."""
    labels = [engine.engine for engine in engines]
    return [
        f"{engine.engine}/{engine.model}" if labels.count(engine.engine) > 1 else engine.engine
        for engine in engines
    ]


def _signature(engine: EngineReading) -> tuple[object, ...]:
    """Return everything on a page that moves while an engine works, gauges included."""
    return engine.running, engine.waiting, engine.kv_used_ratio, counts(engine)


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
