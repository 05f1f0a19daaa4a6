"""An incident over real sockets: its pages served by HTTP, read by the real scraper, written to Postgres.

Simulated seconds pass between rounds; within one, everything is real. Prevents: a diagnosis that works on
pages in memory and not on what a scrape stored.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import numpy as np
from aiohttp import web
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from benchmarks.incident_evidence import FrontBook
from control import commands_fleet, commands_policy
from control.capacity_book import CapacityBook, write_estimates
from control.database import session_scope
from control.fetch import open_session
from control.fleet_facts import load_fleet
from control.own_metrics import ControlMetrics
from control.partitions import make_partitions
from control.roles import Actor, Role
from control.sample_store import EdgeIds, edges_of, write_round
from control.scrape import Round, Scraper, Target
from fleet.clock import ManualClock
from fleet.policy import default_policy
from simfleet.incidents import RAMP_S, Incident
from simfleet.virtual_fleet import VirtualFleet
from tests.in_process import closed

ADMIN = Actor("ana", Role.ADMIN, "cli")
PERIOD_S = 10.0


class _Pages:
    """What every node and the gateway say at the moment."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}

    async def answer(self, request: web.Request) -> web.Response:
        body = self.bodies[request.match_info["name"]]
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=1.0.0"})


async def scraped(incident: Incident, end: datetime) -> list[Round]:
    """Return the rounds of an incident, the newest stamped `end`."""
    span_s = RAMP_S + incident.length_s
    clock, served, rounds = ManualClock(end - timedelta(seconds=span_s)), _Pages(), list[Round]()
    app = web.Application()
    app.router.add_get("/{name}/metrics", served.answer)
    fleet = VirtualFleet(
        incident.profile,
        incident.nodes,
        incident.front,
        seed=incident.seed,
        troubles=incident.troubles,
        counters=FrontBook(),
    )
    async with closed(web.AppRunner(app)) as runner:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        base = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with open_session() as http:
            scraper = Scraper(http, clock, ControlMetrics(), period_s=PERIOD_S, deadline_s=60.0)
            for pages in fleet.run(incident.calls(), incident.length_s, begin_s=-RAMP_S):
                served.bodies = {**pages.nodes, "gateway": pages.front or b""}
                nodes = [Target(name, f"{base}/{name}/metrics", "main") for name in pages.nodes]
                gateways = [Target("gw-1", f"{base}/gateway/metrics")]
                rounds.append(await scraper.run(nodes, gateways, clock.now()))
                clock.advance(PERIOD_S)
    return rounds


def store(engine: Engine, incident: Incident, end: datetime) -> None:
    """Register the fleet, scrape the incident, store its rounds and the capacities learnt from them."""
    rounds = asyncio.run(scraped(incident, end))
    begin, ids, book = rounds[0].at, EdgeIds(), CapacityBook(np.random.default_rng(1))
    with session_scope(engine) as session:
        make_partitions(session, begin)
        _register(session, incident, begin)
    for round_ in rounds:
        ids.learn(engine, edges_of(round_))
        with session_scope(engine) as session:
            assert write_round(session, round_, ids)
        book.take(round_)
    with session_scope(engine) as session:
        facts = load_fleet(session)
        write_estimates(session, end, book.refresh(facts, end.timestamp()))


def _register(session: Session, incident: Incident, at: datetime) -> None:
    known = incident.registered
    commands_fleet.add_pool(
        session,
        ADMIN,
        name="main",
        models=[incident.profile.model],
        now=at,
        max_num_seqs=known.max_num_seqs,
        max_num_batched_tokens=known.max_num_batched_tokens,
        scheduling_policy=known.scheduling_policy,
        chunked_prefill=known.chunked_prefill,
    )
    for number in range(incident.nodes):
        name = f"gpu-{number + 1:02}"
        url = f"http://10.0.0.{number + 1}:8000"
        commands_fleet.add_node(session, ADMIN, name=name, url=url, pool="main", now=at)
    document = default_policy().as_document()
    document["admission"]["order"] = incident.order or "sjf_aging"
    commands_policy.ensure_first_revision(session, author=ADMIN, now=at, document=document)
