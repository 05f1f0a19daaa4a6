"""The same verdicts from a real server's samples as from the pages themselves, for an hour of one fleet.

Virtual time: the engines are simulated, their pages written into real servers as scrapes of the past, and
both ways run the same rounds as of then. Nothing depends on how busy the machine is.
"""

from __future__ import annotations

import asyncio
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from control.assess import Assessment, Assessor
from control.capacity_book import CapacityBook
from control.fetch import open_session
from control.fleet_facts import FleetFacts, Node, Pool
from control.own_metrics import ControlMetrics
from control.page_book import PageBook
from control.promsource import SourceSettings
from control.promsource_round import SourceReader
from control.rounds import NodeResult, Round
from control.scrape import Scraper
from fleet.clock import ManualClock, SystemClock
from fleet.dialects import read_page
from fleet.engine import Engine
from fleet.engine_profile import H100_70B_FP8
from fleet.engine_request import EngineRequest
from fleet.histograms import merge, quantile
from fleet.saturation import EngineLimits
from simfleet.page import HttpTally, MetricsPage
from simfleet.scenarios import arrivals, scenario_named
from tests import peers
from tests.prom_servers import PromServer, prometheus, scrape_config, victoria_metrics

PERIOD_S = 10.0
ROUNDS = 180  # half an hour
LOADS = {"a": "steady", "b": "overload_110"}  # 70 % and, on b, more than it can do
#: Seconds into a period at which each node is scraped, as a server spreads its targets.
OFFSET_S = {"a": 1.25, "b": 6.5}
SETTLE_S = 2.0
#: Three hours ago: the pages lie in the past of every server.
START = datetime.fromtimestamp(SystemClock().now().timestamp() // 3600 * 3600 - 3 * 3600, UTC)


def scrape_at_s(node: str, number: int) -> float:
    return START.timestamp() + OFFSET_S[node] + PERIOD_S * number


def pages_of(node: str) -> list[bytes]:
    """The page of each scrape of one simulated node."""
    profile = H100_70B_FP8
    engine, page = Engine(profile), MetricsPage(profile, profile.model, START.timestamp() - 60)
    coming = arrivals(scenario_named(LOADS[node]), profile, seed=ord(node))
    arrival = next(coming)
    bodies: list[bytes] = []
    for number in range(ROUNDS):
        until_s = OFFSET_S[node] + PERIOD_S * number
        while arrival.at_s < until_s:
            engine.submit(
                EngineRequest(f"{node}{arrival.at_s}", arrival.prompt_tokens, arrival.output_tokens),
                arrival.at_s,
            )
            arrival = next(coming)
        engine.advance(until_s)
        bodies.append(page.render(engine, HttpTally()))
    return bodies


@pytest.fixture(scope="module")
def pages() -> dict[str, list[bytes]]:
    return {node: pages_of(node) for node in LOADS}


def victoria_with(folder: Path, pages: dict[str, list[bytes]]) -> Generator[PromServer]:
    with victoria_metrics(folder, None, "-maxLabelsPerTimeseries=64") as server:
        for node, bodies in pages.items():
            labels = urllib.parse.urlencode(
                [("extra_label", f"instance={node}:8000"), ("extra_label", "job=vllm")]
            )
            for number, body in enumerate(bodies):
                at_ms = round(scrape_at_s(node, number) * 1000)
                url = f"{server.url}/api/v1/import/prometheus?{labels}&timestamp={at_ms}"
                with urllib.request.urlopen(url, body + b"up 1\n", timeout=60):
                    pass
        urllib.request.urlopen(f"{server.url}/internal/force_flush", timeout=60).close()
        yield server


def prometheus_with(folder: Path, pages: dict[str, list[bytes]]) -> Generator[PromServer]:
    """Prometheus over blocks that its own tool made of the pages."""
    series: dict[str, list[str]] = {}
    for node, bodies in pages.items():
        for number, body in enumerate(bodies):
            at_s = scrape_at_s(node, number)
            for line in [*body.decode().splitlines(), "up 1"]:
                if not line or line.startswith("#"):
                    continue
                head, value = line.rsplit(" ", 1)
                name, brace, inner = head.partition("{")
                own = f'instance="{node}:8000",job="vllm"'
                labels = f"{own},{inner[:-1]}" if brace and inner != "}" else own
                series.setdefault(name, []).append(f"{name}{{{labels}}} {value} {at_s:.3f}")
    text = folder / "pages.om"
    with text.open("w") as file:
        for name, lines in series.items():
            file.write(f"# TYPE {name} unknown\n" + "\n".join(lines) + "\n")
        file.write("# EOF\n")
    command = [
        str(peers.program("promtool")), "tsdb", "create-blocks-from", "openmetrics",
        str(text), str(folder / "prometheus-data"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with prometheus(folder, scrape_config([]), "--storage.tsdb.retention.time=10y") as server:
        yield server


SERVERS = {"victoria": contextmanager(victoria_with), "prometheus": contextmanager(prometheus_with)}


@dataclass
class Seen:
    """What one way of reading came to."""

    assessor: Assessor = field(default_factory=lambda: Assessor(CapacityBook(np.random.default_rng(1))))
    rounds: list[Round] = field(default_factory=list)
    last: Assessment | None = None

    def take(self, round_: Round, facts: FleetFacts) -> None:
        if len(self.rounds) % 30 == 29:
            self.assessor.book.refresh(facts, round_.at.timestamp())
        self.last = self.assessor.assess(round_, facts)
        self.rounds.append(round_)


def facts(*, source: str = "") -> FleetFacts:
    nodes = tuple(
        Node(
            name,
            "p",
            f"http://{name}:8000/metrics",
            "active",
            START,
            source=source,
            instance=f"{name}:8000",
        )
        for name in LOADS
    )
    limits = EngineLimits(H100_70B_FP8.max_num_seqs, H100_70B_FP8.max_num_batched_tokens)
    return FleetFacts(nodes=nodes, pools=(Pool("p", limits),))


def round_at(number: int) -> datetime:
    """After both scrapes of period `number` have settled."""
    return START + timedelta(seconds=PERIOD_S * (number + 1))


def directly(pages: dict[str, list[bytes]]) -> Seen:
    """The pages as a scraper of ours would have taken them at the same moments."""
    seen, book = Seen(), PageBook(period_s=PERIOD_S)
    for number in range(ROUNDS):
        results: list[NodeResult] = []
        for node, bodies in pages.items():
            at_s = scrape_at_s(node, number)
            taken = book.take(node, node, read_page(bodies[number], source=node), at_s, unix_s=at_s)
            results.append(NodeResult(node, "p", 0.01, taken.samples))
        seen.take(Round(round_at(number), PERIOD_S, 0.1, 0.0, tuple(results)), facts())
    return seen


def through(server: PromServer) -> Seen:
    """Rounds of the real scraper, as of then, with a real server."""

    async def run() -> Seen:
        seen, there = Seen(), facts(source="s")
        clock = ManualClock(round_at(0))
        async with open_session() as http:
            scraper = Scraper(http, clock, ControlMetrics(), period_s=PERIOD_S, deadline_s=60.0)
            scraper.sources = SourceReader(http, clock, settle_s=SETTLE_S)
            scraper.sources.follow([SourceSettings("s", server.url, matchers=('job="vllm"',))])
            for number in range(ROUNDS):
                at = round_at(number)
                clock.advance((at - clock.now()).total_seconds())
                seen.take(await scraper.run(there.targets, (), at), there)
        return seen

    return asyncio.run(run())


def numbers(seen: Seen) -> dict[tuple[str, str, str], float | None]:
    """Every number of every verdict after the last round."""
    assert seen.last is not None
    found: dict[tuple[str, str, str], float | None] = {}
    for verdict in seen.last.verdicts:
        h = verdict.health
        values = {
            "rho": h.rho.value,
            "rho_low": h.rho.low,
            "rho_high": h.rho.high,
            "mu": h.mu.value,
            "mu_tokens": h.mu_tokens.value,
            "arrivals": h.arrival_rate,
            "completions": h.throughput,
            "batch": h.batch,
            "headroom": h.headroom,
            "running": verdict.running,
            "waiting": h.waiting,
            "kv": h.kv_used_ratio,
            "saturated": None if h.saturated is None else float(h.saturated),
        }
        found |= {(verdict.scope, verdict.name, name): value for name, value in values.items()}
    return found


def quantiles(seen: Seen, node: str, name: str) -> list[float]:
    samples = [s for r in seen.rounds for n in r.nodes if n.node == node for s in n.samples]
    whole = merge([s.window.histograms[name] for s in samples if s.covered_s is not None])
    assert whole is not None
    return [found.estimate for q in (0.5, 0.9, 0.99) if (found := quantile(whole, q)) is not None]


@pytest.mark.parametrize("kind", SERVERS)
def test_verdicts_through_a_server_are_those_of_the_pages(
    kind: str, pages: dict[str, list[bytes]], tmp_path: Path
):
    direct = directly(pages)
    with SERVERS[kind](tmp_path, pages) as server:
        other = through(server)
    mine, theirs = numbers(direct), numbers(other)
    # truth: a gets 70 % of what its slots can do, within 30 % in a minute of 126 arrivals; b more than all
    assert mine["node", "a", "rho"] == pytest.approx(0.7, rel=0.3)
    assert (mine["node", "b", "rho"] or 0) > 0.85
    assert theirs.keys() == mine.keys()
    for key, value in mine.items():
        assert theirs[key] == (None if value is None else pytest.approx(value, rel=0.01)), key
    for node in LOADS:
        for name in ("ttft_s", "itl_s", "e2e_s", "queue_wait_s"):
            assert quantiles(other, node, name) == pytest.approx(quantiles(direct, node, name), rel=0.01)
    assert all(result.reason is None for round_ in other.rounds for result in round_.nodes)
