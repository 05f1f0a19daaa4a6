"""Real Prometheus and VictoriaMetrics give the pages the nodes gave, and the same numbers within 1 %."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from control.fetch import open_session
from control.fleet_facts import FleetFacts, Node, Pool
from control.own_metrics import ControlMetrics
from control.promsource import SourceSettings
from control.promsource_round import Found, SourcedPage, SourceReader, Wanted
from control.rounds import Round
from control.scrape import Scraper
from fleet.clock import SystemClock
from fleet.dialects import read_page
from fleet.engine_profile import EngineProfile
from fleet.histograms import merge, quantile
from fleet.readings import Histogram, PageReading, PageState
from simfleet.server import SimFleet
from tests.prom_servers import PromServer, prometheus, scrape_config, static_job, victoria_metrics
from tests.small_node import DATA, small_nodes

CLOCK = SystemClock()
PAGES = sorted(DATA.glob("*.prom.txt"))
#: VictoriaMetrics keeps 30 labels of a series unless told; a cache configuration has 36.
LABELS = 64
#: Wait for a state, never for a time: the deadline only ends a hang.
PATIENCE_S = 120


@contextmanager
def both(folder: Path, config: str) -> Generator[dict[str, PromServer]]:
    with (
        prometheus(folder, config) as one,
        victoria_metrics(folder, config, f"-maxLabelsPerTimeseries={LABELS}") as other,
    ):
        yield {"prometheus": one, "victoria": other}


@asynccontextmanager
async def started(folder: Path, config: str) -> AsyncGenerator[dict[str, PromServer]]:
    """Both servers, started and stopped beside the loop."""
    servers = both(folder, config)
    running = await asyncio.to_thread(servers.__enter__)
    try:
        yield running
    finally:
        await asyncio.to_thread(servers.__exit__, None, None, None)


def settings(servers: dict[str, PromServer], **more) -> list[SourceSettings]:
    return [SourceSettings(name, server.url, **more) for name, server in servers.items()]


def address(url: str) -> str:
    return url.partition("://")[2]


# --- every page that was captured from an engine


def parts(reading: PageReading) -> dict[str, object]:
    """A reading without what a server does not keep: where it came from, its format and its remarks."""
    return asdict(replace(reading, source="", shape="", dropped=(), hint=""))


def differences(one: object, other: object, where: str = "") -> list[str]:
    """Where two values differ, floats by more than 1e-9: VictoriaMetrics keeps decimals, not doubles."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [d for key in one for d in differences(one[key], other[key], f"{where}.{key}")]
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{where}[{i}]")]
    if isinstance(one, float) and isinstance(other, float):
        return [] if math.isclose(one, other, rel_tol=1e-9) else [f"{where}: {one} {other}"]
    return [] if one == other else [f"{where}: {one} {other}"]


def without_comments(body: bytes) -> bytes:
    """Servers keep samples: a family that is declared and has none is not there any more."""
    return b"".join(line for line in body.splitlines(keepends=True) if not line.startswith(b"#"))


def unlike(found: dict[str, Found], bodies: list[bytes]) -> list[str]:
    """What is not yet as it was served, by server and page."""
    problems: list[str] = []
    for key, one in found.items():
        name, _, number = key.partition("/")
        where = f"{PAGES[int(number)].name} through {name}"
        if not isinstance(one, SourcedPage):
            problems.append(f"{where}: {one.reason}")
            continue
        served = read_page(without_comments(bodies[int(number)]), source="served")
        if served.state is PageState.OK:
            problems += [f"{where}{d}" for d in differences(parts(one.page), parts(served))]
        elif one.page.state is not served.state:
            problems.append(f"{where}: {one.page.state}")
    return problems


def test_pages_of_real_engines_come_back_as_they_were_served(tmp_path: Path):
    bodies = [path.read_bytes() for path in PAGES]

    async def run() -> tuple[int, list[str]]:
        async with small_nodes(len(PAGES)) as nodes, open_session() as http:
            for node, body in zip(nodes, bodies, strict=True):
                node.body = body
                if body.rstrip().endswith(b"# EOF"):
                    node.content_type = "application/openmetrics-text"
            config = scrape_config([static_job("vllm", [address(node.url) for node in nodes])])
            async with started(tmp_path, config) as servers:
                reader = SourceReader(http, CLOCK)
                reader.follow(settings(servers))
                wanted = [
                    Wanted(f"{name}/{number}", name, address(node.url))
                    for name in servers
                    for number, node in enumerate(nodes)
                ]
                ends_s = CLOCK.monotonic_s() + PATIENCE_S
                while True:  # the first scrapes take their time on a busy machine
                    found = await reader.read(wanted, period_s=1.0, deadline_s=60.0)
                    problems = await asyncio.to_thread(unlike, found, bodies)
                    if not problems or CLOCK.monotonic_s() > ends_s:
                        return len(found), problems
                    await asyncio.sleep(0.5)

    assert asyncio.run(run()) == (2 * len(PAGES), [])


# --- a moving fleet, read directly and through both servers at the same time

PROFILE = EngineProfile("measured", alpha_s=0.02, beta_s=0.002, gamma_s=1e-5, max_num_seqs=16, model="m")
NODES = 2
#: Requests in each second, to each node; (prompt, output) lengths follow each other.
LOAD = (1, 2, 4, 6, 8, 10, 12, 14, 12, 8, 4, 2, 2, 4, 8, 4, 2, 1)
LENGTHS = ((40, 24), (160, 40), (80, 32), (320, 48))


