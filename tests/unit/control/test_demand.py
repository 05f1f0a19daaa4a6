"""Demand at the gateways and the verdicts made of it: what counts as load, for the fleet and each tier."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from control.assess import Assessment, Assessor
from control.capacity_book import LEARNT_WINDOWS, CapacityBook
from control.fleet_facts import FleetFacts, Node, Pool
from control.gateway_scrape import FlowWindow
from control.round_writer import health_row
from control.scrape import EngineSample, GatewayResult, NodeResult, Round, Target
from fleet.capacity import ConfiguredCapacity
from fleet.readings import EngineWindow, Reason
from fleet.saturation import EngineLimits

T0 = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
POOL = Pool("p", EngineLimits(64), ConfiguredCapacity("benchmark", requests_per_s=10.0))
GATEWAYS = (Target("g1", "http://g1/metrics"), Target("g2", "http://g2/metrics"))


def served(model: str = "m", requests: int = 60) -> EngineWindow:
    return EngineWindow(
        engine="0", model=model, length_s=10.0, restarted=False, arrivals=requests, completed=requests,
        errors=0, aborted=0, prompt_tokens=0, prompt_tokens_computed=0, generation_tokens=0, preemptions=0,
        prefix_cache_hits=0, prefix_cache_queries=0, running=5, waiting=0, waiting_capacity=None,
        kv_used_ratio=0.1, kv_capacity_tokens=None, histograms={},
    )  # fmt: skip


def flow(
    tier: str, offered: int, *, limited: int = 0, repeated: int = 0, output_tokens: int = 300
) -> FlowWindow:
    done = offered - limited
    return FlowWindow(
        "acme", tier, 10.0, offered=offered, dispatched=done, repeated=repeated, queued_requests=0,
        outcomes={"completed": done, "rejected_quota_rate": limited},
        prompt_tokens=0, output_tokens=output_tokens * done,
    )  # fmt: skip


def heard(name: str, *flows: FlowWindow) -> GatewayResult:
    return GatewayResult(name, flows)


def lost(name: str) -> GatewayResult:
    return GatewayResult(name, None, Reason.TIMEOUT, "late")


class Watch:
    """An assessor with one pool of `nodes`, driven round by round."""

    def __init__(self, *nodes: str, gateways: tuple[Target, ...] = GATEWAYS[:1]) -> None:
        of_pool = tuple(Node(n, "p", f"http://{n}/metrics", "active", T0) for n in nodes)
        self.facts = FleetFacts(nodes=of_pool, pools=(POOL,), gateways=gateways)
        self.assessor = Assessor(CapacityBook(np.random.default_rng(1)))
        self.number = 0

    def round(self, nodes: tuple[NodeResult, ...], *gateways: GatewayResult) -> Assessment:
        self.number += 1
        at = T0 + timedelta(seconds=10 * self.number)
        found = self.assessor.assess(Round(at, 10.0, 0.1, 0.0, nodes, gateways), self.facts)
        if self.number == 1:
            self.assessor.book.refresh(self.facts, at.timestamp())
        return found


def node(name: str, *windows: EngineWindow) -> NodeResult:
    samples = tuple(EngineSample(str(n), w, w.length_s) for n, w in enumerate(windows))
    return NodeResult(name, "p", 0.01, samples)


def health(assessment: Assessment, scope: str, name: str = ""):
    return next(v.health for v in assessment.verdicts if (v.scope, v.name) == (scope, name))


def test_a_tenant_held_by_its_own_quota_does_not_make_the_fleet_look_full():
    watch = Watch("a")
    for _ in range(40):
        found = watch.round((node("a", served()),), heard("g1", flow("batch", 200, limited=140)))
    fleet = health(found, "fleet")
    # 20/s at the door, 14/s refused by the quota: 6/s compete for the 10/s of one node
    assert fleet.arrival_rate == pytest.approx(20)
    assert (fleet.rho.value, fleet.rho.slow) == (pytest.approx(0.6), pytest.approx(0.6))
    assert fleet.rho_limited == pytest.approx(1.4)
    assert fleet.flow_balance == pytest.approx(1)
    # a typed capacity: a quarter to each side
    assert (fleet.rho.low, fleet.rho.high) == (pytest.approx(6 / 12.5), pytest.approx(6 / 7.5))


def test_a_request_that_is_tried_again_and_again_counts_once():
    watch = Watch("a")
    for _ in range(40):
        found = watch.round((node("a", served()),), heard("g1", flow("batch", 200, repeated=110)))
    fleet = health(found, "fleet")
    # 20/s come, 11/s of them were there before
    assert (fleet.arrival_rate, fleet.repeated_rate) == (pytest.approx(20), pytest.approx(11))
    assert fleet.rho.value == pytest.approx(0.9)
    assert any("11 requests/s were further tries" in line for line in fleet.explanation)


def test_tiers_have_their_parts_in_the_order_in_which_they_are_served():
    watch = Watch("a")
    for _ in range(40):
        flows = (flow("batch", 20, output_tokens=600), flow("interactive", 40, output_tokens=300))
        found = watch.round((node("a", served()),), heard("g1", *flows))
    tiers = [v.health for v in found.verdicts if v.scope == "tier"]
    # 2/s of 600 tokens and 4/s of 300: half of the fleet's 0.6 each
    assert [(t.name, t.rho.value) for t in tiers] == [
        ("interactive", pytest.approx(0.3)),
        ("batch", pytest.approx(0.3)),
    ]
    assert tiers[1].rho_with_higher.value == pytest.approx(0.6)
    assert found.verdicts[-1].scope == "fleet"


def test_a_gateway_that_misses_rounds_counts_as_it_did_and_one_that_is_gone_does_not():
    watch = Watch("a", gateways=GATEWAYS)
    for _ in range(20):
        watch.round((node("a", served()),), heard("g1", flow("batch", 100)), heard("g2", flow("batch", 50)))
    seen = [
        health(watch.round((node("a", served()),), heard("g1", flow("batch", 100)), lost("g2")), "fleet")
        for _ in range(40)
    ]
    # 100 and 50 in 10 s; the engines let in 6/s
    assert [h.competing_rate for h in seen[:15]] == [pytest.approx(15)] * 15
    assert seen[-1].competing_rate == pytest.approx(6)


def test_while_a_gateway_is_silent_rho_is_named_as_a_sum_with_its_last_demand_and_a_sure_part():
    watch = Watch("a", gateways=GATEWAYS)
    both = (heard("g1", flow("batch", 100, limited=40)), heard("g2", flow("batch", 50, limited=20)))
    for _ in range(20):
        fleet = health(watch.round((node("a", served()),), *both), "fleet")
    assert (fleet.silent_gateways, fleet.rho_heard, fleet.is_partial) == ((), None, False)
    for missed in range(1, 15):
        found = watch.round((node("a", served()),), both[0], lost("g2"))
        fleet = health(found, "fleet")
        # 60 of g1 and 30 of g2 compete in 10 s, for 10/s: rho 0.9. Of g2 six rounds are in the window, less
        # what it missed: 3/s for a sixth of it each
        assert fleet.rho.value == pytest.approx(0.9)
        assert fleet.silent_gateways == (("g2", 10.0 * missed),)
        assert fleet.rho_heard == pytest.approx((6 + 3 * max(0, 6 - missed) / 6) / 10)
        assert fleet.is_partial
        assert any(f"g2 for {10 * missed} s" in line for line in fleet.explanation)
    for scope, name in (("pool", "p"), ("model", "m"), ("tier", "batch")):
        assert health(found, scope, name).is_partial, scope
    fleet = health(watch.round((node("a", served()),), *both), "fleet")
    assert (fleet.silent_gateways, fleet.rho_heard, fleet.is_partial) == ((), None, False)


def test_what_is_stored_of_a_round_with_a_silent_gateway_gives_no_exact_rho():
    watch = Watch("a", gateways=GATEWAYS)
    for _ in range(20):
        both = (heard("g1", flow("batch", 30)), heard("g2", flow("batch", 30)))
        watch.round((node("a", served(requests=20)),), *both)
    for _ in range(6):
        found = watch.round((node("a", served(requests=20)),), heard("g1", flow("batch", 30)), lost("g2"))
    row = health_row(found, found.verdicts[-1])
    assert row["partial"]
    assert row["rho"] == pytest.approx(0.6)
    assert row["detail"].obj["rho_heard"] == pytest.approx(0.3)
    assert row["detail"].obj["silent_gateways"] == {"g2": 60.0}
    for _ in range(6):  # now 5/s reach the engine, more than the 3/s that g1 tells of: so much is sure
        found = watch.round((node("a", served(requests=50)),), heard("g1", flow("batch", 30)), lost("g2"))
    assert health(found, "fleet").rho_heard == pytest.approx(0.5)


def test_gateways_that_most_requests_go_round_are_no_measure_of_demand_when_one_misses_rounds():
    watch = Watch("a", gateways=GATEWAYS)
    for _ in range(25):
        watch.round((node("a", served()),), heard("g1", flow("batch", 10)), heard("g2", flow("batch", 10)))
    for _ in range(5):  # g2 now counts by its last minutes: many requests, of a longer time
        found = watch.round((node("a", served()),), heard("g1", flow("batch", 10)), lost("g2"))
    # the engines receive 6/s, the gateways have sent 2/s
    assert health(found, "fleet").competing_rate == pytest.approx(6)


def test_the_first_engines_of_a_large_fleet_do_not_take_the_room_of_all():
    names = [f"n{number}" for number in range(500)]
    watch = Watch(*names, gateways=())
    watch.round(tuple(node(name, served()) for name in names))
    rings = {engine.learner._points.maxlen for engine in watch.assessor.book._engines.values()}
    assert rings == {LEARNT_WINDOWS // 500}


def test_engines_of_one_node_and_models_of_one_fleet_have_verdicts_of_their_own():
    watch = Watch("a", "b", gateways=())
    for _ in range(40):
        found = watch.round((node("a", served("m", 20), served("m", 30)), node("b", served("other", 90))))
    # node a: 5/s and 5/s typed for its two engines; node b: 10/s
    assert health(found, "engine", "a/0").rho.value == pytest.approx(0.4)
    assert health(found, "engine", "a/1").rho.value == pytest.approx(0.6)
    assert health(found, "node", "a").rho.value == pytest.approx(0.5)
    assert health(found, "model", "m").rho.value == pytest.approx(0.5)
    assert health(found, "model", "other").rho.value == pytest.approx(0.9)
    assert health(found, "fleet").rho.value == pytest.approx(14 / 20)
    assert health(found, "fleet").worst == "b"
    assert [v for v in found.verdicts if v.scope == "engine" and v.name.startswith("b")] == []
