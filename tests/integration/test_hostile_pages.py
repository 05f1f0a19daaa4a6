"""A fleet of which most nodes are hostile, through the real scraper, judge and Postgres.

Every good node is sampled in every round, each bad one is named with its reason, and memory stays bounded.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control.fetch import open_session
from control.fleet_facts import FleetFacts, Node
from control.gateway_scrape import FLOWS_MAX, read_gateway_page
from control.own_metrics import ControlMetrics
from control.page_room import MIB, PageRoom
from control.partitions import make_partitions
from control.quality import QualityBook
from control.quality_store import apply
from control.queries_quality import FindingView, findings
from control.rounds import Round, Target
from control.sample_store import EdgeIds, edges_of, write_round
from control.scrape import Scraper
from control.tables import SampleRow
from fleet.clock import ManualClock, SystemClock
from tests import hostile_nodes
from tests.postgres_server import FreshDatabase

GOOD, ROUNDS, PERIOD_S = 12, 2, 40.0
#: Drips and silences last this long each; whatever else there is, is over before, on a busy machine too.
DEADLINE_S = 20.0

#: Kind of node -> why it has no sample.
NO_SAMPLE = {
    "endless": "too_large",
    "endless_chunks": "too_large",
    "empty_lines": "no_engine_series",
    "bomb": "too_large",
    "drip": "timeout",
    "drip_of_headers": "timeout",
    "silence": "timeout",
    "interim_for_ever": "timeout",
    "header_flood": "unreachable",
    "long_header": "unreachable",
    "redirect": "http_error",
    "login": "not_metrics",
    "json": "not_metrics",
    "unasked_packing": "not_metrics",
    "short": "unreachable",
    "claims_much": "unreachable",
    "reset": "unreachable",
    "no_http": "unreachable",
}
#: Kind of node -> what is wrong with its page, of which the rest is read.
SAMPLED = {
    "many_series": {"series_dropped"},
    "comments": set[str](),
    "giant_label": {"series_dropped"},
    "many_labels": {"series_dropped"},
    "escapes": {"series_dropped"},
    "unclosed": {"series_dropped"},
    "numbers": {"impossible_value", "lines_dropped", "duplicate_series"},
    "bytes": {"lines_dropped"},
    "twice": {"duplicate_series"},
}


@contextmanager
def nodes(good: int) -> Generator[dict[str, str]]:
    """Start the hostile nodes in a process of their own; yield name -> address."""
    program = Path(hostile_nodes.__file__)
    process = subprocess.Popen(
        [sys.executable, str(program), str(good)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        ports: dict[str, int] = json.loads(process.stdout.readline())
        yield {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(timeout=60)


def resident_bytes(field: str) -> int:
    """Return VmRSS or VmHWM of this process."""
    (line,) = (
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field)
    )
    return int(line.split()[1]) * 1024


async def rounds(facts: FleetFacts, clock: ManualClock) -> list[Round]:
    done: list[Round] = []
    async with open_session() as http:
        scraper = Scraper(http, SystemClock(), ControlMetrics(), period_s=PERIOD_S, deadline_s=DEADLINE_S)
        for _ in range(ROUNDS):
            done.append(await scraper.run(facts.targets, (), clock.now()))
            clock.advance(PERIOD_S)
    return done


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_good_nodes_are_sampled_in_every_round_and_bad_ones_named_with_their_reason(
    database: FreshDatabase, session: Session, clock: ManualClock
):
    kinds = hostile_nodes.kinds()
    assert NO_SAMPLE.keys() | SAMPLED.keys() == kinds.keys()
    assert len(kinds) >= 2 * GOOD
    began = clock.now()
    with nodes(GOOD) as urls:
        facts = FleetFacts(
            tuple(Node(n, "p", f"{url}/metrics", "active", began) for n, url in urls.items())
        )
        done = asyncio.run(rounds(facts, clock))

    good = {f"good-{i}" for i in range(GOOD)}
    for each in done:
        results = {result.node: result for result in each.nodes}
        assert {n: results[n].reason for n in good} == dict.fromkeys(good)
        assert {n: r.reason and r.reason.value for n, r in results.items() if n not in good} == (
            NO_SAMPLE | dict.fromkeys(SAMPLED)
        )
        assert all(r.detail for r in results.values() if r.reason is not None)
    # a good node's counters grew by 10 tokens a page, whatever its neighbours did
    grown = [s.window.generation_tokens for r in done[-1].nodes if r.node in good for s in r.samples]
    assert grown == [10] * GOOD

    book, ids = QualityBook(), EdgeIds()
    with session.begin():
        make_partitions(session, began)
    for each in done:
        ids.learn(database.engine, edges_of(each))
        with session.begin():
            assert write_round(session, each, ids)
            apply(session, book.take(each, facts))
    with session.begin():
        rows = session.execute(select(SampleRow.node, func.count()).group_by(SampleRow.node))
        counted = {node: count for node, count in rows}
        found = findings(session, clock.now(), window=timedelta(hours=1))
    assert counted == dict.fromkeys((*good, *SAMPLED), ROUNDS)
    assert_named(found, began)


def assert_named(found: list[FindingView], began: object) -> None:
    """Hold the record against what each node does."""
    lost = {view.source: view.metric for view in found if view.kind == "no_page"}
    assert lost == NO_SAMPLE
    assert all(view.since == began and view.is_open for view in found if view.kind == "no_page")
    dropped = {"series_dropped", "lines_dropped", "impossible_value", "duplicate_series"}
    for name, expected in SAMPLED.items():
        assert {v.kind for v in found if v.source == name} & dropped == expected, name
    clean = {"metric_missing", "approximate", "slow_page"}  # these pages have no histograms
    assert {v.kind for v in found if v.source.startswith("good")} <= clean


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hostile_pages_together_take_no_more_memory_than_one_of_them(clock: ManualClock):
    """In a process of its own: this one's memory is that of the tests before."""
    program = (
        "import asyncio, sys\n"
        "from tests.integration.test_hostile_pages import grown_bytes\n"
        "print(asyncio.run(grown_bytes()))\n"
    )
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=500, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2_000:]
    # One body of 16 MiB (and the slack of a growing buffer), 20,000 series of about 1 KiB as objects, and
    # the memory of lines seen before. The seven pages of 15 MiB and more alone would be over 100 MiB.
    assert int(ran.stdout) < 96 * MIB


