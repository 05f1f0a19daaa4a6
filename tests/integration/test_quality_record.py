"""Findings from a node's page to the record and the command line, through the real parts."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from zoneinfo import ZoneInfo

import httpx
import pytest
from click.testing import CliRunner
from sqlalchemy import select
from sqlalchemy.orm import Session

from control.api import ApiDeps, build_app
from control.cli import rhodeck
from control.fetch import open_session
from control.fleet_facts import FleetFacts, Node
from control.own_metrics import ControlMetrics
from control.quality import QualityBook
from control.quality_store import apply, open_standing, trim
from control.queries_quality import findings
from control.roles import Actor, Role
from control.scrape import Scraper
from control.tables import QualityFindingRow
from control.tokens import Scope, create_api_token
from fleet.clock import ManualClock
from tests.postgres_server import FreshDatabase
from tests.small_node import SmallNode, page, small_nodes

pytestmark = pytest.mark.postgres

PERIOD_S = 10.0


class Watched:
    """One node asked again and again, its findings written each round."""

    def __init__(self, node: SmallNode, scraper: Scraper, clock: ManualClock, session: Session) -> None:
        self.node, self.scraper, self.clock, self.session = node, scraper, clock, session
        self.book = QualityBook()

    async def round(self) -> None:
        facts = FleetFacts((Node("n", "p", f"{self.node.url}/metrics", "active", self.clock.now()),))
        done = await self.scraper.run(facts.targets, (), self.clock.now())
        with self.session.begin():
            apply(self.session, self.book.take(done, facts))
        self.clock.advance(PERIOD_S)

    def rows(self) -> dict[tuple[str, str], QualityFindingRow]:
        """Rows about the page, by kind and metric. (The made-up clock is far from the server's.)"""
        with self.session.begin():
            rows = self.session.scalars(select(QualityFindingRow).order_by(QualityFindingRow.id))
            return {(r.kind, r.metric): r for r in rows if r.kind not in ("clock_skew", "metric_missing")}


def test_a_fault_is_recorded_from_its_first_round_to_its_last(session: Session, clock: ManualClock):
    began = clock.now()

    async def run() -> dict[tuple[str, str], QualityFindingRow]:
        async with small_nodes(1) as (node,), open_session() as http:
            scraper = Scraper(http, clock, ControlMetrics(), period_s=PERIOD_S, deadline_s=30.0)
            watched = Watched(node, scraper, clock, session)
            node.body = page(running=1, kv=-0.4)
            await watched.round()
            node.body = page(running=1, kv=-0.4, generated=5)
            await watched.round()
            assert watched.rows()["clamped", "kv_used_ratio"].until is None
            for n in range(4):
                node.body = page(running=1, kv=0.4 + n / 10, generated=6 + n)
                await watched.round()
            node.status = 500
            for _ in range(2):
                await watched.round()
            return watched.rows()

    rows = asyncio.run(run())
    clamped = rows["clamped", "kv_used_ratio"]
    assert (clamped.since, clamped.until) == (began, began + timedelta(seconds=PERIOD_S))
    assert "KV use" in clamped.affects
    no_page = rows["no_page", "http_error"]
    assert (no_page.since, no_page.until) == (began + timedelta(seconds=6 * PERIOD_S), None)
    assert "status 500" in no_page.detail


def test_what_stands_outlives_the_controller_and_is_not_recorded_twice(
    session: Session, clock: ManualClock
):
    async def run() -> None:
        async with small_nodes(1) as (node,), open_session() as http:
            scraper = Scraper(http, clock, ControlMetrics(), period_s=PERIOD_S, deadline_s=30.0)
            watched = Watched(node, scraper, clock, session)
            node.status = 500
            await watched.round()
            watched.book = QualityBook()  # another process, which begins with what stands
            with session.begin():
                watched.book.refill(open_standing(session), clock.now())
            await watched.round()
            assert list(watched.rows()) == [("no_page", "http_error")]
            watched.book = QualityBook()  # one that forgot to: the record is brought in line all the same
            node.status, node.body = 200, page(running=1, kv=0.3)
            await watched.round()
            assert watched.rows()["no_page", "http_error"].until == clock.now() - timedelta(
                seconds=PERIOD_S
            )

    asyncio.run(run())


def row(clock: ManualClock, source: str, severity: str, *, ago_s: float, ended_s: float | None = None):
    return QualityFindingRow(
        scope="node",
        source=source,
        engine="0",
        metric="kv_used_ratio",
        kind="clamped",
        severity=severity,
        since=clock.now() - timedelta(seconds=ago_s),
        until=None if ended_s is None else clock.now() - timedelta(seconds=ended_s),
        detail="",
        affects=["KV use"],
    )


def test_the_worst_that_stands_comes_first_and_what_ended_long_ago_not_at_all(
    session: Session, clock: ManualClock
):
    with session.begin():
        session.add_all(
            [
                row(clock, "note", "note", ago_s=5),
                row(clock, "fault", "fault", ago_s=900),
                row(clock, "warning", "warning", ago_s=60),
                row(clock, "ended", "fault", ago_s=500, ended_s=100),
                row(clock, "over", "fault", ago_s=90_000, ended_s=80_000),
            ]
        )
    found = findings(session, clock.now(), window=timedelta(hours=1))
    assert [view.source for view in found] == ["fault", "warning", "note", "ended"]
    assert [view.source for view in findings(session, clock.now())] == ["fault", "warning", "note"]
    assert [view.source for view in findings(session, clock.now(), source="warning")] == ["warning"]
    assert found[0].title == "Outside its range"


def test_findings_that_ended_before_the_retention_are_deleted(
    database: FreshDatabase, session: Session, clock: ManualClock
):
    with session.begin():
        session.add_all(
            [
                row(clock, "old", "fault", ago_s=40 * 86_400, ended_s=31 * 86_400),
                row(clock, "new", "fault", ago_s=40 * 86_400, ended_s=29 * 86_400),
                row(clock, "open", "fault", ago_s=40 * 86_400),
            ]
        )
    assert trim(database.engine, clock.now(), keep_days=30, fence=lambda _: None) == 1
    assert set(session.scalars(select(QualityFindingRow.source))) == {"new", "open"}


def test_the_command_prints_what_stands(
    database: FreshDatabase, session: Session, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DATABASE_URL", database.dsn)
    empty = CliRunner().invoke(rhodeck, ["quality"])
    assert (empty.exit_code, empty.output) == (0, "nothing is wrong with the data\n")
    with session.begin():
        session.add(row(clock, "node-7", "fault", ago_s=900))
    said = CliRunner().invoke(rhodeck, ["quality"])
    assert said.exit_code == 0, said.output
    assert (
        "fault   node node-7 engine 0: outside its range kv_used_ratio, since 2026-03-02 11:45:00 UTC"
        in (said.output)
    )
    (found,) = json.loads(CliRunner().invoke(rhodeck, ["quality", "--json"]).output)["findings"]
    assert (found["kind"], found["source"], found["until"]) == ("clamped", "node-7", None)
    assert json.loads(CliRunner().invoke(rhodeck, ["quality", "--json", "--source", "x"]).output) == {
        "findings": []
    }


def test_the_api_answers_with_what_stands_and_what_ended(
    database: FreshDatabase, session: Session, clock: ManualClock
):
    with session.begin():
        session.add(row(clock, "node-7", "fault", ago_s=900))
        session.add(row(clock, "node-8", "fault", ago_s=9_000, ended_s=7_200))
        admin, scopes = Actor("ana", Role.ADMIN, "cli"), [Scope.STATUS_READ]
        made = create_api_token(session, name="reader", scopes=scopes, days=1, actor=admin, now=clock.now())
    transport = httpx.ASGITransport(build_app(ApiDeps(database.engine, clock, ZoneInfo("UTC"))))
    headers = {"Authorization": f"Bearer {made.secret}"}

    async def run() -> None:
        async with httpx.AsyncClient(transport=transport, base_url="http://api", headers=headers) as client:

            async def sources(query: str) -> list[str]:
                answer = await client.get(f"/api/v1/quality{query}")
                assert answer.status_code == 200, answer.text
                return [each["source"] for each in answer.json()["findings"]]

            assert await sources("") == ["node-7", "node-8"]
            assert await sources("?hours=1") == ["node-7"]
            assert await sources("?hours=24&source=node-8") == ["node-8"]
            for bad in ("-1", "721", "1.5", "x", "%d9%a1"):
                assert (await client.get(f"/api/v1/quality?hours={bad}")).status_code == 422

    asyncio.run(run())
