"""Reads one round's pages of many nodes from Prometheus-compatible servers instead of from the nodes.

Two questions a round and source: when was each target scraped (`PULSE`), then the raw samples of exactly
those scrapes. Times are Unix seconds of the server's scrapes; ages count from them. Prevents: a page read
while it is being written, one broken source silencing the nodes of another, and a stopped server whose
last values look like the present.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import aiohttp

from control.fetch import FetchFailed
from control.promsource import PromClient, SourceSettings, ask_all
from fleet.clock import Clock
from fleet.dialects import read_page
from fleet.errors import FleetError
from fleet.promql import (
    PULSE,
    UNWANTED,
    Answer,
    PageParts,
    Pulse,
    best,
    matcher,
    pulses,
    selector,
    unseen,
    wanted_names,
)
from fleet.readings import PageReading, Reason

T = TypeVar("T")

#: A scrape this young may not be whole yet: VictoriaMetrics shows the series of a page as they come.
SETTLE_S = 2.0
#: How far back to look for a target's last scrape, in rounds, and at least.
LOOKBACK_ROUNDS, LOOKBACK_MIN_S = 6, 120.0
#: Nodes asked about in one query of pulses, and of pages.
PULSE_NODES, PAGE_NODES = 200, 25


@dataclass(frozen=True, slots=True)
class Wanted:
    """A node and the instance a source knows it by."""

    node: str
    source: str
    instance: str


@dataclass(frozen=True, slots=True)
class SourcedPage:
    """One node's newest page: when the source scraped it, and how often it does."""

    page: PageReading
    at_s: float  # Unix seconds
    interval_s: float | None


Found = SourcedPage | FetchFailed


class SourceReader:
    """The clients of all sources of this process, in one event loop. `follow` tells which there are."""

    def __init__(self, http: aiohttp.ClientSession, clock: Clock, *, settle_s: float = SETTLE_S) -> None:
        self._http = http
        self._clock = clock
        self.settle_s = settle_s
        self._clients: dict[str, PromClient] = {}

    def follow(self, sources: Iterable[SourceSettings]) -> None:
        """Know exactly these sources from now on."""
        self._clients = {s.name: PromClient(self._http, self._clock, s) for s in sources}

    async def read(
        self, wanted: Sequence[Wanted], *, period_s: float, deadline_s: float
    ) -> dict[str, Found]:
        """Return each node's newest page, or why there is none. Never raises for what a source does."""
        by_source: dict[str, list[Wanted]] = {}
        for one in wanted:
            by_source.setdefault(one.source, []).append(one)
        parts = await asyncio.gather(
            *(self._source(name, nodes, period_s, deadline_s) for name, nodes in by_source.items())
        )
        return {node: found for part in parts for node, found in part.items()}

    async def _source(
        self, name: str, wanted: Sequence[Wanted], period_s: float, deadline_s: float
    ) -> dict[str, Found]:
        client = self._clients.get(name)
        if client is None:
            gone = FetchFailed(Reason.SOURCE_DOWN, f"there is no source {name}")
            return {one.node: gone for one in wanted}
        until_s = self._clock.monotonic_s() + deadline_s
        lookback_s = max(LOOKBACK_ROUNDS * period_s, LOOKBACK_MIN_S)
        now_s = self._clock.now().timestamp() - self.settle_s
        seen, failed = await self._pulses(client, wanted, now_s, lookback_s, deadline_s)
        found: dict[str, Found] = dict(failed)
        alive: list[tuple[Wanted, Pulse]] = []
        for one in wanted:
            if one.node in failed:
                continue
            problem = _absence(seen.get(one.instance), lookback_s)
            if problem is None:
                alive.append((one, best(seen[one.instance])))
            else:
                found[one.node] = problem
        left_s = max(0.1, until_s - self._clock.monotonic_s())
        return found | await self._pages(client, alive, left_s)

    async def _pulses(
        self,
        client: PromClient,
        wanted: Sequence[Wanted],
        now_s: float,
        lookback_s: float,
        deadline_s: float,
    ) -> tuple[dict[str, list[Pulse]], dict[str, Found]]:
        """Return how each instance was scraped, and the failure of nodes that could not be asked about."""
        label = client.settings.instance_label
        chunks = _chunks(wanted, PULSE_NODES)
        names = matcher("__name__", PULSE)
        queries = [
            (
                selector(
                    [
                        names,
                        unseen(round(now_s * 1000)),
                        *client.settings.matchers,
                        matcher(label, [one.instance for one in chunk]),
                    ],
                    seconds=lookback_s,
                ),
                now_s,
            )
            for chunk in chunks
        ]
        seen: dict[str, list[Pulse]] = {}
        failed: dict[str, Found] = {}
        for chunk, answer in zip(
            chunks, await ask_all(client, queries, deadline_s=deadline_s), strict=True
        ):
            if isinstance(answer, FleetError):
                failed |= {one.node: _failure(answer) for one in chunk}
            else:
                seen |= pulses(answer, label)
        return seen, failed

    async def _pages(
        self, client: PromClient, alive: Sequence[tuple[Wanted, Pulse]], deadline_s: float
    ) -> dict[str, Found]:
        chunks = _chunks(alive, PAGE_NODES)
        answers = await ask_all(
            client, [_page_query(client.settings, chunk) for chunk in chunks], deadline_s=deadline_s
        )
        found: dict[str, Found] = {}
        for chunk, answer in zip(chunks, answers, strict=True):
            if isinstance(answer, FleetError):
                found |= {one.node: _failure(answer) for one, _ in chunk}
            else:
                found |= await asyncio.to_thread(_cut, client.settings, chunk, answer)
        return found


