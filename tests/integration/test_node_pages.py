"""A node of several pages, over real sockets, through the scraper, the verdicts and a real Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from control.assess import Assessor
from control.capacity_book import CapacityBook
from control.database import session_scope
from control.fetch import open_session
from control.fleet_facts import FleetFacts, Node, Pool
from control.own_metrics import ControlMetrics
from control.page_store import PageStore
from control.queries_discovery import gpu_history, node_gpus
from control.rounds import FurtherPage, NodeResult, Round
from control.scrape import Scraper, Target
from control.tables import EndpointSeenRow
from fleet.clock import ManualClock
from fleet.readings import Reason
from tests.postgres_server import FreshDatabase
from tests.small_node import SmallNode, page, small_nodes

PERIOD_S = 10.0
MIB = 1024 * 1024


@asynccontextmanager
async def scraper(clock: ManualClock) -> AsyncGenerator[Scraper]:
    async with open_session() as http:
        yield Scraper(http, clock, ControlMetrics(), period_s=PERIOD_S, deadline_s=60.0)


def target(nodes: Sequence[SmallNode], kinds: Sequence[str]) -> Target:
    """The first is the node's own page, the others are further ones."""
    further = tuple(
        FurtherPage(f"{node.url}/metrics", kind) for node, kind in zip(nodes[1:], kinds, strict=True)
    )
    return Target("n", f"{nodes[0].url}/metrics", "p", pages=further)


async def one_round(s: Scraper, clock: ManualClock, wanted: Target) -> tuple[Round, NodeResult]:
    done = await s.run([wanted], (), clock.now())
    clock.advance(PERIOD_S)
    return done, done.nodes[0]


def gpus(*cards: tuple[str, int, float, int], host: str = "h") -> bytes:
    """A dcgm-exporter page of (UUID, use in percent, watts, last error code)."""
    lines: list[str] = []
    for uuid, used, watts, xid in cards:
        labels = f'{{gpu="0",UUID="{uuid}",modelName="NVIDIA H100 80GB HBM3",Hostname="{host}"}}'
        lines += [
            f"DCGM_FI_DEV_GPU_UTIL{labels} {used}",
            f"DCGM_FI_DEV_POWER_USAGE{labels} {watts}",
            f"DCGM_FI_DEV_XID_ERRORS{labels} {xid}",
            f"DCGM_FI_DEV_FB_USED{labels} 60000",
            f"DCGM_FI_DEV_FB_FREE{labels} 20000",
        ]
    return ("\n".join(lines) + "\n").encode()


def test_ranks_on_ports_of_their_own_are_engines_of_one_node(clock: ManualClock):
    async def run() -> None:
        async with small_nodes(2) as nodes, scraper(clock) as s:
            wanted = target(nodes, ["engine"])
            for finished in (100, 130):  # 30 and 60 in ten seconds
                nodes[0].body = page(finished=finished, running=2)
                nodes[1].body = page(finished=2 * finished, running=5)
                _, result = await one_round(s, clock, wanted)
        assert result.reason is None
        first, second = result.samples
        assert (first.engine, second.engine) == ("0", f"0@{nodes[1].port}")
        assert (first.window.completed, second.window.completed) == (30, 60)
        assert (first.window.running, second.window.running) == (2, 5)
        assert result.lost_pages == ()

    asyncio.run(run())


def test_a_restart_of_one_rank_is_no_restart_of_the_other(clock: ManualClock):
    async def run() -> None:
        async with small_nodes(2) as nodes, scraper(clock) as s:
            wanted = target(nodes, ["engine"])
            for start in (1.0, 2.0):
                nodes[0].body = page(finished=100, started_s=1.0)
                nodes[1].body = page(finished=100, started_s=start)
                _, result = await one_round(s, clock, wanted)
        assert [sample.window.restarted for sample in result.samples] == [False, True]

    asyncio.run(run())


def test_a_dead_gpu_exporter_does_not_make_a_node_silent(clock: ManualClock):
    async def run() -> None:
        async with small_nodes(2) as nodes, scraper(clock) as s:
            wanted = target(nodes, ["gpu"])
            nodes[0].body = page(finished=1, running=1)
            nodes[1].body = b"<html>"
            _, wrong = await one_round(s, clock, wanted)
            nodes[1].status = 500
            _, failing = await one_round(s, clock, wanted)
            await nodes[1].stop()
            _, dead = await one_round(s, clock, wanted)
        for result in (wrong, failing, dead):
            assert result.reason is None
            assert len(result.samples) == 1
            assert result.lost_pages == ()  # no engine is lost
        reasons = [result.pages[1].reason for result in (wrong, failing, dead)]
        assert reasons == [Reason.NOT_METRICS, Reason.HTTP_ERROR, Reason.REFUSED]

    asyncio.run(run())


def facts(wanted: Target, clock: ManualClock) -> FleetFacts:
    node = Node("n", "p", wanted.url, "active", clock.now(), pages=wanted.pages)
    return FleetFacts(nodes=(node,), pools=(Pool("p"),))


