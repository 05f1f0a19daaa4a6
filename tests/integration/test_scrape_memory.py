"""What outlives a restart of the controller, and what a baking gateway's samples say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from control import capacity_book
from control.assess import Assessor
from control.bake_verdict import Attainment, judge, verdict
from control.capacity_book import CapacityBook, write_estimates
from control.deps import Bake, Verdict
from control.fleet_facts import FleetFacts, Node, Pool, load_fleet
from control.gateway_scrape import FlowWindow
from control.partitions import make_partitions
from control.queries_nodes import node_detail
from control.sample_store import EdgeIds, edges_of, write_round
from control.scrape import EngineSample, GatewayResult, NodeResult, Round
from control.tables import CapacityEstimateRow, NodeRow, PoolRow
from fleet.capacity import Method
from fleet.engine import Engine
from fleet.engine_profile import EngineProfile
from fleet.engine_request import EngineRequest
from fleet.policy import Slo
from fleet.readings import Histogram, PageReading, PageState
from fleet.saturation import EngineLimits
from fleet.windows import window
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

T0 = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
PROFILE = EngineProfile("one", alpha_s=0.012, beta_s=0.0001, gamma_s=0.000012, max_num_seqs=64)
#: tau(64) = 12 ms + 64 x (0.1 ms + 12 us x 500/300) = 19.68 ms; mu = 64 / (300 x 19.68 ms) = 10.84/s
MU = 64 / (300 * (0.012 + 64 * (0.0001 + 0.000012 * 500 / 300)))


def at(number: int) -> datetime:
    return T0 + timedelta(seconds=10 * number)


def simulated_rounds(count: int) -> list[Round]:
    """One engine under a load that rises from 10 % to 90 % of its capacity, read every 10 s."""
    engine, due_s, number, rounds = Engine(PROFILE), 0.0, 0, []
    before = PageReading("n", "vllm", "prometheus_text", PageState.OK, (engine.reading(),))
    for index in range(1, count + 1):
        rate = MU * (0.1 + 0.8 * index / count)
        while due_s < 10.0 * index:
            engine.advance(due_s)
            number += 1
            engine.submit(EngineRequest(str(number), 500, 300), due_s)
            due_s += 1 / rate
        engine.advance(10.0 * index)
        after = PageReading("n", "vllm", "prometheus_text", PageState.OK, (engine.reading(),))
        (seen,) = window(before, after, 10.0)
        before = after
        sample = EngineSample("0", seen, 10.0)
        rounds.append(Round(at(index), 10.0, 0.1, 0.0, (NodeResult("n", "p", 0.01, (sample,)),)))
    return rounds


def test_a_restarted_controller_learns_the_same_capacity_from_the_database(
    database: FreshDatabase, session: Session, monkeypatch: pytest.MonkeyPatch
):
    with session.begin():
        make_partitions(session, T0)
        session.add(PoolRow(name="p", models=["m"], max_num_seqs=64, created_at=T0))
        session.flush()
        session.add(
            NodeRow(
                name="n", pool="p", base_url="http://n", price_class="spot", state="active", created_at=T0
            )
        )
    facts = FleetFacts((Node("n", "p", "http://n/metrics", "active", T0),), (Pool("p", EngineLimits(64)),))
    assert load_fleet(session).pools == facts.pools
    session.rollback()
    first, ids = Assessor(CapacityBook(np.random.default_rng(1))), EdgeIds()
    rounds = simulated_rounds(180)
    for done in rounds:
        before = first.assess(done, facts)
        ids.learn(database.engine, edges_of(done))
        with session.begin():
            assert write_round(session, done, ids)
    now = rounds[-1].at
    learnt = first.book.refresh(facts, now.timestamp())["n", "0"]
    assert learnt.method is Method.CURVE
    assert learnt.requests_per_s == pytest.approx(MU, rel=0.05)

    second = Assessor(CapacityBook(np.random.default_rng(1)))
    with session.begin():
        assert second.refill(session, facts, now) == 180
    again = second.book.refresh(facts, now.timestamp())
    assert again["n", "0"].requests_per_s == pytest.approx(learnt.requests_per_s, rel=1e-9)
    assert [w.ended_at_s for w in second.book.recent(("n", "0"))] == [
        w.ended_at_s for w in first.book.recent(("n", "0"))
    ]
    assert before.verdicts[0].health.arrival_rate == pytest.approx(0.9 * MU, rel=0.05)

    # a refill that broke off and is tried again learns nothing twice, and reads no further back than
    # the rings of the engines reach: 60 windows of 10 s
    monkeypatch.setattr(capacity_book, "MAX_RING", 60)
    with session.begin():
        assert second.refill(session, facts, now) == 60
    assert len(second.book.recent(("n", "0"))) == len(first.book.recent(("n", "0")))
    twice = second.book.refresh(facts, now.timestamp())["n", "0"]
    assert twice.windows == again["n", "0"].windows

    with session.begin():
        write_estimates(session, now, again)
        write_estimates(session, now + timedelta(seconds=60), again)
    row = session.scalars(select(CapacityEstimateRow)).one()
    assert row.at == now + timedelta(seconds=60)
    assert row.detail["curve"]["intercept_s"] == pytest.approx(0.012, rel=0.1)
    detail = node_detail(session, "n", now)
    assert detail.capacity[0].service_rate == pytest.approx(learnt.requests_per_s)
    # every point lies on the step-time line: tau = 12 ms + b x 0.12 ms
    for point in detail.scatter:
        assert point.itl_s == pytest.approx(0.012 + 0.00012 * point.batch, rel=0.1)
    assert len(detail.scatter) > 100


def bake(since: datetime = T0) -> Bake:
    return Bake("g1", ("g2",), since, Slo(ttft_s=0.5, attainment_ratio=0.95))


EDGES = (0.25, 0.5, 1.0)


def traffic(gateway: str, good: int, late: int, **outcomes: int) -> GatewayResult:
    flow = FlowWindow(
        "acme", "interactive", 10.0, offered=good + late, outcomes=outcomes,
        histograms={"ttft_s": Histogram(EDGES, (0, good, late, 0), 0.4 * good)},
    )  # fmt: skip
    return GatewayResult(gateway, (flow,))


def test_a_bake_is_judged_on_whole_rounds_after_it_began(database: FreshDatabase, session: Session):
    with session.begin():
        make_partitions(session, T0)
    ids = EdgeIds()
    kept = traffic("g2", 100, 0)
    rounds = [
        (0, traffic("g1", 0, 500)),  # before the bake
        (1, traffic("g1", 0, 500)),  # under way when it began
        (2, traffic("g1", 57, 3)),
        (3, traffic("g1", 40, 0, rejected_quota_rate=30, client_gone=9, evicted_wait=1)),
    ]
    for number, own in rounds:
        done = Round(at(number), 10.0, 0.1, 0.0, (), (own, kept))
        ids.learn(database.engine, edges_of(done))
        with session.begin():
            write_round(session, done, ids)
    began = T0 + timedelta(seconds=4)
    # 97 good of 100 started + 1 evicted: 96.0 % >= 95 %; quota refusals are what the policy asks for
    found = verdict(session, bake(began))
    assert found.verdict is Verdict.HEALTHY
    assert "97 of 101" in found.reason


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        (Attainment(19, 19, 19), Attainment(0, 0, 0), Verdict.NO_DATA),
        (Attainment(100, 95, 95), Attainment(0, 0, 0), Verdict.HEALTHY),
        (Attainment(100, 94, 94), Attainment(0, 0, 0), Verdict.BREACHED),
        (Attainment(100, 94, 96), Attainment(0, 0, 0), Verdict.NO_DATA),  # the line is inside a bucket
        (Attainment(100, 50, 50), Attainment(100, 60, 60), Verdict.NO_DATA),  # everybody suffers
        (Attainment(100, 50, 50), Attainment(100, 99, 99), Verdict.BREACHED),
    ],
)
def test_a_verdict_needs_data_and_a_gateway_that_is_worse_than_promised_alone(own, others, expected):
    assert judge(bake(), own, others).verdict is expected


def test_without_samples_nothing_is_promoted(session: Session):
    found = verdict(session, bake())
    assert found.verdict is Verdict.NO_DATA
