"""Rounds in Postgres: whole or not at all, once, in order, across an outage, in the right partition."""

from __future__ import annotations

from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from control import lease
from control.assess import Assessment
from control.database import make_engine, upgrade
from control.embedded import EmbeddedPostgres, socket_dsn
from control.gateway_scrape import FlowWindow
from control.lease import LeaseLost
from control.own_metrics import ControlMetrics
from control.partitions import Retention, drop_old, make_partitions, misplaced_rows, trim_old
from control.queries_fleet import recent_rounds, scrape_quality
from control.queries_gateway_traffic import traffic_by_tenant, traffic_timeline
from control.queries_latency import latency_quantiles
from control.rollup import Roller
from control.round_buffer import OPEN_ROW_BYTES, RoundBuffer
from control.round_writer import MAX_BYTES, Recorded, RoundWriter
from control.scrape import EngineSample, GatewayResult, NodeResult, Round
from control.tables import HealthRow, NodeRow, PoolRow, RoundRow, SampleRow
from fleet.clock import ManualClock
from fleet.errors import Unavailable
from fleet.readings import EngineWindow, Histogram, Reason
from tests.postgres_server import THROW_AWAY, FreshDatabase, open_folder

pytestmark = pytest.mark.postgres

T0 = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
EDGES = (0.1, 0.2, 0.5, 1.0)
KEEP = Retention(raw_days=3)


def at(number: int) -> datetime:
    return T0 + timedelta(seconds=10 * number)


def window(*, ttft: tuple[int, ...] = (), model: str = "m", **known: int) -> EngineWindow:
    values: dict[str, int | None] = dict.fromkeys(
        (
            "arrivals", "completed", "errors", "aborted", "prompt_tokens", "prompt_tokens_computed",
            "generation_tokens", "preemptions", "prefix_cache_hits", "prefix_cache_queries",
            "running", "waiting", "waiting_capacity", "kv_capacity_tokens",
        )
    )  # fmt: skip
    histograms = {"ttft_s": Histogram(EDGES, ttft, 0.3 * sum(ttft))} if ttft else {}
    return EngineWindow(
        engine="0",
        model=model,
        length_s=10.0,
        restarted=False,
        kv_used_ratio=0.5,
        histograms=histograms,
        **(values | known),  # type: ignore[arg-type]
    )


def a_round(number: int, *nodes: NodeResult, gateways: tuple[GatewayResult, ...] = ()) -> Round:
    return Round(at(number), 10.0, 0.5, 0.1, nodes, gateways)


def sampled(node: str, *windows: EngineWindow) -> NodeResult:
    samples = tuple(EngineSample(str(i), w, 10.0) for i, w in enumerate(windows))
    return NodeResult(node, "p", 0.02, samples)


def recorded(round_: Round) -> Recorded:
    return Recorded(round_, Assessment(round_.at, round_.period_s, (), ()), ())


class Writer:
    """A writer that leads."""

    def __init__(self, engine, *, max_bytes: int = MAX_BYTES) -> None:
        self.engine = engine
        self.metrics = ControlMetrics()
        self.writer = RoundWriter(engine, self.metrics, max_bytes=max_bytes)
        self.epoch = 0
        self.lead()

    def lead(self, owner: str = "me") -> None:
        with Session(self.engine) as session, session.begin():
            held = lease.take(session, role="controller", owner=owner, ttl_s=600)
        assert held is not None
        self.epoch = held.epoch

    def write(self, *rounds: Round) -> None:
        for round_ in rounds:
            self.writer.offer(recorded(round_))
        self.writer.flush(self.epoch)

    def dropped(self, why: str) -> float:
        return (
            self.metrics.registry.get_sample_value("rhodeck_control_rounds_dropped_total", {"why": why})
            or 0
        )


@pytest.fixture
def writer(database: FreshDatabase) -> Writer:
    with Session(database.engine) as session, session.begin():
        make_partitions(session, T0)
    return Writer(database.engine)


