"""Flow in Postgres: minutes are written once, outlive the controller, and feed page and objective."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from sqlalchemy import delete, func, select, text
from sqlalchemy.orm import Session

from control import lease
from control.flow_book import FlowBook, FlowRound, FlowState
from control.flow_store import (
    SloCount,
    flow_now,
    flow_timeline,
    policy_in_force,
    slo_count,
    stored_minutes,
    write_flow,
)
from control.own_metrics import ControlMetrics
from control.partitions import make_partitions
from control.queries_flow import utilization_curves
from control.rollup import Roller
from control.rollup_due import mark_rounds, raise_horizon
from control.round_writer import Recorded, RoundWriter
from control.tables import FlowMinuteRow, HealthRow, PolicyRevisionRow, RoundRow, SampleRow
from fleet.clock import ManualClock
from fleet.equilibrium import Balance, Equilibrium
from fleet.policy import default_policy
from fleet.readings import Histogram
from fleet.slo_windows import GoodCount
from tests.pages.flow_rows import MINUTES, add_flow
from tests.postgres_server import FreshDatabase
from tests.unit.control.test_flow_book import T0, World, quiet

pytestmark = pytest.mark.postgres

LAST = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)
#: What `add_flow(session, LAST)` covers.
RANGE = (LAST - (MINUTES - 1) * MINUTE, LAST + MINUTE)


def test_minutes_and_states_are_read_back_as_written(session: Session):
    add_flow(session, LAST)
    states = flow_now(session)
    assert [(s.scope, s.name) for s in states] == [("fleet", ""), ("tier", "interactive")]
    assert states[0].balance == "unstable"
    assert states[0].p99_doubling_min == pytest.approx(15, rel=0.05)
    points = flow_timeline(session, "fleet", "", *RANGE)
    assert len(points) == MINUTES
    assert points[-1].at == LAST
    assert [p.arrivals for p in points] == [600] * MINUTES
    assert {type(points[0].arrivals), type(points[0].explained), type(points[0].p99_s)} == {int, float}
    # every place is explained: 10/s of their mean time
    assert points[0].explained == pytest.approx(points[0].mean_in_system)
    good = GoodCount(620 * MINUTES, 582 * MINUTES, 582 * MINUTES)
    counted = slo_count(session, "fleet", "", LAST - DAY, LAST + DAY)
    assert counted == SloCount(good, 60.0 * MINUTES)
    assert counted.goodput == pytest.approx(9.7)  # 582 a minute
    assert slo_count(session, "pool", "none", LAST - DAY, LAST + DAY) is None


def test_a_round_written_twice_and_an_older_one_change_nothing(session: Session):
    add_flow(session, LAST)
    add_flow(session, LAST)
    assert session.scalar(select(func.count()).select_from(FlowMinuteRow)) == 2 * MINUTES
    write_flow(session, FlowRound(LAST, (), (), ()))
    add_flow(session, LAST - timedelta(minutes=5))
    assert flow_now(session)[0].at == LAST


def test_a_queue_without_overtaking_has_a_length_at_percentiles_and_another_one_does_not(session: Session):
    # everybody waits 2 s at 10/s: the number waiting is Poisson(20), whose p99 is 31
    waits = Histogram((1.999, 2.0), (0, 600, 0), 1200.0)
    state = Equilibrium(Balance.EQUILIBRIUM, (), None)
    queues = [
        FlowState(("tier", name), state, 3, None, waits, None, 60.0, is_fifo=is_fifo)
        for name, is_fifo in (("batch", True), ("interactive", False))
    ]
    write_flow(session, FlowRound(LAST, tuple(queues), (), ()))
    found = {s.name: s.detail["queue_lengths"] for s in flow_now(session)}
    assert found["interactive"] == []
    (p99,) = [row for row in found["batch"] if row["q"] == 0.99]
    assert p99["low"] <= 31 <= p99["high"]


def test_a_queue_that_is_gone_leaves_the_list(session: Session):
    add_flow(session, LAST)
    write_flow(session, FlowRound(LAST + timedelta(hours=5), (), (), ()))
    assert len(flow_now(session)) == 2
    write_flow(session, FlowRound(LAST + timedelta(hours=7), (), (), ()))
    assert flow_now(session) == []
    assert [p.arrivals for p in flow_timeline(session, "fleet", "", *RANGE)] == [600] * MINUTES


def test_a_minute_that_is_missing_is_a_gap_and_moves_no_other(session: Session):
    add_flow(session, LAST)
    lost = LAST - 30 * MINUTE
    session.execute(delete(FlowMinuteRow).where(FlowMinuteRow.at == lost))
    points = flow_timeline(session, "fleet", "", RANGE[0], LAST + 10 * MINUTE)
    steps = {later.at - earlier.at for earlier, later in pairwise(points)}
    assert steps == {MINUTE}  # a chart has one step for all
    unknown = [p.at for p in points if p.p99_s is None]
    assert unknown == [lost, *(LAST + n * MINUTE for n in range(1, 10))]


def test_a_long_range_keeps_its_worst_minute(session: Session):
    add_flow(session, LAST)
    every = flow_timeline(session, "fleet", "", *RANGE)
    points = flow_timeline(session, "fleet", "", *RANGE, max_points=4)
    assert [p.arrivals for p in points] == [6_000] * 4
    assert [p.p99_s for p in points] == [
        max(p.p99_s or 0 for p in every[n : n + 10]) for n in (0, 10, 20, 30)
    ]
    assert points[0].explained == pytest.approx(sum(p.explained or 0 for p in every[:10]) / 10)
    assert len(flow_timeline(session, "fleet", "", LAST - 30 * DAY, LAST)) <= 720


def test_a_controller_that_starts_knows_the_doubling_its_predecessor_saw(session: Session):
    add_flow(session, LAST)
    stored = stored_minutes(session, LAST + timedelta(seconds=30))
    assert len(stored) == 2 * MINUTES
    book = FlowBook()
    assert book.refill(stored, 10.0) == 2 * MINUTES
    kept = book.minutes(("fleet", ""))
    assert [m.minute.p99_s for m in kept] == [p.p99_s for p in flow_timeline(session, "fleet", "", *RANGE)]
    assert kept[-1].good == GoodCount(620, 582, 582)
    assert stored_minutes(session, LAST + timedelta(hours=7)) == []


def test_the_newest_policy_is_read_once_and_an_unreadable_one_is_not_taken(session: Session):
    assert policy_in_force(session, None) is None
    document = default_policy().as_document()

    def publish(number: int, content: dict[str, object]) -> None:
        session.add(
            PolicyRevisionRow(
                number=number, parent=number - 1 or None, digest=str(number), document=content,
                author="ana", note="n", created_at=LAST,
            )
        )  # fmt: skip
        session.flush()

    publish(1, document)
    known = policy_in_force(session, None)
    assert known is not None
    assert (known[0], known[1].slo.ttft_s) == (1, 0.5)
    assert policy_in_force(session, known) is known
    publish(2, {"schema": "of another release"})
    assert policy_in_force(session, known) is known


def test_the_utilization_curve_is_of_known_rounds_only(session: Session):
    make_partitions(session, LAST)
    session.add(RoundRow(at=LAST, period_s=10.0, duration_s=0.1, lag_s=0.0, nodes_total=1, nodes_sampled=1))
    for number in range(100):  # 80 rounds at 0.28, 10 at 1.1, 10 unknown
        rho = 0.28 if number < 80 else 1.1 if number < 90 else None
        session.add(HealthRow(at=LAST - timedelta(seconds=10 * number), scope="pool", name="p", rho=rho))
    session.flush()
    curves = utilization_curves(session, LAST - timedelta(seconds=995), LAST + timedelta(seconds=5))
    assert list(curves) == ["p"]
    curve = curves["p"]
    assert (curve.p10, curve.p50, curve.p90) == pytest.approx((0.28, 0.28, 1.1), abs=0.1)
    assert curve.above_knee == pytest.approx(10 / 90)
    assert curve.known == 90
    assert curve.coverage == pytest.approx(0.9)
    assert curve.is_mostly_idle is True


def test_a_utilization_curve_of_days_without_rounds_is_of_means(session: Session):
    """Two hours at 0.2 and two at 1.0: half of the time above 0.85, whichever rows are left."""
    start = LAST.replace(minute=0, second=0, microsecond=0)
    make_partitions(session, start)
    session.add(
        RoundRow(at=start, period_s=60.0, duration_s=0.1, lag_s=0.0, nodes_total=1, nodes_sampled=1)
    )
    for minute in range(240):
        at = start + timedelta(minutes=minute)
        session.add(HealthRow(at=at, scope="pool", name="p", rho=0.2 if minute < 120 else 1.0))
    mark_rounds(session, [start + timedelta(minutes=minute) for minute in range(240)], 60.0)
    session.commit()
    later = start + timedelta(days=2)
    Roller(session.get_bind(), ManualClock(later)).run(later)  # type: ignore[arg-type]
    end = start + timedelta(hours=4)
    for table, width_s in (("health", None), ("health_minute", 60.0), (None, 3600.0)):
        curve = utilization_curves(session, start, end)["p"]
        assert curve.width_s == width_s
        assert (curve.p10, curve.p90) == pytest.approx((0.2, 1.0))
        assert curve.above_knee == pytest.approx(0.5)
        assert (curve.known, curve.coverage) == (240, pytest.approx(1.0))
        if table is not None:  # what retention does
            session.execute(text(f"DELETE FROM {table}"))
            raise_horizon(session, table, end)


def test_flow_is_written_with_its_round_also_when_that_waited(database: FreshDatabase, session: Session):
    """Through the buffer and the writer, as the controller does: 13 rounds end two minutes."""
    with session.begin():
        make_partitions(session, LAST)
        held = lease.take(session, role="controller", owner="me", ttl_s=600)
    assert held is not None
    writer, world = RoundWriter(database.engine, ControlMetrics()), World()
    for number in range(1, 14):
        done = quiet(world, number, {})
        assessment = world.assessor.assess(done, world.facts)
        flow = world.book.take(done, assessment)
        writer.offer(Recorded(done, assessment, (), flow=flow))
    writer.flush(held.epoch)
    with session.begin():
        states = flow_now(session)
        assert [(s.scope, s.name, s.balance) for s in states] == [
            ("fleet", "", "equilibrium"),
            ("pool", "p", "equilibrium"),
        ]
        # 3 nodes x 4 req/s x 60 s
        points = flow_timeline(session, "pool", "p", T0, T0 + 3 * MINUTE)
        assert [p.arrivals for p in points] == [None, 720, 720]
        stored = session.execute(select(SampleRow.decode_count, SampleRow.decode_sum_s)).first()
        assert stored == (40, 140.0)