def test_a_node_with_a_lost_engine_is_partial_and_not_half_idle(clock: ManualClock):
    async def run() -> None:
        async with small_nodes(2) as nodes, scraper(clock) as s:
            wanted = target(nodes, ["engine"])
            assessor = Assessor(CapacityBook(np.random.default_rng(1)))
            verdicts: list[bool] = []
            for i in range(20):
                nodes[0].body = page(finished=10 * i, running=2)
                nodes[1].body = page(finished=10 * i, running=2)
                if i == 5:
                    await nodes[1].stop()
                done, result = await one_round(s, clock, wanted)
                assessment = assessor.assess(done, facts(wanted, clock))
                node = next(v for v in assessment.verdicts if v.scope == "node")
                verdicts.append(node.health.is_partial and bool(node.health.stale))
        assert result.samples
        assert "page_lost" in result.samples[0].window.flags
        assert not any(verdicts[1:5])
        assert all(verdicts[5:])  # however long it is gone, past every window

    asyncio.run(run())


def test_a_node_whose_own_page_is_dead_is_known_by_its_other_engine(clock: ManualClock):
    async def run() -> None:
        async with small_nodes(2) as nodes, scraper(clock) as s:
            wanted = target(nodes, ["engine"])
            nodes[1].body = page(finished=1, running=1)
            await nodes[0].stop()
            _, half = await one_round(s, clock, wanted)
            await nodes[1].stop()
            _, none = await one_round(s, clock, wanted)
        assert (half.reason, len(half.samples)) == (None, 1)
        assert half.lost_pages == (wanted.url,)
        assert (none.reason, none.samples) == (Reason.REFUSED, ())

    asyncio.run(run())


def test_only_the_gpus_of_the_node_are_taken(clock: ManualClock):
    async def run() -> None:
        async with small_nodes(2) as nodes, scraper(clock) as s:
            nodes[0].body = page(finished=1)
            nodes[1].body = gpus(("GPU-a", 10, 100.0, 0), host="one") + gpus(
                ("GPU-b", 20, 200.0, 0), host="two"
            )
            url = f"{nodes[1].url}/metrics"
            found: list[list[str]] = []
            for further in (
                FurtherPage(url, "gpu", host="two"),
                FurtherPage(url, "gpu", gpus=("GPU-a",)),
                FurtherPage(url, "gpu", host="three"),
            ):
                wanted = Target("n", f"{nodes[0].url}/metrics", "p", pages=(further,))
                _, result = await one_round(s, clock, wanted)
                found.append([gpu.uuid for gpu in result.pages[1].gpus])
        assert found == [["GPU-b"], ["GPU-a"], []]
        assert result.pages[1].reason is Reason.NO_GPU_SERIES

    asyncio.run(run())


@pytest.mark.postgres
def test_gpu_values_are_kept_with_their_age_and_error_codes_with_their_time(
    clock: ManualClock, database: FreshDatabase
) -> None:
    store = PageStore()

    async def run() -> None:
        async with small_nodes(2) as nodes, scraper(clock) as s:
            wanted = target(nodes, ["gpu"])
            nodes[0].body = page(finished=1)
            script: dict[int, bytes] = {
                0: gpus(("GPU-a", 90, 600.0, 0), ("GPU-b", 50, 400.0, 31)),
                3: gpus(("GPU-a", 90, 600.0, 79), ("GPU-b", 50, 400.0, 31)),
                12: gpus(("GPU-c", 5, 70.0, 0), ("GPU-a", 80, 500.0, 79)),
            }
            for i in range(20):
                nodes[1].body = script.get(i, nodes[1].body)
                done, _ = await one_round(s, clock, wanted)
                with session_scope(database.engine) as session:
                    store.write(session, done)

    start = clock.now()
    asyncio.run(run())
    with Session(database.engine) as session:
        a, b, c = sorted(node_gpus(session, "n"), key=lambda gpu: gpu.uuid)
        history = gpu_history(session, "n", since=start)
        pages = {row.kind: row for row in session.scalars(select(EndpointSeenRow))}
    # 79 came with the round at 30 s: noted at once, not at the next full minute
    assert (a.xid, a.xid_at and (a.xid_at - start).total_seconds()) == (79, 30.0)
    assert (b.xid, b.xid_at) == (31, None)  # it was that when first seen: nobody knows since when
    assert (c.xid, c.xid_words) == (0, None)
    assert a.xid_words is not None
    assert (b.seen_at - start).total_seconds() < 120.0 < (a.seen_at - start).total_seconds()
    assert a.memory_total_bytes == 80_000 * MIB
    # places stay: a 0, b 1, c 2, and a GPU that is gone leaves a gap, never a 0
    assert (a.slot, b.slot, c.slot) == (0, 1, 2)
    assert history.used_ratio[0] == pytest.approx((0.9, 0.5))
    last = history.used_ratio[-1]
    assert last[1] is None
    assert (last[0], last[2]) == pytest.approx((0.8, 0.05))
    assert history.memory_used_ratio[-1][0] == pytest.approx(0.75)
    gaps = [(y - x).total_seconds() for x, y in zip(history.at, history.at[1:], strict=False)]
    assert min(gaps) >= 30.0  # once a minute, sooner only for the new code
    assert (pages["gpu"].dialect, pages["engine"].dialect) == ("dcgm", "vllm")
    assert pages["engine"].reason is None