def test_a_round_is_stored_with_one_stamp_its_failures_and_its_unknowns_as_null(
    writer: Writer, session: Session
):
    failed = NodeResult("b", "p", 5.0, (), Reason.TIMEOUT, "no complete answer within 5 s")
    writer.write(a_round(0, sampled("a", window(completed=7, running=2)), failed))
    row = session.scalars(select(SampleRow)).one()
    assert (row.at, row.node, row.completed, row.running) == (at(0), "a", 7, 2)
    assert (row.arrivals, row.waiting, row.ttft_counts) == (None, None, None)
    (found,) = recent_rounds(session)
    assert (found.nodes_total, found.nodes_sampled, found.failures) == (2, 1, {"timeout": 1})
    quality = scrape_quality(session, at(0), at(1))
    assert quality.coverage_ratio == 0.5
    assert quality.failures == {"timeout": 1}


def test_a_stamp_is_written_once_and_the_second_writer_leaves_nothing(writer: Writer, session: Session):
    writer.write(a_round(0, sampled("a", window(completed=7))))
    writer.write(a_round(0, sampled("a", window(completed=9)), sampled("c", window(completed=1))))
    assert session.scalars(select(SampleRow.completed)).all() == [7]
    assert writer.dropped("stamp_taken") == 1


def test_quantiles_come_from_merged_increments_of_all_nodes_and_rounds(writer: Writer, session: Session):
    # 10 observations in (0.1, 0.2] at a, 10 in (0.5, 1] at b: p50 is the 10th of 20, at 0.2 exactly;
    # p95 is the 19th: 9/10 into (0.5, 1] = 0.95
    with session.begin():
        session.add(PoolRow(name="p", models=["m"], created_at=T0))
        session.flush()
        for name, pool in (("a", "p"), ("b", "p")):
            session.add(
                NodeRow(
                    name=name, pool=pool, base_url=f"http://{name}", price_class="spot", state="active",
                    created_at=T0,
                )
            )  # fmt: skip
    writer.write(
        a_round(0, sampled("a", window(ttft=(0, 4, 0, 0, 0)))),
        a_round(1, sampled("a", window(ttft=(0, 6, 0, 0, 0))), sampled("b", window(ttft=(0, 0, 0, 10, 0)))),
    )
    view = latency_quantiles(session, since=at(0), until=at(2))["ttft_s"]
    assert view.count == 20
    assert view.mean_s == pytest.approx(0.3)
    assert view.p50 is not None
    assert view.p50.estimate == pytest.approx(0.2)
    assert view.p95 is not None
    assert view.p95.estimate == pytest.approx(0.95)
    assert view.p95.too_few
    own = latency_quantiles(session, since=at(0), until=at(2), node="b")["ttft_s"]
    assert own.count == 10
    pooled = latency_quantiles(session, since=at(0), until=at(2), pool="p")
    assert pooled["ttft_s"].count == 20
    assert (pooled["e2e_s"].count, pooled["e2e_s"].p99) == (0, None)


def test_what_lies_above_the_last_bucket_is_said_to(writer: Writer, session: Session):
    writer.write(a_round(0, sampled("a", window(ttft=(0, 0, 0, 0, 50)))))
    view = latency_quantiles(session, since=at(0), until=at(1))["ttft_s"]
    assert view.p99 is not None
    assert view.p99.is_censored
    assert view.p99.lo == 1.0


def test_hostile_names_and_sizes_are_stored_tamed_beside_good_rows(writer: Writer, session: Session):
    bad = window(model="x\x00\ud800" + "y" * 5_000, running=2**40, completed=2**62)
    writer.write(a_round(0, sampled("bad", bad), sampled("good", window(completed=3))))
    rows = {row.node: row for row in session.scalars(select(SampleRow))}
    assert rows["good"].completed == 3
    assert rows["bad"].running is None  # no 32-bit count of requests
    assert rows["bad"].completed == 2**62
    assert rows["bad"].model is not None
    assert len(rows["bad"].model) == 200


