"""Real Prometheus and VictoriaMetrics give the pages the nodes gave, and the same numbers within 1 %."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from statistics import fmean

import aiohttp
import numpy as np
import pytest

from control.assess import Assessor
from control.capacity_book import CapacityBook
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
from fleet.health_reading import Health
from fleet.histograms import merge, quantile
from fleet.readings import Histogram, PageReading, PageState
from fleet.saturation import EngineLimits
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
#: Requests in each second, to each node; (prompt, output) lengths follow each other. The climb shows the
#: engine from idle to full (16 slots, 52 ms a step, 36 tokens: 8.5 requests/s), so that capacity is
#: measured and not guessed; the plain is long enough for every way's last minute to lie in it.
CLIMB = (1, 2, 4, 6, 8, 10, 12, 14, 14, 12, 8, 4, 2, 2, 2, 2)
PLAIN = (6,) * 92
LENGTHS = ((40, 24), (160, 40), (80, 32), (320, 48))
LOAD = (*CLIMB, *PLAIN)
INTERVAL_S = 3.0
#: How near the ways must be. They ask at different moments: arrivals are told to within the answers that
#: are counted before their requests are, one in a few windows of 18, and rho and mu follow from them.
WITHIN = {"throughput": 0.01, "batch": 0.01, "arrival_rate": 0.03, "mu": 0.03, "rho": 0.04}
JUDGED_S = 22.0


def new_users() -> aiohttp.ClientSession:
    """A new connection for each request: a kept one may be closed by the node just then."""
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=250))


async def serve_load(fleet: SimFleet, http: aiohttp.ClientSession) -> None:
    """Evenly spaced requests, so that any minute of the plain is like any other."""
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
    """One way to read the fleet: its scraper, its verdicts, and everything it saw."""

    scraper: Scraper
    facts: FleetFacts
    assessor: Assessor
    rounds: list[Round] = field(default_factory=list)
    judged: list[dict[str, Health]] = field(default_factory=list)

    async def round(self, at: datetime, *, is_judged: bool) -> None:
        if is_judged:
            self.assessor.book.refresh(self.facts, at.timestamp())
        done = await self.scraper.run(self.facts.targets, (), at)
        verdicts = self.assessor.assess(done, self.facts).verdicts
        self.rounds.append(done)
        if is_judged:
            self.judged.append({v.name: v.health for v in verdicts if v.scope == "node"})

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
        scraper = Scraper(http, CLOCK, ControlMetrics(), period_s=10.0, deadline_s=9.0)
        scraper.sources.follow(settings(servers))
        source = "" if way == "direct" else way
        nodes = tuple(
            Node(
                name, "p", f"{node.base_url}/metrics", "active", CLOCK.now(),
                source=source, instance=address(node.base_url),
            )
            for name, node in fleet.servers.items()
        )  # fmt: skip
        facts = FleetFacts(nodes=nodes, pools=(Pool("p", EngineLimits(max_num_seqs=PROFILE.max_num_seqs)),))
        ways[way] = Way(scraper, facts, Assessor(CapacityBook(np.random.default_rng(1))))
    return ways


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_fleet_read_three_ways_has_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # an answer is counted up to a tick after its request: arrivals of a window are told to within that
    monkeypatch.setattr("simfleet.server.TICK_S", 0.01)

    async def run() -> dict[str, Way]:
        fleet = SimFleet(PROFILE, CLOCK, nodes=NODES, seed=1)
        await fleet.start()
        try:
            targets = [address(node.base_url) for node in fleet.servers.values()]
            config = scrape_config([static_job("vllm", targets)], interval=f"{INTERVAL_S:g}s")
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
        one_way, other_way = derived(direct, node), derived(ways[way], node)
        for name, tolerance in WITHIN.items():
            assert other_way[name] == pytest.approx(one_way[name], rel=tolerance), (node, way, name)
    assert all(direct.totals(node.name)["completed"] == sum(LOAD) for node in direct.facts.nodes)


def derived(way: Way, node: str) -> dict[str, float]:
    """What is made of windows, capacity included: the mean of the last rounds under load.

    The ways ask at different moments, each a little late: one round alone would be compared with the
    jitter of a busy machine.
    """
    healths = [judged[node] for judged in way.judged]
    values = {
        "rho": [h.rho.value for h in healths],
        "mu": [h.mu.value for h in healths],
        "arrival_rate": [h.arrival_rate for h in healths],
        "throughput": [h.throughput for h in healths],
        "batch": [h.batch for h in healths],
    }
    return {name: fmean(many) for name, many in values.items()}


async def watch(ways: dict[str, Way], load: Callable[[], Awaitable[None]]) -> None:
    """Run rounds: idle until all see all nodes, then under load, then until all saw the end of it."""
    working: asyncio.Task[None] | None = None
    began_s = CLOCK.monotonic_s()
    nodes = [node.name for node in ways["direct"].facts.nodes]
    async with asyncio.timeout(len(LOAD) + PATIENCE_S):
        while True:
            loaded_s = CLOCK.monotonic_s() - began_s if working is not None else 0.0
            is_judged = len(LOAD) - JUDGED_S < loaded_s < len(LOAD) - 1
            at = CLOCK.now()
            await asyncio.gather(*(way.round(at, is_judged=is_judged) for way in ways.values()))
            if working is None:
                if all(way.has_seen(node) for way in ways.values() for node in nodes):
                    working, began_s = asyncio.create_task(load()), CLOCK.monotonic_s()
            elif working.done():
                await working
                if all(way.totals(n) == ways["direct"].totals(n) for way in ways.values() for n in nodes):
                    return
            await asyncio.sleep(INTERVAL_S)