async def grown_bytes() -> int:
    """Return by how much the largest memory of two hostile rounds is above that of a good one."""
    with nodes(GOOD) as urls:
        everybody = [Target(name, f"{url}/metrics") for name, url in urls.items()]
        async with open_session() as http:
            scraper = Scraper(http, SystemClock(), ControlMetrics(), period_s=PERIOD_S, deadline_s=5.0)
            at = SystemClock().now()
            await scraper.run([t for t in everybody if t.name.startswith("good")], (), at)
            before = resident_bytes("VmRSS")
            for number in (1, 2):
                await scraper.run(everybody, (), at + timedelta(seconds=20 * number))
    return resident_bytes("VmHWM") - before


def test_pages_share_one_room_and_the_oldest_always_has_its_own():
    async def run() -> None:
        room = PageRoom(limit=16 * MIB)
        async with room.place() as small:
            await small.grow(400_000)
        assert room.held == 0  # small pages take none
        async with room.place() as first, room.place() as second:
            await first.grow(10 * MIB)
            await second.grow(5 * MIB)
            waits = asyncio.create_task(second.grow(7 * MIB))
            await asyncio.sleep(0)
            assert not waits.done()
            await first.grow(32 * MIB)  # the oldest never waits, or two could wait for each other
            assert room.held == 37 * MIB
            assert second.is_waiting
        # the first was read: there is room, and the second is the oldest now
        await waits
        assert room.held == 0

    asyncio.run(run())


def test_a_page_that_is_given_up_while_it_waits_leaves_no_trace():
    async def run() -> None:
        room = PageRoom(limit=16 * MIB)
        async with room.place() as first:
            await first.grow(16 * MIB)

            async def late() -> None:
                async with room.place() as second:
                    await second.grow(8 * MIB)

            task = asyncio.create_task(late())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert room.held == 16 * MIB
        assert room.held == 0

    asyncio.run(run())


def test_a_gateways_made_up_tenants_are_cut_and_counted():
    lines = [
        f'rhodeck_gateway_offered_total{{tenant="t{i:06}",tier="batch"}} 1\n'
        for i in range(FLOWS_MAX + 500)
    ]
    page = read_gateway_page("".join(lines).encode())
    assert page is not None
    assert len(page.flows) == FLOWS_MAX
    assert page.dropped == (f"the page has {FLOWS_MAX + 500} tenants and tiers; {FLOWS_MAX} were kept",)