def test_bucket_edges_that_somebody_invents_do_not_fill_the_database(writer: Writer, session: Session):
    def with_edges(number: int) -> NodeResult:
        made = window(completed=1)
        made.histograms["ttft_s"] = Histogram((1.0 + number, 1e6), (1, 0, 0), 1.0)
        return sampled(f"n{number}", made)

    writer.write(a_round(0, *(with_edges(n) for n in range(2_100))))
    assert session.scalar(text("SELECT count(*) FROM histogram_edges")) == 2_000
    stored = session.scalar(
        select(func.count()).select_from(SampleRow).where(SampleRow.ttft_counts.is_(None))
    )
    assert stored == 100
    assert session.scalar(select(func.count()).select_from(SampleRow)) == 2_100


def test_a_leader_that_was_replaced_writes_nothing(writer: Writer, session: Session):
    with session.begin():
        session.execute(text("UPDATE lease SET expires_at = now() - interval '1 s'"))
    old = writer.epoch
    writer.lead("another")
    writer.writer.offer(recorded(a_round(0, sampled("a", window(completed=7)))))
    with pytest.raises(LeaseLost):
        writer.writer.flush(old)
    assert session.scalar(select(func.count()).select_from(SampleRow)) == 0
    assert len(writer.writer) == 1


@pytest.fixture
def own_server() -> Generator[EmbeddedPostgres]:
    with open_folder() as folder, EmbeddedPostgres(folder / "pg", options=THROW_AWAY) as server:
        yield server