def new_users() -> aiohttp.ClientSession:
    """A new connection for each request: a kept one may be closed by the node just then."""
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=250))


async def serve_load(fleet: SimFleet, http: aiohttp.ClientSession) -> None:
    """A load that climbs and falls twice, from nothing to more than the 16 slots take."""
    urls = [node.base_url for node in fleet.servers.values()]
    lengths, calls = itertools.cycle(LENGTHS), list[asyncio.Task[None]]()

    async def one(url: str, prompt: int, output: int) -> None:
        order = {"model": "m", "prompt": [1] * prompt, "max_tokens": output, "ignore_eos": True}
        async with http.post(f"{url}/v1/completions", json=order) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()

    began_s, due_s = CLOCK.monotonic_s(), 0.0
    for second, count in enumerate(LOAD):
        for number in range(count):
            due_s = second + number / count
            await asyncio.sleep(max(0.0, began_s + due_s - CLOCK.monotonic_s()))
            prompt, output = next(lengths)
            calls += [asyncio.create_task(one(url, prompt, output)) for url in urls]
    await asyncio.gather(*calls)


@dataclass
class Way:
    """One way to read the fleet: its scraper and everything it saw."""

    scraper: Scraper
    facts: FleetFacts
    rounds: list[Round] = field(default_factory=list)

    async def round(self, at: datetime) -> None:
        self.rounds.append(await self.scraper.run(self.facts.targets, (), at))

    def has_seen(self, node: str) -> bool:
        return any(r.node == node and r.samples for round_ in self.rounds for r in round_.nodes)

    def totals(self, node: str) -> Counter[str]:
        total: Counter[str] = Counter()
        for window in self.windows(node):
            for name in ("completed", "prompt_tokens", "generation_tokens", "preemptions"):
                total[name] += getattr(window, name)
            total.update({f"{name}_count": h.count for name, h in window.histograms.items()})
        return total

    def windows(self, node: str):
        results = [result for round_ in self.rounds for result in round_.nodes if result.node == node]
        return [s.window for r in results for s in r.samples if s.covered_s is not None]

    def merged(self, node: str, name: str) -> Histogram:
        return merge([w.histograms[name] for w in self.windows(node)])


def three_ways(
    fleet: SimFleet, servers: dict[str, PromServer], http: aiohttp.ClientSession
) -> dict[str, Way]:
    ways: dict[str, Way] = {}
    for way in ("direct", *servers):
        scraper = Scraper(http, CLOCK, ControlMetrics(), period_s=10.0, deadline_s=60.0)
        scraper.sources = SourceReader(http, CLOCK, settle_s=4.0)
        scraper.sources.follow(settings(servers))
        source = "" if way == "direct" else way
        nodes = tuple(
            Node(
                name, "p", f"{node.base_url}/metrics", "active", CLOCK.now(),
                source=source, instance=address(node.base_url),
            )
            for name, node in fleet.servers.items()
        )  # fmt: skip
        facts = FleetFacts(nodes=nodes, pools=(Pool("p"),))
        ways[way] = Way(scraper, facts)
    return ways


@pytest.mark.slow
def test_a_moving_fleet_read_three_ways_at_once_has_done_the_same(tmp_path: Path):
    async def run() -> dict[str, Way]:
        fleet = SimFleet(PROFILE, CLOCK, nodes=NODES, seed=1)
        await fleet.start()
        try:
            targets = [address(node.base_url) for node in fleet.servers.values()]
            config = scrape_config([static_job("vllm", targets)])
            async with (
                open_session() as http,
                new_users() as users,
                started(tmp_path, config) as servers,
            ):
                ways = three_ways(fleet, servers, http)
                await watch(ways, lambda: serve_load(fleet, users))
                return ways
        finally:
            await fleet.stop()

    ways = asyncio.run(run())
    direct = ways["direct"]
    for node, way in itertools.product((n.name for n in direct.facts.nodes), ("prometheus", "victoria")):
        # nothing runs before the first page and after the last: all that happened was seen by all
        assert ways[way].totals(node) == direct.totals(node), (node, way)
        for name in ("ttft_s", "itl_s", "e2e_s"):
            for q in (0.5, 0.95):
                one, other = (quantile(w.merged(node, name), q) for w in (direct, ways[way]))
                assert one is not None
                assert other == one, (node, way, name, q)
    assert all(direct.totals(node.name)["completed"] == sum(LOAD) for node in direct.facts.nodes)


async def watch(ways: dict[str, Way], load: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run rounds: idle until all see all nodes, then under load, then until all saw the end of it."""
    working: asyncio.Task[None] | None = None
    nodes = [node.name for node in ways["direct"].facts.nodes]
    async with asyncio.timeout(len(LOAD) + PATIENCE_S):
        while True:
            at = CLOCK.now()
            await asyncio.gather(*(way.round(at) for way in ways.values()))
            if working is None:
                if all(way.has_seen(node) for way in ways.values() for node in nodes):
                    working = asyncio.create_task(load())
            elif working.done():
                await working
                if all(
                    way.totals(node)["completed"] == sum(LOAD) for way in ways.values() for node in nodes
                ):
                    return
            await asyncio.sleep(1.0)
