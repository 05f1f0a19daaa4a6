"""History reads the same from rounds, minutes and hours, and says how coarse it is."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import cast

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from control.database import session_scope
from control.gateway_scrape import FlowWindow
from control.panels import _COLUMNS, COLUMNS, _query, node_panel
from control.partitions import Retention, drop_old, make_partitions
from control.queries_gateway_traffic import gateway_ttft, traffic_by_tenant
from control.queries_history import (
    health_history,
    latency_history,
    latency_timeline,
    level_of,
    sum_level_of,
)
from control.queries_latency import latency_quantiles
from control.queries_traffic_history import door_ttft, traffic_history
from control.rollup import Roller
from control.sample_store import EdgeIds, copy_rows, edges_of, write_round
from control.scrape import EngineSample, GatewayResult, NodeResult, Round
from control.tables import NodeRow, PoolRow
from control.tables_rollup import GATEWAY, Level
from fleet.clock import ManualClock
from fleet.errors import InvalidInput
from fleet.readings import EngineWindow, Histogram
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

T0 = datetime(2026, 3, 2, 0, 0, tzinfo=UTC)
PERIOD_S = 60.0
EDGES = (0.1, 0.5, 1.0, 2.0)
#: Minutes without a round: two in the middle of an hour, and one whole hour.
HOLES = {10, 11, *range(60, 120)}
HOURS = 3


def a_window(number: int) -> EngineWindow:
    counts = (number % 7, 3, number % 5, 1, 0)
    return EngineWindow(
        engine="0", model="m", length_s=PERIOD_S, restarted=False, arrivals=number, completed=number,
        errors=0, aborted=0, prompt_tokens=10 * number, prompt_tokens_computed=None,
        generation_tokens=number, preemptions=0, prefix_cache_hits=None, prefix_cache_queries=None,
        running=3, waiting=number % 11, waiting_capacity=None, kv_used_ratio=0.5, kv_capacity_tokens=1000,
        histograms={"ttft_s": Histogram(EDGES, counts, 0.25 * sum(counts))},
    )  # fmt: skip


def a_flow(tenant: str, number: int) -> FlowWindow:
    return FlowWindow(
        tenant=tenant, tier="batch", covered_s=PERIOD_S, offered=10, dispatched=8,
        outcomes={"dispatched": 8, "rejected_queue_full": 2}, prompt_tokens=number, output_tokens=600,
        queued_requests=1, in_flight_requests=2, in_flight_tokens=3,
        histograms={"ttft_s": Histogram(EDGES, (1, 2, 3, 0, 0), 2.0)},
    )  # fmt: skip


def rho_at(minute: int) -> float:
    return 0.5 + 0.001 * minute


@pytest.fixture
def past(database: FreshDatabase) -> Engine:
    """Three hours of a node and a gateway, a round a minute, rolled up but for the newest rounds."""
    engine = database.engine
    with session_scope(engine) as session:
        session.add(PoolRow(name="p", models=["m"], created_at=T0))
        session.flush()
        session.add(
            NodeRow(
                name="a", pool="p", base_url="http://a", price_class="spot", state="active", created_at=T0
            )
        )
        make_partitions(session, T0)
    ids = EdgeIds()
    rounds = [
        Round(
            T0 + timedelta(minutes=minute), PERIOD_S, 0.1, 0.0,
            (NodeResult("a", "p", 0.01, (EngineSample("0", a_window(minute), PERIOD_S),)),),
            tuple(GatewayResult(g, (a_flow("t", minute),)) for g in ("g1", "g2")),
        )
        for minute in range(60 * HOURS)
        if minute not in HOLES
    ]  # fmt: skip
    ids.learn(engine, edges_of(rounds[0]))
    types = {"at": "timestamptz", "scope": "text", "name": "text", "rho": "float8", "rho_low": "float8",
             "rho_high": "float8", "waiting": "int4", "partial": "bool"}  # fmt: skip
    with session_scope(engine) as session:
        for round_ in rounds:
            assert write_round(session, round_, ids)
            rho = rho_at(round((round_.at - T0).total_seconds() / 60))
            verdict = {"at": round_.at, "rho": rho, "rho_low": rho - 0.1, "rho_high": rho + 0.1}
            rows = [verdict | {"scope": s, "name": n, "waiting": 1, "partial": False}
                    for s, n in (("fleet", ""), ("node", "a"))]  # fmt: skip
            copy_rows(session, "health", types, rows)
    now = end() - timedelta(minutes=3)  # the newest minutes are not rolled up yet
    Roller(engine, ManualClock(now)).run(now)
    return engine


def end() -> datetime:
    return T0 + timedelta(hours=HOURS)


@pytest.fixture
def session(past: Engine):
    with Session(past) as opened:
        yield opened


def minutes_without_a_hole(first: int, last: int) -> list[int]:
    return [minute for minute in range(first, last) if minute not in HOLES]


def test_an_hour_is_read_from_rounds_and_three_from_minutes(session: Session):
    assert health_history(session, "fleet", "", end() - timedelta(hours=1), end()).level is Level.RAW
    history = health_history(session, "fleet", "", T0, end(), max_points=1000)
    assert history.level is Level.MINUTE
    assert (history.bucket, history.waiting) == (timedelta(minutes=1), 0)
    assert [p.at for p in history.points] == [T0 + timedelta(minutes=m) for m in range(60 * HOURS)]
    for minute, point in enumerate(history.points):  # the newest, not rolled up yet, included
        if minute in HOLES:
            assert (point.rho, point.rho_low, point.waiting) == (None, None, None)
        else:
            assert point.rho == pytest.approx(rho_at(minute))
            assert (point.rho_low, point.rho_high) == pytest.approx(
                (rho_at(minute) - 0.1, rho_at(minute) + 0.1)
            )


def test_a_month_is_read_from_hours_and_an_hour_without_rounds_stays_a_gap(session: Session):
    history = health_history(session, "node", "a", end() - timedelta(days=30), end())
    assert history.level is Level.HOUR
    assert history.bucket == timedelta(hours=1)
    known = {p.at: p for p in history.points if p.rho is not None}
    assert sorted(known) == [T0 + timedelta(hours=h) for h in range(HOURS) if h != 1]
    for hour in (0, 2):  # the first has a hole of two minutes: the mean is of the others
        rounds = minutes_without_a_hole(60 * hour, 60 * (hour + 1))
        truth = sum(map(rho_at, rounds)) / len(rounds)
        assert known[T0 + timedelta(hours=hour)].rho == pytest.approx(truth)


def test_latency_is_the_same_from_every_level(session: Session):
    raw = latency_quantiles(session, since=T0, until=end())
    by_minute = latency_history(session, "fleet", "", T0, end())
    assert by_minute == raw
    assert by_minute["ttft_s"].count == sum(
        m % 7 + 3 + m % 5 + 1 for m in minutes_without_a_hole(0, 60 * HOURS)
    )
    rolled = end() - timedelta(days=5)
    now = end() + timedelta(minutes=10)
    Roller(session.get_bind(), ManualClock(now)).run(now)  # type: ignore[arg-type]
    for scope, name in (("fleet", ""), ("pool", "p"), ("node", "a")):
        assert latency_history(session, scope, name, rolled, end()) == raw  # type: ignore[arg-type]
    assert latency_history(session, "node", "nobody", T0, end())["ttft_s"].count == 0


def test_a_latency_timeline_has_a_gap_where_nobody_was_measured(session: Session):
    points = latency_timeline(session, "ttft_s", "fleet", "", T0, end(), max_points=HOURS)
    assert [p.at for p in points] == [T0 + timedelta(hours=h) for h in range(HOURS)]
    assert [p.view.count > 0 for p in points] == [hour != 1 for hour in range(HOURS)]
    whole = latency_quantiles(session, since=T0, until=T0 + timedelta(hours=1))["ttft_s"]
    assert points[0].view == whole


def test_traffic_is_the_same_from_minutes_and_its_rate_divides_by_time_that_was_counted(session: Session):
    found = traffic_history(session, T0, end())
    assert list(found.flows) == traffic_by_tenant(session, T0, end())
    (flow,) = found.flows
    rounds = len(minutes_without_a_hole(0, 60 * HOURS))
    assert flow.offered == 2 * 10 * rounds
    assert flow.refused == {"rejected_queue_full": 2 * 2 * rounds}
    assert found.covered_s == {("t", "batch"): PERIOD_S * rounds}  # two gateways, the same time


@pytest.mark.parametrize("ago", [timedelta(minutes=8), timedelta(minutes=40)])
def test_the_last_minutes_are_the_same_from_minutes_and_what_follows_them(session: Session, ago: timedelta):
    since, until = end() - ago, end()  # the newest three minutes are not rolled up yet
    read = level_of(session, GATEWAY, since, until), sum_level_of(session, GATEWAY, since, until)
    assert read == (Level.RAW, Level.MINUTE)
    raw = traffic_by_tenant(session, since, until)
    minutes = int(ago.total_seconds() / 60)
    assert raw[0].offered == 2 * 10 * minutes  # two gateways, ten a minute each
    assert list(traffic_history(session, since, until).flows) == raw
    (counts,) = traffic_history(session, since, until, has_latency=False).flows
    assert counts == replace(raw[0], ttft=counts.ttft, queue_wait=counts.queue_wait)
    assert counts.ttft.count == 0
    assert door_ttft(session, since, until) == gateway_ttft(session, since, until) == raw[0].ttft
    fleet = latency_history(session, "fleet", "", since, until)
    assert fleet == latency_quantiles(session, since=since, until=until)
    assert fleet["ttft_s"].count > 0


def test_traffic_of_days_is_that_of_their_hours_and_rounds(session: Session):
    since, until = T0 - timedelta(days=3, hours=5), end()
    raw = traffic_by_tenant(session, T0, until)
    rounds = len(minutes_without_a_hole(0, 60 * HOURS))
    assert list(traffic_history(session, since, until).flows) == raw  # its day is not over
    engine: Engine = session.get_bind()  # type: ignore[assignment]
    now = T0 + timedelta(days=2)
    Roller(engine, ManualClock(now)).run(now)
    session.rollback()
    for until in (end(), now):  # the day at the end of the range, and in the middle of it
        found = traffic_history(session, since, until)
        assert [(f.offered, f.dispatched, f.refused, f.ttft) for f in found.flows] == [
            (f.offered, f.dispatched, f.refused, f.ttft) for f in raw
        ]
        assert found.covered_s == {("t", "batch"): PERIOD_S * rounds}
    with session.begin_nested():
        session.execute(text("DELETE FROM gateway_minute"))
        session.execute(text("DELETE FROM gateway_hour"))
    assert traffic_history(session, since, now).flows[0].offered == raw[0].offered  # from the day's row


def test_what_raw_rows_no_longer_say_minutes_do_and_then_hours(session: Session):
    engine: Engine = session.get_bind()  # type: ignore[assignment]
    now = T0 + timedelta(days=4)
    Roller(engine, ManualClock(now)).run(now)
    before = latency_history(session, "fleet", "", T0, T0 + timedelta(hours=1))
    session.rollback()
    assert "sample_20260302" in drop_old(engine, now, Retention()).names
    hour = T0 + timedelta(hours=1)
    assert latency_history(session, "fleet", "", T0, hour) == before
    assert health_history(session, "fleet", "", T0, hour).level is Level.MINUTE
    session.rollback()
    drop_old(engine, T0 + timedelta(days=30), Retention())
    assert health_history(session, "fleet", "", T0, hour).level is Level.HOUR
    assert latency_history(session, "fleet", "", T0, hour) == before


def test_minutes_that_wait_are_counted(session: Session):
    with session.begin():
        session.execute(
            text("INSERT INTO rollup_due (level, at, not_before) VALUES ('minute', :at, :at)"), {"at": T0}
        )
    assert health_history(session, "fleet", "", T0, end()).waiting == 1


@pytest.mark.parametrize("level", [Level.RAW, Level.MINUTE, Level.HOUR])
def test_a_panel_says_for_each_node_what_its_rows_say_and_holes_are_not_zero(
    session: Session, level: Level
):
    engine: Engine = session.get_bind()  # type: ignore[assignment]
    now = end() + timedelta(hours=1)
    Roller(engine, ManualClock(now)).run(now)
    panel = node_panel(session, ["waiting", "output_tokens_rate", "kv_used_ratio"], T0, end(), level=level)
    width = 60 if level is Level.HOUR else 1  # minutes; a round is a minute here
    assert (panel.nodes, panel.since, panel.bucket) == (("a",), T0, timedelta(minutes=width))
    for bucket, values in enumerate(zip(*(panel.values[c][0] for c in panel.values), strict=True)):
        rounds = minutes_without_a_hole(width * bucket, width * (bucket + 1))
        if not rounds:
            assert all(math.isnan(value) for value in values)
            continue
        waiting = sum(m % 11 for m in rounds) / len(rounds)
        assert values == pytest.approx((waiting, sum(rounds) / PERIOD_S / len(rounds), 0.5))


def test_a_node_of_which_an_engine_did_not_say_is_not_known(session: Session):
    with session.begin():  # another engine of the node, in one round only
        session.execute(
            text(
                "INSERT INTO sample "
                "(at, node, engine, covered_s, waiting, generation_tokens, kv_used_ratio) "
                "VALUES (:at, 'a', '1', 60, 5, 120, 0.7)"
            ),
            {"at": T0 + timedelta(minutes=3)},
        )
    panel = node_panel(session, COLUMNS, T0, T0 + timedelta(minutes=6), level=Level.RAW)
    assert [math.isnan(v) for v in panel.values["waiting"][0]] == [True, True, True, False, True, True]
    assert panel.values["waiting"][0][3] == 3 % 11 + 5  # both engines
    assert panel.values["output_tokens_rate"][0][3] == pytest.approx(3 / 60 + 120 / 60)
    assert panel.values["kv_used_ratio"][0][3] == pytest.approx((0.5 + 0.7) / 2)
    assert math.isnan(panel.values["completed_rate"][0][3])  # the second engine did not say
    with pytest.raises(InvalidInput, match="nonsense"):
        node_panel(session, ["nonsense"], T0, end())


def test_a_panel_of_rounds_needs_nothing_but_the_index(session: Session):
    # what the index does not carry costs a page of wide rows for each value
    query = _query(list(_COLUMNS.values()), Level.RAW, T0, end(), timedelta(minutes=1), is_single=True)
    raw = cast("psycopg.Connection", session.connection().connection.driver_connection)
    raw.rollback()
    raw.autocommit = True
    raw.execute("VACUUM (ANALYZE) sample")
    for other in ("seqscan", "bitmapscan", "sort", "hashagg"):  # what is quicker for a hundred rows
        raw.execute(sql.SQL("SET {} = off").format(sql.Identifier(f"enable_{other}")))
    plan = "\n".join(line for (line,) in raw.execute(sql.SQL("EXPLAIN ") + query))
    assert "Index Only Scan" in plan
    assert "Seq Scan" not in plan


def test_a_panel_leaves_the_plans_of_other_statements_alone(session: Session):
    asked = "SELECT current_setting('work_mem'), current_setting('max_parallel_workers_per_gather')"
    before = session.execute(text(asked)).one()
    node_panel(session, ["running"], T0, end(), level=Level.RAW)
    assert session.execute(text(asked)).one() == before