def test_rounds_outlive_an_outage_up_to_the_bound_and_the_rest_is_counted(own_server: EmbeddedPostgres):
    dsn = socket_dsn(own_server.folder)
    upgrade(dsn)
    engine = make_engine(dsn)
    try:
        measured: RoundBuffer[Recorded] = RoundBuffer(MAX_BYTES)
        for number in range(4):
            measured.append(recorded(a_round(number, sampled("a", window(completed=number)))), 1)
        packed = measured.bytes - 3 * OPEN_ROW_BYTES  # three are open, the oldest is packed
        writer = Writer(engine, max_bytes=3 * OPEN_ROW_BYTES + 5 * packed // 2)  # 3 open and 2 packed fit
        writer.write(a_round(0, sampled("a", window(completed=0))))
        own_server.stop()
        for number in range(1, 8):  # seven rounds, room for five
            writer.writer.offer(recorded(a_round(number, sampled("a", window(completed=number)))))
            with pytest.raises(Unavailable):
                writer.writer.flush(writer.epoch)
        assert len(writer.writer) == 5
        assert writer.dropped("buffer_full") == 2
        own_server.start()
        writer.writer.flush(writer.epoch)
        assert len(writer.writer) == 0
        with Session(engine) as session:
            rows = session.execute(select(SampleRow.at, SampleRow.completed).order_by(SampleRow.at))
            assert [tuple(row) for row in rows] == [(at(n), n) for n in (0, 3, 4, 5, 6, 7)]
            assert session.scalars(select(RoundRow.at).order_by(RoundRow.at)).all() == [
                at(n) for n in (0, 3, 4, 5, 6, 7)
            ]
    finally:
        engine.dispose()


def flow(tenant: str, tier: str, **known: object) -> FlowWindow:
    return FlowWindow(tenant=tenant, tier=tier, covered_s=10.0, **known)  # type: ignore[arg-type]


def test_tenants_traffic_adds_up_over_gateways_and_shows_who_was_refused_why(
    writer: Writer, session: Session
):
    def gateways(n: int) -> tuple[GatewayResult, ...]:
        wait = {"queue_wait_s": Histogram(EDGES, (n, 0, 0, 0, 0), 0.05 * n)}
        one = flow(
            "acme", "interactive", offered=10, dispatched=7, prompt_tokens=100, output_tokens=50,
            histograms=wait, queued_requests=n,
            outcomes={"completed": 6, "rejected_quota_rate": 2, "evicted_wait": 1},
        )  # fmt: skip
        two = flow(
            "acme", "interactive", offered=5, dispatched=5, outcomes={"completed": 5}, queued_requests=1
        )
        return GatewayResult("gw-1", (one,)), GatewayResult("gw-2", (two,))

    writer.write(*(a_round(n, gateways=gateways(n + 1)) for n in range(2)))
    (row,) = traffic_by_tenant(session, at(0), at(2))
    assert (row.offered, row.dispatched, row.output_tokens) == (30, 24, 100)
    assert row.refused == {"rejected_quota_rate": 4, "evicted_wait": 2}
    assert row.refused_total == 6
    assert row.outcomes["completed"] == 22
    assert row.queued_requests == 2 + 1  # of the newest round
    assert row.queue_wait.count == 3
    assert row.queue_wait.mean_s == pytest.approx(0.05)
    points = traffic_timeline(session, at(0), at(3), max_points=10)
    assert [(p.at, p.offered, p.admitted, p.refused) for p in points] == [
        (at(0), 15, 12, 3),
        (at(1), 15, 12, 3),
        (at(2), None, None, None),  # nothing was read: a gap, not a zero
    ]


def test_days_are_made_ahead_and_rows_that_came_before_their_day_move_into_it(
    database: FreshDatabase, session: Session
):
    early = Writer(database.engine)
    early.write(a_round(0, sampled("a", window(completed=7))))
    assert misplaced_rows(session) == {"sample": 1, "gateway_sample": 0, "health": 0}
    session.rollback()
    with session.begin():
        made = make_partitions(session, T0)
    assert "sample_20260302" in made
    assert "gateway_sample_20260305" in made
    with session.begin():
        assert make_partitions(session, T0) == []
        assert misplaced_rows(session) == {"sample": 0, "gateway_sample": 0, "health": 0}
    where = session.scalar(text("SELECT tableoid::regclass::text FROM sample"))
    assert where == "sample_20260302"


def test_a_controller_whose_clock_is_decades_ahead_deletes_nothing(writer: Writer, session: Session):
    writer.write(a_round(0, sampled("a", window(completed=7))))
    ahead = datetime(2100, 1, 1, tzinfo=UTC)  # by it, everything is older than ten years
    assert drop_old(writer.engine, ahead, Retention(3650, 3650, 3650)).names == []
    assert trim_old(writer.engine, ahead, keep_days=3650) == 0
    assert session.scalar(select(func.count()).select_from(SampleRow)) == 1


def test_who_does_not_lead_any_more_deletes_nothing(writer: Writer, session: Session):
    writer.write(a_round(0, sampled("a", window(completed=7))))
    fence = partial(lease.require, epoch=99)  # the writer leads with another epoch
    later = T0 + timedelta(days=5)
    with pytest.raises(LeaseLost):
        drop_old(writer.engine, later, KEEP, fence=fence)
    with pytest.raises(LeaseLost):
        trim_old(writer.engine, later, keep_days=3, fence=fence)
    assert session.scalar(select(func.count()).select_from(SampleRow)) == 1


def test_retention_drops_whole_days_and_keeps_the_last_ones(writer: Writer, session: Session):
    writer.write(a_round(0, sampled("a", window(completed=7))))
    with session.begin():
        session.add(HealthRow(at=at(0), scope="fleet", name="", rho=0.5))
    later = T0 + timedelta(days=3)
    engine = writer.engine
    Roller(engine, ManualClock(later)).run(later)
    assert drop_old(engine, later, KEEP).names == [
        "sample_20260301", "gateway_sample_20260301", "health_20260301"
    ]  # fmt: skip
    assert session.scalar(select(func.count()).select_from(SampleRow)) == 1
    session.rollback()
    assert "sample_20260302" in drop_old(engine, later + timedelta(days=1), KEEP).names
    assert session.scalar(select(func.count()).select_from(SampleRow)) == 0
    session.rollback()
    assert trim_old(engine, later + timedelta(seconds=1), keep_days=3) == 1  # the round
    assert session.scalar(select(func.count()).select_from(HealthRow)) == 0