def _page_query(
    settings: SourceSettings, chunk: Sequence[tuple[Wanted, Pulse]]
) -> tuple[str, float | None]:
    """Ask for the scrapes of these targets: the range ends at the newest and holds the oldest."""
    times = [pulse.newest_ms or 0 for _, pulse in chunk]
    instances = matcher(settings.instance_label, [one.instance for one, _ in chunk])
    # ranges are left-open since Prometheus 3: one millisecond before the oldest
    seconds = (max(times) - min(times) + 1) / 1000
    names = [wanted_names(), UNWANTED, unseen(max(times))]
    query = selector([*names, *settings.matchers, instances], seconds=seconds)
    return query, max(times) / 1000


def _cut(
    settings: SourceSettings, chunk: Sequence[tuple[Wanted, Pulse]], answer: Answer
) -> dict[str, Found]:
    """Cut an answer into the pages of its nodes and read them."""
    by_instance: dict[str, PageParts] = {one.instance: PageParts() for one, _ in chunk}
    labels = {one.instance: pulse.labels for one, pulse in chunk}
    for series in answer.series:
        instance = series.labels.get(settings.instance_label, "")
        if instance in by_instance:
            by_instance[instance].add(series, labels[instance])
    found: dict[str, Found] = {}
    for one, pulse in chunk:
        at_ms = pulse.newest_ms or 0
        page = sourced_page(settings.name, one.instance, by_instance[one.instance], at_ms, answer.warnings)
        found[one.node] = SourcedPage(page, at_ms / 1000, pulse.interval_s)
    return found


def sourced_page(
    source: str, instance: str, parts: PageParts, at_ms: int, warnings: Sequence[str] = ()
) -> PageReading:
    """Return the reading of the scrape at `at_ms`. A warned answer may lack series: none counts from 0."""
    page = read_page(parts.page(at_ms), source=f"{source}:{instance}", content_type="text/plain")
    remarks = tuple(f"the source warns: {text}" for text in warnings)
    return replace(page, dropped=(*page.dropped, *remarks))


def _absence(seen: Sequence[Pulse] | None, lookback_s: float) -> FetchFailed | None:
    """Return why a target has no page to read, or None if it has one."""
    if not seen:
        return FetchFailed(
            Reason.NOT_IN_SOURCE,
            f"the source has no sample of it in the last {lookback_s:.0f} s",
            hint="Does it scrape this node, and under this instance label? See `rhodeck prom targets`",
        )
    newest = best(seen)
    if all(pulse.is_down for pulse in seen):
        return FetchFailed(Reason.TARGET_DOWN, "the source cannot scrape it: up is 0")
    if newest.newest_ms is None:
        return FetchFailed(Reason.TARGET_DOWN, "the source got no page of it lately")
    return None


def _failure(problem: FleetError) -> FetchFailed:
    return FetchFailed(Reason.SOURCE_DOWN, problem.message, hint=problem.hint)


def _chunks(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[at : at + size] for at in range(0, len(items), size)]
