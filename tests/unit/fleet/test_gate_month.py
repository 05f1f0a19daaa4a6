"""Days through the real gate: against the exact queue, by tiers, with nodes that come and go, in parts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fleet.engine_profile import H100_70B_FP8, EngineProfile
from fleet.errors import InvalidInput
from fleet.fluid import BIN_S, DAY_BINS
from fleet.gate_month import GateRun
from fleet.gate_rules import MAX_FLOWS, GateRules, flows_of_tiers, whole_weights
from fleet.month_result import NodeClass, as_dict
from fleet.outcomes import Tier
from fleet.queueing import calculate
from fleet.refusal_split import Flow
from fleet.simulate import EventRun, ServiceModel
from fleet.simulation_snapshot import resume, snapshot
from fleet.strategies import read_strategy

NODE = NodeClass(service_rate=3.0, usd_per_hour=Decimal(28))
ONE_TIER = {Tier.INTERACTIVE: 1.0}
ALL_TIERS = {Tier.INTERACTIVE: 0.6, Tier.BATCH: 0.3, Tier.BEST_EFFORT: 0.1}


@dataclass(frozen=True, slots=True)
class Exponential(ServiceModel):
    """Service times of the exact formulas; a lognormal one has another tail."""

    def draw(self, rng: np.random.Generator, count: int, node: NodeClass) -> NDArray[np.float64]:
        return rng.exponential(self.slots / node.service_rate, count)


def a_run(
    rates_rps: NDArray[np.float64],
    params: dict[str, Any],
    tiers: dict[Tier, float] = ALL_TIERS,
    service: ServiceModel | None = None,
    kv_tokens: int | None = None,
    node: NodeClass = NODE,
    engine: EngineProfile | None = None,
) -> GateRun:
    service = service or ServiceModel()
    events = EventRun(rates_rps, read_strategy(params), node, service, 3, keeps_waits=False)
    return GateRun(events, GateRules(flows_of_tiers(tiers), kv_tokens=kv_tokens, engine=engine))


def done(run: GateRun) -> GateRun:
    while not run.is_done:
        run.advance()
    return run


@pytest.mark.parametrize("rate_rps", [12.0, 15.0, 18.0])
def test_one_tier_refuses_like_a_queue_with_deterministic_patience(rate_rps: float) -> None:
    exact = calculate("mmc_D", {"lam": rate_rps, "mu": 3, "c": 5, "D": 1.5}, "p_timeout").value
    service = Exponential(slots=1, squared_cv=0.0)  # equal prompts: shortest first is first come
    run = done(a_run(np.full(300, rate_rps), {"n": 5, "D": 1.5}, ONE_TIER, service))
    found, events = run.result(), run.events.result()
    # Refusals come in runs, so their standard error is several times the binomial one.
    error = 12 * math.sqrt(exact / (rate_rps * 300 * BIN_S))
    assert found.refused_share == pytest.approx(exact, abs=error)
    # The same requests at the same times in the same slots: what differs is only who is refused when.
    assert found.offered == events.offered
    assert found.refused_share == pytest.approx(events.refused_share, abs=0.01)
    assert found.offered == found.served + found.refused
    assert found.wait_max_s <= 1.5 + 1e-6


def test_overload_refuses_best_effort_first_then_batch() -> None:
    # Half as much again as the nodes serve: weights 70/25/5 give interactive (60 %) all it asks for
    # (0.6 x 1.5 = 0.9 of capacity > 0.7: not all), batch its 25 %, best effort the least.
    run = done(a_run(np.full(180, 9.0 * 1.5), {"n": 3, "D": 5}))
    shares = {one.tier: one.refused_share for one in run.tiers()}
    assert shares[Tier.BEST_EFFORT] > shares[Tier.BATCH] > shares[Tier.INTERACTIVE]
    assert shares[Tier.BEST_EFFORT] > 0.5
    total = sum(one.refused for one in run.tiers())
    assert total == run.result().refused
    assert sum(one.offered for one in run.tiers()) == run.result().offered
    assert all(sum(one.refused_by.values()) == one.refused for one in run.tiers())


def test_kv_that_does_not_suffice_refuses_what_slots_would_take() -> None:
    roomy = done(a_run(np.full(90, 8.0), {"n": 3, "D": 1.5}))
    # A request books about 500 + 750 tokens, of 0.85 x the cache: 15,000 tokens hold some ten of 36.
    tight = done(a_run(np.full(90, 8.0), {"n": 3, "D": 1.5}, kv_tokens=15_000))
    assert roomy.result().refused_share < 0.01
    assert tight.result().refused_share > 0.3


@pytest.mark.parametrize("engine", [None, H100_70B_FP8], ids=["drawn", "engines"])
def test_nodes_come_go_and_are_interrupted_by_the_plan(engine: EngineProfile | None) -> None:
    params = {
        "n": 2, "D": 5,
        "auto": {"mode": "reactive", "rho": 0.85, "min": 1, "max": 6, "stab_s": 60, "cold_s": 60},
        "burst": {"n": 2, "price": 16, "warm_s": 30, "up": 0.9, "down": 0.75, "cooldown_s": 60,
                  "interrupt_h": 0.05},
    }  # fmt: skip
    rates = 4 + 3.5 * np.sin(np.arange(540) / 40)
    run = done(a_run(rates, params, engine=engine))
    found, events = run.result(), run.events.result()
    assert (found.cost_usd, found.node_hours) == (events.cost_usd, events.node_hours)  # one plan
    assert found.burst_hours > 0
    assert found.lost_in_flight > 0
    assert found.offered == found.served + found.refused + found.lost_in_flight
    assert found.refused_share == pytest.approx(events.refused_share, abs=0.02)


def test_who_waits_too_long_and_is_lost_counts_once() -> None:
    # Three nodes serve 9 of 20 requests/s: everybody who starts waited far above the objective of half a
    # second, and every 72 s the burst nodes are taken away with what they hold.
    burst = {
        "n": 2,
        "price": 16,
        "warm_s": 30,
        "up": 0.9,
        "down": 0.75,
        "cooldown_s": 60,
        "interrupt_h": 0.02,
    }
    run = done(a_run(np.full(360, 20.0), {"n": 1, "D": 60, "burst": burst}))
    for found in (run.result(), run.events.result()):
        assert found.lost_in_flight > 1_000
        assert 0 <= found.slo_attainment < 0.01
        assert found.goodput_rps >= 0
    tiers = run.tiers()
    assert all(0 <= one.slo_attainment < 0.05 for one in tiers)
    assert sum(one.lost for one in tiers) == run.result().lost_in_flight


#: A little over two days, few requests: interruptions, scaling and refusals on each day.
LITTLE = NodeClass(service_rate=0.03)
PARAMS: dict[str, Any] = {
    "n": 2, "D": 20,
    "auto": {"mode": "predictive", "rho": 0.85, "min": 1, "max": 5, "stab_s": 300, "cold_s": 240},
    "burst": {"n": 1, "price": 16, "warm_s": 180, "up": 0.9, "down": 0.75, "cooldown_s": 300,
              "interrupt_h": 0.5},
}  # fmt: skip


def little() -> GateRun:
    bins = 2 * DAY_BINS + 2_000
    rates = 0.06 * (1 + 0.9 * np.sin(np.arange(bins) / DAY_BINS * 2 * np.pi))
    return a_run(rates, PARAMS, service=ServiceModel(slots=3), node=LITTLE)


def test_a_killed_run_goes_on_to_the_result_of_an_unbroken_one() -> None:
    straight = done(little())
    first = little()
    while first.days_done < 1:
        first.advance()
    first._day = first.task(1).begin()  # in the middle of a day: what was done of it is done again
    first._day.advance(50)
    kept = snapshot(first)
    second = little()
    resume(second, kept)
    assert second.days_done == 1
    done(second)
    assert as_dict(second.result()) == as_dict(straight.result())
    assert second.tiers() == straight.tiers()
    assert np.array_equal(second.result().refused_by_bin, straight.result().refused_by_bin)
    assert straight.result().refused > 0


def engines(rate_rps: float, bins: int, slots: int = 64, **rules: Any) -> GateRun:
    events = EventRun(
        np.full(bins, rate_rps),
        read_strategy({"n": 3, "D": 1.5}),
        NODE,
        ServiceModel(slots=slots),
        3,
        keeps_waits=False,
    )
    return GateRun(events, GateRules(flows_of_tiers(ALL_TIERS), engine=H100_70B_FP8, **rules))


def test_engines_behind_the_gate_serve_mu_when_full_and_answer_faster_when_not() -> None:
    full = done(engines(12.0, 120))  # a third more than three nodes serve
    found = full.result()
    # What is not refused is what the nodes can do: 3 requests/s each, from when they are full on. They
    # begin empty, and shortest first serves the shorter prompts: a few per cent more than the mean mix.
    assert found.served / (120 * BIN_S) == pytest.approx(9.0, rel=0.06)
    assert found.offered == found.served + found.refused
    idle = done(engines(1.5, 120))
    assert idle.result().refused == 0
    slow, quick = full.tiers()[0], idle.tiers()[0]
    assert slow.e2e_p50_s is not None
    assert quick.e2e_p50_s is not None
    # Full, a step of 64 decoders takes 71 ms; with about eight at once under 22: over three times as fast.
    assert slow.e2e_p50_s > 3 * quick.e2e_p50_s
    assert quick.first_p99_s is not None
    assert quick.first_p99_s < 0.2  # a step in flight, a step with the prompt
    assert full.preemptions == 0
    assert done(a_run(np.full(9, 1.0), {"n": 1, "D": 1})).preemptions is None


def test_kv_of_engines_bounds_what_a_node_takes() -> None:
    # A request holds some 500 + 300 tokens and books more: 12,000 tokens are not 64 of them, so the node
    # runs fewer at once, each step costs more a token, and it serves less than mu.
    tight, roomy = done(engines(8.0, 180, kv_tokens=12_000)), done(engines(8.0, 180))
    assert roomy.result().refused_share < 0.02
    assert tight.result().refused_share > 0.2
    assert tight.kv_tokens == 12_000


def test_tenants_share_their_tier_by_weight() -> None:
    flows = (
        Flow("heavy", "interactive", 0.4, 3.0),
        Flow("light", "interactive", 0.4, 1.0),
        Flow("", "batch", 0.2),
    )
    events = EventRun(
        np.full(100, 13.5), read_strategy({"n": 3, "D": 1.5}), NODE, ServiceModel(), 3, keeps_waits=False
    )
    run = done(GateRun(events, GateRules(flows, {"interactive": 90.0, "batch": 10.0})))
    heavy, light = run.tenants()  # batch's are not told apart
    assert (heavy.tenant, light.tenant) == ("heavy", "light")
    # Both ask for the same; of what the tier gets the one may have three quarters.
    assert light.refused_share > 1.5 * heavy.refused_share > 0
    interactive, batch = run.tiers()
    assert interactive.offered == heavy.offered + light.offered
    assert interactive.refused == heavy.refused + light.refused
    # 1.5 times the capacity: batch asks for 0.3 of it and may have 0.1.
    assert batch.refused_share > 0.5 > interactive.refused_share


def test_weights_become_whole_numbers_that_add_up_to_a_hundred() -> None:
    assert whole_weights([70, 25, 5]) == [70, 25, 5]
    assert whole_weights([1.0, 1.0, 1.0]) == [34, 33, 33]
    assert whole_weights([1e6, 1e-3, 0.0]) == [98, 1, 1]
    with pytest.raises(InvalidInput, match="weight"):
        whole_weights([0.0, 0.0, 0.0])
    with pytest.raises(InvalidInput, match="101 tenants"):
        GateRules(tuple(Flow(str(n), "batch", 1 / 101) for n in range(MAX_FLOWS + 1)))
    with pytest.raises(InvalidInput, match="KV cache"):
        engines(1.0, 10, kv_tokens=900)


def test_a_killed_run_of_engines_goes_on_to_the_same_result() -> None:
    def run() -> GateRun:
        events = EventRun(
            np.full(DAY_BINS + 400, 0.06), read_strategy(PARAMS), LITTLE, ServiceModel(3), 3,
            keeps_waits=False,
        )  # fmt: skip
        return GateRun(events, GateRules(flows_of_tiers(ALL_TIERS), engine=H100_70B_FP8))

    straight, first, second = done(run()), run(), run()
    while first.days_done < 1:
        first.advance()
    resume(second, snapshot(first))
    assert done(second).tiers() == straight.tiers()
    assert straight.result().served > 1_000


def test_another_runs_snapshot_is_refused() -> None:
    other = a_run(np.full(100, 0.1), PARAMS, service=ServiceModel(slots=3), node=LITTLE)
    with pytest.raises(InvalidInput, match="does not fit"):
        resume(little(), snapshot(other))
    with pytest.raises(InvalidInput, match="does not fit"):
        resume(little(), snapshot(other.events))


def test_nothing_to_say_before_the_first_day_and_without_requests() -> None:
    with pytest.raises(InvalidInput, match="no day"):
        a_run(np.full(10, 1.0), {"n": 1}).result()
    with pytest.raises(InvalidInput, match="no tier"):
        a_run(np.full(10, 1.0), {"n": 1}, {Tier.BATCH: 0.0})
