"""Verdicts and alerts from rounds: idle days, overload, silence, gateways' demand, restarts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from control import alerts
from control.alerts import Change, observe
from control.assess import Assessment, Assessor, Verdict
from control.capacity_book import CapacityBook
from control.commands_fleet import acknowledge_alert
from control.fleet_facts import FleetFacts, Node, Pool
from control.gateway_scrape import FlowWindow
from control.roles import Actor, Role
from control.scrape import EngineSample, GatewayResult, NodeResult, Round, Target
from control.tables import AlertRow, AlertTimerRow
from fleet.capacity import ConfiguredCapacity
from fleet.engine import Engine
from fleet.engine_profile import EngineProfile
from fleet.engine_request import EngineRequest
from fleet.readings import EngineWindow, Histogram, PageReading, PageState, Reason
from fleet.saturation import EngineLimits
from fleet.windows import window

pytestmark = pytest.mark.postgres

TYPED = ConfiguredCapacity("benchmark", requests_per_s=20.0)
T0 = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
ADA = Actor("ada", Role.OPERATOR, "cli")


def facts(
    *names: str,
    gateways: tuple[Target, ...] = (),
    state: str = "active",
    typed: ConfiguredCapacity | None = None,
) -> FleetFacts:
    nodes = tuple(Node(name, "p", f"http://{name}/metrics", state, T0) for name in names)
    return FleetFacts(nodes, (Pool("p", EngineLimits(max_num_seqs=64), typed),), gateways)


def idle(length_s: float, *, arrivals: int = 0, running: int = 0, waiting: int = 0) -> EngineWindow:
    return EngineWindow(
        engine="0", model="m", length_s=length_s, restarted=False, arrivals=arrivals, completed=arrivals,
        errors=0, aborted=0, prompt_tokens=0, prompt_tokens_computed=0, generation_tokens=0, preemptions=0,
        prefix_cache_hits=0, prefix_cache_queries=0, running=running, waiting=waiting,
        waiting_capacity=None, kv_used_ratio=0.0, kv_capacity_tokens=600_000,
        histograms={"itl_s": Histogram((0.1,), (0, 0), 0.0)},
    )  # fmt: skip


def sampled(node: str, window: EngineWindow) -> NodeResult:
    return NodeResult(node, "p", 0.01, (EngineSample("0", window, window.length_s),))


def failed(node: str) -> NodeResult:
    return NodeResult(node, "p", None, (), Reason.REFUSED, "connection refused")


def fleet_of(assessment: Assessment) -> Verdict:
    return next(v for v in assessment.verdicts if v.scope == "fleet")


class Watch:
    """Assessor and alerts over one database, driven round by round."""

    def __init__(self, session: Session, known: FleetFacts, period_s: float = 10.0) -> None:
        self.session = session
        self.facts = known
        self.period_s = period_s
        self.number = 0
        self.assessor = Assessor(CapacityBook(np.random.default_rng(1)))

    @property
    def now(self) -> datetime:
        return T0 + timedelta(seconds=self.number * self.period_s)

    def round(
        self, *nodes: NodeResult, gateways: tuple[GatewayResult, ...] = ()
    ) -> tuple[Assessment, list[Change]]:
        self.number += 1
        done = Round(self.now, self.period_s, 0.1, 0.0, nodes, gateways)
        assessment = self.assessor.assess(done, self.facts)
        if self.number == 1:
            self.assessor.book.refresh(self.facts, self.now.timestamp())
        return assessment, self.apply(assessment)

    def apply(self, assessment: Assessment) -> list[Change]:
        changes = alerts.apply(self.session, assessment.at, assessment.period_s, observe(assessment))
        self.session.commit()
        return changes


@pytest.mark.slow
def test_an_idle_fleet_raises_nothing_in_24_hours(session: Session):
    watch = Watch(session, facts("a", "b"), period_s=30.0)
    for _ in range(24 * 3600 // 30):
        assessment, changes = watch.round(sampled("a", idle(30.0)), sampled("b", idle(30.0)))
        assert changes == []
        if watch.number > 3:
            fleet = fleet_of(assessment).health
            assert fleet.rho.value == 0.0  # nothing arrives: zero, not unknown
            assert fleet.flow_balance is None  # 0 / 0 is nobody's verdict
    assert session.scalars(select(AlertRow)).all() == []
    assert session.scalars(select(AlertTimerRow)).all() == []


PROFILE = EngineProfile("one", alpha_s=0.012, beta_s=0.0001, gamma_s=0.000012, max_num_seqs=64)
PROMPT, OUTPUT = 500, 300
#: tau(64) = 12 ms + 64 x (0.1 ms + 12 us x 500/300) = 19.68 ms; mu = 64 / (300 x 19.68 ms) = 10.84/s
MU = 64 / (OUTPUT * (0.012 + 64 * (0.0001 + 0.000012 * PROMPT / OUTPUT)))


class SimulatedNode:
    """One engine in virtual time, read as a scraper would."""

    def __init__(self) -> None:
        self.engine = Engine(PROFILE)
        self.now_s = 0.0
        self.due_s = 0.0
        self.number = 0
        self.before = self.page()

    def page(self) -> PageReading:
        return PageReading("node", "vllm", "prometheus_text", PageState.OK, (self.engine.reading(),))

    def ten_seconds(self, rate: float) -> NodeResult:
        """Let `rate` evenly spaced requests/s arrive for 10 s and return what a round sees."""
        return self.seconds(10.0, rate)

    def seconds(self, length_s: float, rate: float) -> NodeResult:
        """Let `rate` evenly spaced requests/s arrive for `length_s` and return what a scrape sees."""
        end_s = self.now_s + length_s
        while self.due_s < end_s:
            self.engine.advance(self.due_s)
            self.number += 1
            self.engine.submit(EngineRequest(str(self.number), PROMPT, OUTPUT), self.due_s)
            self.due_s += 1 / rate
        self.engine.advance(end_s)
        self.now_s = end_s
        after = self.page()
        (seen,) = window(self.before, after, length_s)
        self.before = after
        return sampled("a", seen)


def run(
    watch: Watch, node: SimulatedNode, rate: float, rounds: int
) -> Iterator[tuple[Assessment, list[Change]]]:
    for _ in range(rounds):
        yield watch.round(node.ten_seconds(rate))
        if watch.number % 6 == 0:
            watch.assessor.book.refresh(watch.facts, watch.now.timestamp())


def test_a_fleet_at_110_percent_shows_it_and_alarms_after_more_than_two_minutes(session: Session):
    watch, node = Watch(session, facts("a")), SimulatedNode()
    for _, changes in run(watch, node, 0.6 * MU, 120):
        assert changes == []
    began = watch.now
    opened: list[tuple[datetime, Change]] = []
    seen: list[Verdict] = []
    for assessment, changes in run(watch, node, 1.1 * MU, 36):
        opened += [(assessment.at, change) for change in changes]
        seen.append(fleet_of(assessment))
    assert {(c.scope, c.state) for _, c in opened} == {
        ("fleet", "open"),
        ("pool", "open"),
        ("node", "open"),
    }
    assert {c.rule for _, c in opened} == {"rho_high"}
    for at, _ in opened:
        assert 120 < (at - began).total_seconds() <= 240
    for verdict in seen[-12:]:
        assert verdict.health.rho.value is not None
        assert 1.05 <= verdict.health.rho.value <= 1.15
        assert verdict.health.saturated
    # the same load as completions over completions would read 1.0: rho is against capacity
    resolved: list[Change] = []
    for _, changes in run(watch, node, 0.3 * MU, 60):
        resolved += changes
    assert {c.state for c in resolved} == {"resolved"}
    assert all(row.resolved_at is not None for row in session.scalars(select(AlertRow)))


def test_a_round_applied_twice_changes_nothing_more(session: Session):
    watch, node = Watch(session, facts("a")), SimulatedNode()
    list(run(watch, node, 0.6 * MU, 60))
    last = None
    for assessment, _ in run(watch, node, 1.1 * MU, 30):
        last = assessment
    assert last is not None
    before = [(row.id, row.state, row.opened_at) for row in session.scalars(select(AlertRow))]
    assert len(before) == 3
    assert watch.apply(last) == []
    assert [(row.id, row.state, row.opened_at) for row in session.scalars(select(AlertRow))] == before


def test_a_new_controller_goes_on_with_the_timers_it_finds(session: Session):
    watch, node = Watch(session, facts("a")), SimulatedNode()
    list(run(watch, node, 0.6 * MU, 60))
    list(run(watch, node, 1.1 * MU, 12))
    (running,) = session.scalars(select(AlertTimerRow).where(AlertTimerRow.scope == "fleet"))
    assert running.machine["above_s"] > 0
    again = Watch(session, watch.facts)
    again.number, again.assessor = watch.number, watch.assessor
    changes = [change for _, some in run(again, node, 1.1 * MU, 12) for change in some]
    assert ("rho_high", "fleet", "", "open") in {(c.rule, c.scope, c.subject, c.state) for c in changes}


def test_a_silent_node_leaves_the_sums_is_named_and_raises_an_alert_that_resolves(session: Session):
    watch = Watch(session, facts("a", "b", typed=TYPED))
    for _ in range(12):
        watch.round(sampled("a", idle(10, arrivals=20)), sampled("b", idle(10, arrivals=30)))
    changes: list[tuple[int, Change]] = []
    for missed in range(1, 9):
        assessment, some = watch.round(sampled("a", idle(10, arrivals=20)), failed("b"))
        changes += [(missed, change) for change in some]
        fleet = fleet_of(assessment)
        if missed < 3:
            assert fleet.missing_nodes == ()
        else:
            assert fleet.missing_nodes == ("b",)
            assert fleet.health.is_partial
            # only a's 20 in 10 s are left: silence is not idleness
            assert fleet.health.arrival_rate == pytest.approx(2.0)
            assert fleet.health.rho.value == pytest.approx(2.0 / 20.0)
    assert [(m, c.rule, c.subject, c.state) for m, c in changes] == [(7, "node_silent", "b", "open")]
    row = session.scalars(select(AlertRow)).one()
    assert "refused" in row.summary
    acknowledge_alert(session, ADA, alert_id=row.id, now=watch.now)
    session.commit()
    watch.round(sampled("a", idle(10)), failed("b"))
    assert session.scalars(select(AlertRow.state)).one() == "acknowledged"
    for _ in range(3):
        watch.round(sampled("a", idle(10)), sampled("b", idle(10)))
    assert session.scalars(select(AlertRow.state)).one() == "resolved"


def test_an_alert_of_a_node_that_was_removed_is_resolved(session: Session):
    watch = Watch(session, facts("a", "b"))
    for _ in range(10):
        watch.round(sampled("a", idle(10)), failed("b"))
    assert session.scalars(select(AlertRow.state)).one() == "open"
    watch.facts = facts("a")
    _, changes = watch.round(sampled("a", idle(10)))
    assert [(c.subject, c.state) for c in changes] == [("b", "resolved")]
    assert session.scalars(select(AlertRow)).one().detail["resolved"] == "no longer watched"
    assert session.scalars(select(AlertTimerRow)).all() == []


def test_a_node_in_maintenance_raises_no_alert_and_is_no_capacity(session: Session):
    watch = Watch(session, facts("a", state="maintenance"))
    for _ in range(20):
        assessment, changes = watch.round(failed("a"))
        assert changes == []
        assert fleet_of(assessment).missing_nodes == ()


def test_demand_is_known_while_capacity_is_not(session: Session):
    watch = Watch(session, facts("a", "b"))
    for _ in range(8):
        assessment, changes = watch.round(
            sampled("a", idle(10, arrivals=20)), sampled("b", idle(10, arrivals=5))
        )
        assert changes == []  # unknown raises nothing
    health = fleet_of(assessment).health
    assert health.rho.value is None
    assert health.arrival_rate == pytest.approx(2.5)
    assert "capacity" in health.explanation[0]


GATEWAYS = (Target("g1", "http://g1/metrics"), Target("g2", "http://g2/metrics"))


def offered(gateway: str, requests: int, queued: int = 0) -> GatewayResult:
    flow = FlowWindow("acme", "batch", 10.0, offered=requests, queued_requests=queued)
    return GatewayResult(gateway, (flow,))


def test_demand_is_what_the_gateways_counted_refused_requests_included(session: Session):
    watch = Watch(session, facts("a", gateways=GATEWAYS, typed=TYPED))
    for _ in range(8):
        assessment, _ = watch.round(
            sampled("a", idle(10, arrivals=20)), gateways=(offered("g1", 40, 3), offered("g2", 10, 2))
        )
    fleet = fleet_of(assessment)
    assert fleet.arrivals_from == "gateways"
    assert fleet.health.arrival_rate == pytest.approx(5.0)  # 50 in 10 s; the engine saw 20 of them
    assert fleet.health.waiting == 5


def test_demand_falls_back_to_the_engines_when_a_gateway_is_not_heard_or_bypassed(session: Session):
    watch = Watch(session, facts("a", gateways=GATEWAYS, typed=TYPED))
    for _ in range(8):
        unheard, _ = watch.round(
            sampled("a", idle(10, arrivals=20)),
            gateways=(offered("g1", 40), GatewayResult("g2", None, Reason.TIMEOUT, "late")),
        )
    bypassed = Watch(session, facts("a", gateways=GATEWAYS[:1], typed=TYPED))
    for _ in range(8):
        around, _ = bypassed.round(sampled("a", idle(10, arrivals=90)), gateways=(offered("g1", 10),))
    for assessment, rate in ((unheard, 2.0), (around, 9.0)):
        fleet = fleet_of(assessment)
        assert fleet.arrivals_from == "engines"
        assert fleet.health.arrival_rate == pytest.approx(rate)
        assert fleet.health.rho.value == pytest.approx(rate / 20.0)


def test_an_overload_opens_where_a_server_has_news_of_the_node_once_a_minute_only(session: Session):
    # rounds of 10 s, scrapes of 60 s: five rounds of six bring nothing new and are no gap
    watch, node = Watch(session, facts("a")), SimulatedNode()

    def minute(rate: float) -> list[Change]:
        nothing_new = NodeResult("a", "p", None, interval_s=60.0)
        found = [change for _ in range(5) for change in watch.round(nothing_new)[1]]
        found += watch.round(replace(node.seconds(60.0, rate), interval_s=60.0))[1]
        watch.assessor.book.refresh(watch.facts, watch.now.timestamp())
        return found

    assert [change for _ in range(20) for change in minute(0.6 * MU)] == []
    opened = [change for _ in range(6) for change in minute(1.1 * MU)]
    assert ("rho_high", "fleet", "open") in {(c.rule, c.scope, c.state) for c in opened}
    assert {c.rule for c in opened} == {"rho_high"}
