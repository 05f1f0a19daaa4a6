"""One round of metrics reading: every node and gateway asked once, each isolated from the others.

Owns: when each target is asked, and what becomes of an answer. Durations are seconds on the monotonic
clock; every result of a round carries the round's one wall-clock stamp. Prevents: one slow node delaying
the rest, and a failure recorded as zero.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

import aiohttp

from control.fetch import FetchedPage, FetchFailed, PageCaps, Wire, fetch_page, shown_url
from control.freshness import stale_after_s
from control.gateway_scrape import GatewayPage, gateway_window, read_gateway_page
from control.node_pages import engine_page, gpu_page, joined, page_key
from control.own_metrics import ControlMetrics
from control.page_book import MAX_GAP_PERIODS, PageBook
from control.page_room import MIB, PageRoom, Place
from control.promsource_round import Found, SourceReader, Wanted
from control.rounds import EngineSample, FurtherPage, GatewayResult, NodeResult, PageResult, Round, Target
from fleet.clock import Clock
from fleet.data_quality import bounded, remark_findings
from fleet.dialects import read_page
from fleet.quality_kinds import Finding, Kind
from fleet.readings import PageReading, PageState, Reason

__all__ = ["EngineSample", "GatewayResult", "NodeResult", "Round", "Scraper", "Target"]

#: Targets started together; groups follow each other over the first part of the period.
GROUP = 20
#: Bodies larger than this are read in a thread, so that a huge page does not hold up the loop.
INLINE_BYTES = 256 * 1024
#: A thousand tenants in three tiers are 20 MB of page.
GATEWAY_CAPS = PageCaps(wire_bytes=32 * MIB, decoded_bytes=32 * MIB)
_RETRY_MIN_S = 0.2
#: A page that takes more than this share of its deadline is slow; a clock further off than this is wrong.
SLOW_SHARE = 0.5
SKEW_S = 5.0
_REASONS = {
    PageState.NO_ENGINE_SERIES: Reason.NO_ENGINE_SERIES,
    PageState.ROUTER: Reason.ROUTER,
    PageState.NOT_METRICS: Reason.NOT_METRICS,
    PageState.TOO_LARGE: Reason.TOO_LARGE,
}


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
        connections: int = 100,
    ) -> None:
        """Ask over at most `connections` connections of its own, and with `http` where there is TLS."""
        self._http = http
        self._wire = Wire(connections=connections)
        self._clock = clock
        self._metrics = metrics
        self.period_s = period_s
        self._deadline_s = deadline_s
        self._book = PageBook(period_s=period_s)
        self._room = PageRoom()
        self.sources = SourceReader(http, clock)
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
            direct = [target for target in nodes if not target.source]
            node_tasks = [
                tasks.create_task(self._node(target, delay))
                for target, delay in zip(direct, self._delays(len(direct)), strict=True)
            ]
            sourced = tasks.create_task(self._sourced([target for target in nodes if target.source]))
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
            nodes=(*(task.result() for task in node_tasks), *sourced.result()),
            gateways=tuple(task.result() for task in gateway_tasks),
        )

    def _delays(self, count: int) -> list[float]:
        """Spread groups over what the period leaves after the deadline, at most half of it."""
        groups = -(-count // GROUP)
        spread_s = max(0.0, min(0.5 * self.period_s, 0.95 * self.period_s - self._deadline_s))
        return [spread_s * (i // GROUP) / max(groups, 1) for i in range(count)]

    def _forget(self, nodes: Sequence[Target], gateways: Sequence[Target]) -> None:
        """Drop what is known of targets that are gone or moved to another address."""
        pages = {page_key(t.name, page.url): page.url for t in nodes for page in t.pages}
        self._book.keep_only({target.name: target.url for target in nodes} | pages)
        urls = {target.name: target.url for target in gateways}
        self._gateway_seen = {k: v for k, v in self._gateway_seen.items() if urls.get(k) == v[0]}

    async def _page(self, url: str) -> tuple[FetchedPage, PageReading]:
        """Get a page and read it; a large one as there is room. Its body is gone afterwards."""
        async with self._room.place() as place:
            fetched = await self._fetch(url, place)
            read = partial(
                read_page, fetched.body, source=shown_url(url), content_type=fetched.content_type
            )
            if len(fetched.body) <= INLINE_BYTES:
                page = read()
            else:
                async with self._room.reading():
                    page = await asyncio.to_thread(read)
        return replace(fetched, body=b""), page

    async def _fetch(self, url: str, place: Place, caps: PageCaps | None = None) -> FetchedPage:
        """Get a page; once more if the connection broke and there is time left."""
        started_s = self._clock.monotonic_s()
        ask = partial(
            fetch_page, self._http, url, clock=self._clock, caps=caps, place=place, wire=self._wire
        )
        try:
            return await ask(deadline_s=self._deadline_s)
        except FetchFailed as problem:
            left_s = self._deadline_s - (self._clock.monotonic_s() - started_s)
            if problem.reason is not Reason.UNREACHABLE or left_s < _RETRY_MIN_S:
                raise
            self._metrics.scrape_retries.inc()
            return await ask(deadline_s=left_s)

    async def _node(self, target: Target, delay_s: float) -> NodeResult:
        await asyncio.sleep(delay_s)
        asked_s = self._clock.monotonic_s()
        if target.pages:
            async with asyncio.TaskGroup() as tasks:
                own = tasks.create_task(self._own_page(target, asked_s))
                further = [tasks.create_task(self._further_page(target, page)) for page in target.pages]
            result = joined(target, own.result(), [task.result() for task in further])
        else:
            result = await self._own_page(target, asked_s)
        self._metrics.scrapes.labels(result="ok" if result.reason is None else result.reason.value).inc()
        self._metrics.scrape_seconds.observe(self._since(asked_s))
        return result

    async def _own_page(self, target: Target, asked_s: float) -> NodeResult:
        try:
            fetched, page = await self._page(target.url)
        except FetchFailed as problem:
            lost = PageResult(target.url, "engine", None, problem.reason, problem.detail)
            waited_s = self._since(asked_s)
            return NodeResult(
                target.name, target.pool, waited_s, (), problem.reason, problem.detail, pages=(lost,)
            )
        return self._accept(target, page, fetched)

    async def _further_page(self, target: Target, wanted: FurtherPage) -> PageResult:
        try:
            fetched, page = await self._page(wanted.url)
        except FetchFailed as problem:
            return PageResult(wanted.url, wanted.kind, None, problem.reason, problem.detail)
        if wanted.kind == "gpu":
            return gpu_page(wanted, page)
        reason = _REASONS.get(page.state)
        if reason is not None:
            return PageResult(wanted.url, "engine", page.dialect, reason, page.hint)
        taken = self._book.take(
            page_key(target.name, wanted.url),
            wanted.url,
            page,
            fetched.started_s,
            unix_s=self._clock.now().timestamp(),
            content_type=fetched.content_type,
        )
        return engine_page(target.url, wanted.url, page, taken.samples, taken.findings)

    async def _sourced(self, targets: Sequence[Target]) -> list[NodeResult]:
        """Read the nodes that another server scrapes, all of them together."""
        if not targets:
            return []
        wanted = [Wanted(target.name, target.source, target.instance) for target in targets]
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(
                self.sources.read(wanted, period_s=self.period_s, deadline_s=self._deadline_s)
            )
            further = [
                [tasks.create_task(self._further_page(target, page)) for page in target.pages]
                for target in targets
            ]
        found = reading.result()
        results: list[NodeResult] = []
        for target, parts in zip(targets, further, strict=True):
            result = self._accept_sourced(target, found[target.name])
            results.append(joined(target, result, [part.result() for part in parts]) if parts else result)
        for result in results:
            self._metrics.scrapes.labels(result="ok" if result.reason is None else result.reason).inc()
        return results

    def _accept_sourced(self, target: Target, found: Found) -> NodeResult:
        """Take a page by the time its source scraped it. One taken before is no news, and no failure."""
        if isinstance(found, FetchFailed):
            return _lost(target, found.reason, found.detail)
        age_s = self._clock.now().timestamp() - found.at_s
        limit_s = stale_after_s(max(self.period_s, found.interval_s or 0.0)) + self.sources.settle_s
        if age_s > limit_s:
            detail = f"the newest page at {target.source} is {age_s:.0f} s old"
            return _lost(target, Reason.NOT_IN_SOURCE, detail)
        if self._book.asked_s(target.name) == found.at_s:
            return NodeResult(target.name, target.pool, None, interval_s=found.interval_s)
        fetched = FetchedPage(b"", 200, None, found.at_s, 0.0)
        taken = self._accept(target, found.page, fetched)
        return replace(taken, fetch_s=None, interval_s=found.interval_s)

    def _since(self, started_s: float) -> float:
        return self._clock.monotonic_s() - started_s

    def _accept(self, target: Target, page: PageReading, fetched: FetchedPage) -> NodeResult:
        reason = _REASONS.get(page.state)
        if reason is not None:
            if page.state is PageState.NO_ENGINE_SERIES:
                self._book.remember(target.name, target.url, page, fetched.started_s)
            seen = PageResult(target.url, "engine", page.dialect, reason, page.hint, gpus=page.gpus)
            return NodeResult(
                target.name, target.pool, fetched.duration_s, (), reason, page.hint, pages=(seen,)
            )
        now_s = self._clock.now().timestamp()
        taken = self._book.take(
            target.name,
            target.url,
            page,
            fetched.started_s,
            unix_s=now_s,
            content_type=fetched.content_type,
        )
        found = bounded([*taken.findings, *self._manners(fetched)])
        seen = engine_page(None, target.url, page, (), ())
        return NodeResult(
            target.name, target.pool, fetched.duration_s, taken.samples, findings=found, pages=(seen,)
        )

    def _manners(self, fetched: FetchedPage) -> list[Finding]:
        """Return what is wrong with how a page came: late, or with another idea of the time."""
        found: list[Finding] = []
        if fetched.duration_s > SLOW_SHARE * self._deadline_s:
            said = f"took {fetched.duration_s:.1f} s of the {self._deadline_s:g} s it may take"
            found.append(Finding(Kind.SLOW_PAGE, detail=said))
        if fetched.ahead_s is not None and abs(fetched.ahead_s) > SKEW_S:
            way = "ahead of" if fetched.ahead_s > 0 else "behind"
            found.append(Finding(Kind.CLOCK_SKEW, detail=f"{abs(fetched.ahead_s):.0f} s {way} our clock"))
        return found

    async def _gateway(self, target: Target) -> GatewayResult:
        try:
            async with self._room.place() as place:
                fetched = await self._fetch(target.url, place, GATEWAY_CAPS)
                async with self._room.reading():
                    page = await asyncio.to_thread(read_gateway_page, fetched.body)
        except FetchFailed as problem:
            self._metrics.gateway_scrapes.labels(result=problem.reason.value).inc()
            return GatewayResult(target.name, None, problem.reason, problem.detail)
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
        found = bounded([*remark_findings(page.dropped), *self._manners(fetched)])
        flows = tuple(gateway_window(before, page, seconds))
        return GatewayResult(target.name, flows, findings=found, oldest_wait_s=page.oldest_wait_s)


def _lost(target: Target, reason: Reason, detail: str) -> NodeResult:
    """A sourced node whose own page could not be had: nobody knows how long it would have taken."""
    lost = PageResult(target.url, "engine", None, reason, detail)
    return NodeResult(target.name, target.pool, None, (), reason, detail, pages=(lost,))
