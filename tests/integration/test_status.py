"""`rhodeck status`, `nodes` and `pools` as processes, and what they stand on: queries and commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from control import audit, commands_fleet
from control.alerts import Observation, apply
from control.freshness import Freshness, freshness, stale_after_s
from control.partitions import make_partitions
from control.queries_fleet import fleet_health, health_timeline, node_health
from control.queries_nodes import node_detail, node_table
from control.roles import Actor, Role
from control.status_report import status_report
from control.tables import AlertRow, AuditRow, HealthRow, NodeRow, RoundRow, SampleRow, ScrapeFailureRow
from fleet.clock import SystemClock
from fleet.errors import Conflict, FleetError, Forbidden, InvalidInput, NotFound
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

ADA = Actor("ada", Role.OPERATOR, "cli")
T0 = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def rhodeck(dsn: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"DATABASE_URL": dsn}
    return subprocess.run(
        [sys.executable, "-m", "control", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def register(session: Session, *names: str, now: datetime = T0) -> None:
    commands_fleet.add_pool(session, ADA, name="p", models=["m"], now=now, max_num_seqs=256)
    for number, name in enumerate(names):
        commands_fleet.add_node(
            session, ADA, name=name, url=f"http://10.0.0.{number}:8000", pool="p", now=now
        )


def observed(session: Session, at: datetime, *nodes: str, **known: object) -> None:
    """Write what a round of `nodes` and its verdicts leave behind."""
    session.add(
        RoundRow(
            at=at,
            period_s=10.0,
            duration_s=0.5,
            lag_s=0.0,
            nodes_total=len(nodes),
            nodes_sampled=len(nodes),
        )
    )
    for node in nodes:
        session.add(
            SampleRow(
                at=at, node=node, engine="0", model="m", covered_s=10.0, running=4, waiting=1, completed=20,
                kv_used_ratio=0.25, kv_capacity_tokens=1_000, generation_tokens=500,
            )
        )  # fmt: skip
        session.add(HealthRow(at=at, scope="node", name=node, rho=0.5, grade="B"))
    values = {"rho": 0.61, "rho_low": 0.56, "rho_high": 0.76, "grade": "B"} | known
    session.add(HealthRow(at=at, scope="fleet", name="", **values))


def test_a_script_can_tell_healthy_from_not_and_from_unreachable(database: FreshDatabase):
    empty = rhodeck(database.dsn, "status", "--json")
    assert empty.returncode == 1
    assert "no node is registered" in json.loads(empty.stdout)["problems"]

    now = SystemClock().now()
    with Session(database.engine) as session, session.begin():
        make_partitions(session, now)
        register(session, "a", "b", now=now)
        # a stamp ahead of the clock by some seconds keeps the sample fresh while the process starts
        explained = {"explanation": ["rho = lambda / mu = 6.1 / 10 = 0.61"]}
        observed(session, now + timedelta(seconds=25), "a", "b", detail=explained)
    well = rhodeck(database.dsn, "status", "--json")
    said = json.loads(well.stdout)
    assert (well.returncode, said["healthy"], said["problems"]) == (0, True, [])
    assert said["nodes"] == {"fresh": 2, "stale": 0, "silent": 0}
    rho = {"value": 0.61, "low": 0.56, "high": 0.76, "grade": "B", "method": None}
    assert said["rho"] == rho | {"partial": False, "at_least": None, "silent_gateways": {}}
    assert (said["gateways"], said["alerts"], said["revision"]) == ([], [], None)
    assert [(v["scope"], v["rho"]["value"]) for v in said["verdicts"]] == [("fleet", 0.61)]
    reasons = rhodeck(database.dsn, "why", "fleet")
    assert reasons.stdout.splitlines() == ["fleet", "  rho = lambda / mu = 6.1 / 10 = 0.61"]
    unknown = rhodeck(database.dsn, "why", "node", "zz")
    assert unknown.returncode == 1
    assert "There are: a, b" in unknown.stderr
    text = rhodeck(database.dsn, "status")
    assert text.returncode == 0
    assert "0.61 [0.56, 0.76], grade B" in text.stdout
    with Session(database.engine) as session, session.begin():
        observed(session, now + timedelta(seconds=26), "a", "b", grade=None, method="configured")
    typed = rhodeck(database.dsn, "status")
    assert "0.61 [0.56, 0.76], on a configured capacity" in typed.stdout

    away = rhodeck("postgresql://nobody@127.0.0.1:1/nothing", "status", "--json")
    assert away.returncode == 2
    assert json.loads(away.stdout)["healthy"] is None
    assert "Traceback" not in away.stderr


def test_every_reason_not_to_be_healthy_is_named(session: Session):
    with session.begin():
        make_partitions(session, T0)
        register(session, "a", "b", "c")
        observed(session, T0, "a", "b")
        observed(session, T0 + timedelta(seconds=40), "a")
        session.add(
            ScrapeFailureRow(at=T0 + timedelta(seconds=40), node="b", reason="timeout", detail="late")
        )
        session.add(
            AlertRow(
                rule="rho_high", scope="fleet", subject="", state="acknowledged", severity="critical",
                opened_at=T0, updated_at=T0, summary="rho of the fleet is 1.10",
            )
        )  # fmt: skip
    report = status_report(session, T0 + timedelta(seconds=45))
    assert not report.is_healthy
    assert report.nodes == {"fresh": 1, "stale": 1, "silent": 1}
    assert [p.split(":")[0] for p in report.problems] == [
        "node b is stale",
        "node c is silent",
        "alert 1",
    ]
    assert "timeout" in report.problems[0]
    later = status_report(session, T0 + timedelta(hours=1))
    assert "the last scrape round is 3560 s old: is `rhodeck control` running?" in later.problems
    rho = later.as_dict()["rho"]
    assert isinstance(rho, dict)
    assert set(rho.values()) == {None}
    session.rollback()
    with session.begin():
        commands_fleet.drain_node(session, ADA, name="b", now=T0)
        commands_fleet.rest_node(session, ADA, name="c", now=T0)
        session.get_one(AlertRow, 1).state = "resolved"
    assert status_report(session, T0 + timedelta(seconds=45)).is_healthy


def test_an_overload_whose_alarm_still_waits_is_not_healthy(session: Session):
    overload = Observation("rho_high", "fleet", "", 3.68, "rho of the fleet is 3.68")
    with session.begin():
        make_partitions(session, T0)
        register(session, "a")
        observed(session, T0, "a", rho=3.68)
        apply(session, T0, 10.0, [overload])
    report = status_report(session, T0 + timedelta(seconds=5))
    # 10 s of the 120 s the alarm waits: no alert is open, and the fleet is not healthy either
    assert report.alerts == ()
    assert report.problems == ("the fleet: utilization above target for 10 s; the alarm opens after 120 s",)
    session.rollback()
    with session.begin():
        observed(session, T0 + timedelta(seconds=10), "a")
        apply(session, T0 + timedelta(seconds=10), 10.0, [replace(overload, value=0.61)])
    assert status_report(session, T0 + timedelta(seconds=15)).is_healthy


def test_freshness_is_three_rounds_or_a_minute_and_never_under_one_and_a_half_rounds():
    assert [stale_after_s(period) for period in (1, 10, 20, 30, 60, 300)] == [3, 30, 60, 60, 90, 450]
    assert freshness(29.9, 10) is Freshness.FRESH
    assert freshness(30.0, 10) is Freshness.STALE
    assert freshness(300.0, 10) is Freshness.SILENT
    assert freshness(None, 10) is Freshness.SILENT


def test_the_node_table_shows_last_values_with_their_age_and_no_verdict_that_is_old(session: Session):
    with session.begin():
        make_partitions(session, T0)
        register(session, "a", "b")
        observed(session, T0, "b")
        observed(session, T0 + timedelta(seconds=50), "a")
    a, b = node_table(session, T0 + timedelta(seconds=55))
    assert (a.freshness, a.age_s, a.rho, a.running) == (Freshness.FRESH, 5.0, 0.5, 4)
    assert (a.kv_used_tokens, a.kv_capacity_tokens, a.kv_used_ratio) == (250, 1_000, 0.25)
    assert (b.freshness, b.age_s, b.rho, b.running) == (Freshness.STALE, 55.0, None, 4)


def test_a_nodes_page_has_rates_over_covered_time_and_its_failures(session: Session):
    with session.begin():
        make_partitions(session, T0)
        register(session, "a")
        observed(session, T0, "a")
        session.add(ScrapeFailureRow(at=T0 + timedelta(seconds=10), node="a", reason="refused", detail="x"))
    detail = node_detail(session, "a", T0 + timedelta(seconds=15))
    first, second = detail.points
    assert (first.completed_rate, first.output_tokens_rate, first.arrivals_rate) == (2.0, 50.0, None)
    assert (second.failure, second.running) == ("refused", None)
    with pytest.raises(NotFound, match="nobody"):
        node_detail(session, "nobody", T0)


def test_a_timeline_has_holes_where_nothing_was_judged(session: Session):
    with session.begin():
        make_partitions(session, T0)
        register(session, "a")
        for number in (0, 1, 3):
            observed(session, T0 + timedelta(seconds=10 * number), "a", rho=0.1 * number)
    until = T0 + timedelta(seconds=40)
    points = health_timeline(session, "fleet", "", T0 + timedelta(seconds=3), until)
    assert [(p.at - T0).total_seconds() for p in points] == [0, 10, 20, 30]
    assert [p.rho for p in points] == [0.0, pytest.approx(0.1), None, pytest.approx(0.3)]
    thinned = health_timeline(session, "fleet", "", T0, until, max_points=2)
    assert [p.rho for p in thinned] == [pytest.approx(0.05), pytest.approx(0.3)]
    view = fleet_health(session, T0 + timedelta(seconds=100))
    assert view is not None
    assert view.is_stale
    assert view.age_s == 70.0


def test_the_command_line_adds_lists_drains_and_removes(database: FreshDatabase):
    def ok(*arguments: str) -> str:
        done = rhodeck(database.dsn, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    ok("pools", "add", "h100", "--model", "llama", "--max-num-seqs", "256")
    ok("nodes", "add", "n1", "http://10.0.0.1:8000/metrics", "--pool", "h100", "--price-class", "spot")
    (pool,) = json.loads(ok("pools", "list", "--json"))
    assert (pool["name"], pool["nodes"], pool["max_num_seqs"]) == ("h100", 1, 256)
    ok("nodes", "drain", "n1", "--note", "disk")
    (node,) = json.loads(ok("nodes", "list", "--json"))
    assert (node["base_url"], node["state"], node["freshness"]) == (
        "http://10.0.0.1:8000",
        "draining",
        "silent",
    )
    refused = rhodeck(database.dsn, "nodes", "add", "n2", "http://169.254.169.254", "--pool", "h100")
    assert refused.returncode == 1
    assert "169.254.169.254" in refused.stderr
    ok("nodes", "remove", "n1")
    assert "no nodes" in ok("nodes", "list")
    with Session(database.engine) as session:
        assert audit.verify(session) is None
        actions = session.scalars(select(AuditRow.action).order_by(AuditRow.id)).all()
        assert actions == ["pool.add", "node.add", "node.drain", "node.remove"]
        assert session.get_one(NodeRow, "n1").removed_at is not None


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h:1", "http://", "http://u:p@h:1", "http://h:1/v1", "http://h:1/metrics?x=1", "http://h:0",
        "http://169.254.1.1", "http://[fe80::1]:80", "http://2130706433", "http://0x7f000001", "http://h h",
        "http://100.100.100.200", "http://224.0.0.1", "http://0.0.0.0:80", "h:8000", "http://h\r\n:1",
    ],
)  # fmt: skip
def test_addresses_that_cannot_be_a_node_are_refused(url: str):
    with pytest.raises(InvalidInput) as caught:
        commands_fleet.checked_node_url(url)
    assert caught.value.field == "url"


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("http://node-1:8000", "http://node-1:8000"),
        ("https://node-1/metrics", "https://node-1"),
        ("http://127.0.0.1:9/", "http://127.0.0.1:9"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_addresses_of_nodes_are_kept_as_origins(url: str, kept: str):
    assert commands_fleet.checked_node_url(url) == kept


def test_commands_refuse_what_cannot_be_and_who_may_not(session: Session):
    with session.begin():
        register(session, "a")
    viewer = Actor("eve", Role.VIEWER, "page")
    attempts: list[tuple[type[FleetError], Actor, str, dict[str, str]]] = [
        (Forbidden, viewer, "b", {}),
        (Conflict, ADA, "a", {}),
        (Conflict, ADA, "b", {"url": "http://10.0.0.0:8000"}),
        (NotFound, ADA, "b", {"pool": "nowhere"}),
        (InvalidInput, ADA, "B!", {}),
        (InvalidInput, ADA, "b", {"price_class": "free"}),
        (InvalidInput, ADA, "b", {"metrics_path": "metrics"}),
    ]
    for kind, actor, name, changed in attempts:
        asked = {"url": "http://10.0.0.9:8000", "pool": "p"} | changed
        with pytest.raises(kind), session.begin():
            commands_fleet.add_node(session, actor, name=name, now=T0, **asked)
    assert session.scalars(select(NodeRow.name)).all() == ["a"]
    assert len(session.scalars(select(AuditRow.id)).all()) == 2  # the pool and the node, nothing refused
    session.rollback()
    with pytest.raises(Conflict, match="1 nodes"), session.begin():
        commands_fleet.remove_pool(session, ADA, name="p", now=T0)


def test_a_removed_node_keeps_its_name_for_a_return(session: Session):
    with session.begin():
        register(session, "a")
        commands_fleet.remove_node(session, ADA, name="a", now=T0)
        commands_fleet.add_node(session, ADA, name="a", url="http://10.0.0.7:1", pool="p", now=T0)
    row = session.get_one(NodeRow, "a")
    assert (row.state, row.base_url, row.removed_at) == ("active", "http://10.0.0.7:1", None)


def test_verdicts_of_nodes_are_those_of_the_newest_round(session: Session) -> None:
    with session.begin():
        make_partitions(session, T0)
        observed(session, T0, "n1", "n2", "gone")
        observed(session, T0 + timedelta(seconds=10), "n1", "n2")  # a round judges every node there is
    now = T0 + timedelta(seconds=12)
    assert [(view.name, view.age_s) for view in node_health(session, now)] == [("n1", 2.0), ("n2", 2.0)]
    assert node_health(session, T0 + timedelta(hours=2)) == []
