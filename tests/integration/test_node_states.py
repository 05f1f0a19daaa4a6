"""What a node's state takes it out of: sums, latencies, gateways, rounds. Real Postgres, real rounds."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import numpy as np
import pytest
from sqlalchemy.orm import Session

from control import commands_fleet
from control.assess import Assessment, Assessor
from control.capacity_book import CapacityBook
from control.database import session_scope
from control.fetch import open_session
from control.fleet_facts import FleetFacts, load_fleet
from control.own_metrics import ControlMetrics
from control.partitions import make_partitions
from control.queries_latency import latency_quantiles
from control.roles import Actor, Role
from control.sample_store import EdgeIds, edges_of, write_round
from control.scrape import Scraper
from fleet.clock import ManualClock
from tests.postgres_server import FreshDatabase
from tests.small_node import SmallNode, page, small_nodes

pytestmark = pytest.mark.postgres

ADMIN = Actor("ada", Role.ADMIN, "cli")
PERIOD_S = 10.0


def register(database: FreshDatabase, nodes: list[SmallNode], now: datetime) -> None:
    with session_scope(database.engine) as session:
        make_partitions(session, now)
        commands_fleet.add_pool(session, ADMIN, name="p", models=["m"], now=now)
        for name, node in zip(("works", "drains", "rests", "gone"), nodes, strict=True):
            commands_fleet.add_node(session, ADMIN, name=name, url=node.url, pool="p", now=now)
        commands_fleet.drain_node(session, ADMIN, name="drains", now=now)
        commands_fleet.rest_node(session, ADMIN, name="rests", now=now)
        commands_fleet.remove_node(session, ADMIN, name="gone", now=now)


async def rounds(
    database: FreshDatabase, clock: ManualClock, nodes: list[SmallNode], facts: FleetFacts
) -> Assessment:
    """Seven rounds in which each node finishes 20 requests; the second's and third's tokens are slow."""
    assessor, ids = Assessor(CapacityBook(np.random.default_rng(1))), EdgeIds()
    assessment: Assessment | None = None
    async with open_session() as http:
        scraper = Scraper(http, clock, ControlMetrics(), period_s=PERIOD_S, deadline_s=60.0)
        for i in range(7):
            for node in nodes:
                node.body = page(finished=20 * i, generated=400 * i, running=2, itl=(400 * i, 8.0 * i))
            done = await scraper.run(facts.targets, (), clock.now())
            ids.learn(database.engine, edges_of(done))
            with session_scope(database.engine) as session:
                write_round(session, done, ids)
            assessment = assessor.assess(done, facts)
            clock.advance(PERIOD_S)
    assert assessment is not None
    return assessment


def test_only_active_nodes_count_in_sums_and_resting_ones_not_even_in_latencies(
    database: FreshDatabase, clock: ManualClock
) -> None:
    start = clock.now()

    async def run() -> Assessment:
        async with small_nodes(4) as nodes:
            register(database, nodes, start)
            with Session(database.engine) as session:
                facts = load_fleet(session)
            assert [node.name for node in facts.nodes] == ["drains", "rests", "works"]
            done = await rounds(database, clock, nodes, facts)
            assert nodes[3].asked == 0  # a removed node is asked no more
        return done

    assessment = asyncio.run(run())
    by = {(v.scope, v.name): v for v in assessment.verdicts}
    # 20 requests each 10 s finish at each node; of three that answer only one counts
    for scope, name in (("pool", "p"), ("fleet", "")):
        assert by[scope, name].health.throughput == pytest.approx(2.0)
        assert by[scope, name].running == 2
    assert by["node", "rests"].health.throughput == pytest.approx(2.0)  # its own page still tells
    with Session(database.engine) as session:
        until = clock.now() + timedelta(seconds=1)
        fleet = latency_quantiles(session, since=start, until=until)["itl_s"]
        resting = latency_quantiles(session, since=start, until=until, node="rests")["itl_s"]
    # six windows of 400 gaps between tokens, at the working and the draining node
    assert fleet.count == 2 * 6 * 400
    assert resting.count == 6 * 400


def test_a_node_that_rests_comes_back_into_the_sums(database: FreshDatabase, clock: ManualClock) -> None:
    async def run() -> Assessment:
        async with small_nodes(4) as nodes:
            register(database, nodes, clock.now())
            with session_scope(database.engine) as session:
                for name in ("rests", "drains"):
                    commands_fleet.resume_node(session, ADMIN, name=name, now=clock.now())
                facts = load_fleet(session)
            return await rounds(database, clock, nodes, facts)

    assessment = asyncio.run(run())
    fleet = next(v for v in assessment.verdicts if v.scope == "fleet")
    assert fleet.health.throughput == pytest.approx(6.0)
    assert fleet.running == 6
