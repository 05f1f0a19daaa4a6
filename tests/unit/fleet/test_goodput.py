"""Goodput: the load line's algebra, the chain against the step-level engine, and what admission keeps."""

from __future__ import annotations

import pytest

from fleet.curve_fit import StepCurve
from fleet.engine_chain import engine_chain
from fleet.errors import InvalidInput
from fleet.goodput import EngineModel, Point, advise, load_line, most_at, point
from fleet.goodput_simulation import profile_of, rates_around, simulate_curve, simulate_point
from fleet.replay_outcomes import Objectives

#: 12 ms a step, 0.1 ms a sequence, 12 us a prompt token; 500 in, 300 out: m = 0.12 ms.
PLAIN = EngineModel(StepCurve(0.012, 0.0001 + 12e-6 * 500 / 300), 500, 300, 12e-6)
#: A measured curve with a knee: X is highest at 59 sequences.
KNEE = EngineModel(StepCurve(0.00508, 0.000238, 59, 0.00012), 500, 300, 1e-5)
TTFT = Objectives(ttft_s=0.5)


def known(found: Point | None) -> Point:
    assert found is not None
    return found


@pytest.mark.parametrize("model", [PLAIN, KNEE])
@pytest.mark.parametrize("batch", [1.0, 20.0, 58.0, 59.0])
def test_the_load_line_inverts_throughput(model: EngineModel, batch: float) -> None:
    assert load_line(model, model.throughput(batch)) == pytest.approx(batch, rel=1e-9)


def test_past_a_knee_that_slows_down_the_lower_batch_is_meant_and_beyond_saturation_there_is_none() -> None:
    # 1 / (O m) = 1 / (300 x 0.12 ms) = 27.8 requests/s whatever the slots.
    assert load_line(PLAIN, 27.7) is not None
    assert load_line(PLAIN, 27.8) is None
    gentle = EngineModel(StepCurve(0.010, 0.0001, 50, 0.0001), 500, 300, 0.0)
    assert load_line(gentle, gentle.throughput(200.0)) == pytest.approx(200.0, rel=1e-9)
    assert load_line(KNEE, 1.05 * KNEE.throughput(59)) is None


def test_the_mean_batch_is_the_chains_of_an_engine_whose_queue_never_ends() -> None:
    # With the half step of joining taken out by a long answer, n is that of the birth-death chain.
    long = EngineModel(PLAIN.curve, 500, 3000, 12e-6)
    rate, slots = 0.9 * long.throughput(32), 32
    slope = long.curve.slope_s
    exact = engine_chain(
        rate, 3000.5, 0.0, alpha=0.012, beta=slope, gamma=0.0, slots=slots, queue=5_000
    ).b_mean
    assert known(point(long, rate, slots, TTFT)).mean_batch == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize(("model", "batch"), [(PLAIN, 64), (PLAIN, 256), (KNEE, 48), (KNEE, 96)])
def test_what_the_formula_says_the_engine_does(model: EngineModel, batch: int) -> None:
    objectives = Objectives(ttft_s=0.5, e2e_s=12.0)
    rate = 0.8 * known(most_at(model, batch, TTFT).best).rate
    formula = known(point(model, rate, batch, objectives))
    group = simulate_point(model, rate, batch, objectives, seconds=900).group
    assert formula.ttft_s == pytest.approx(group.ttft_s.p95, rel=0.15)
    assert formula.e2e_s == pytest.approx(group.e2e_s.p95, rel=0.1)
    assert formula.itl_s == pytest.approx(group.itl_s.p95, rel=0.12)
    assert formula.good_share == pytest.approx(group.good_share, abs=0.03)


@pytest.mark.parametrize(("model", "batch"), [(PLAIN, 64), (KNEE, 48)])
def test_below_the_advised_rate_p95_holds_above_it_nothing_is_in_time(
    model: EngineModel, batch: int
) -> None:
    best = known(most_at(model, batch, TTFT).best)
    below = simulate_point(model, 0.95 * best.rate, batch, TTFT, seconds=600)
    above = simulate_point(model, 1.3 * model.throughput(batch), batch, TTFT, seconds=600)
    assert below.group.ttft_s.p95 is not None
    assert below.group.ttft_s.p95 <= 0.5
    assert above.goodput < 0.05 * best.goodput


def test_admission_keeps_goodput_where_the_queue_loses_all_of_it() -> None:
    best = known(most_at(PLAIN, 64, TTFT).best)
    kept = simulate_point(
        PLAIN, 1.5 * best.rate, 64, TTFT, seconds=600, admitted_rate=best.rate, timeout_s=1.5
    )
    assert kept.goodput >= 0.95 * best.goodput
    assert kept.group.refused_share > 0.2  # a third is above the advised rate; short ones fit in between


def test_past_the_knee_fewer_sequences_serve_as_much_with_shorter_gaps() -> None:
    advice = advise(KNEE, TTFT, most_batch=256, in_use=256)
    best = advice.best
    assert best is not None
    assert best.batch < 128
    largest = known(advice.choices[-1].best)
    chosen = known(best.best)
    assert chosen.goodput >= 0.97 * largest.goodput
    assert chosen.itl_s < 0.5 * largest.itl_s
    assert any("With 256 as now" in words for words in advice.words)


def test_a_stricter_objective_never_admits_more() -> None:
    rates = [
        known(most_at(PLAIN, 64, Objectives(ttft_s=0.5, itl_s=itl_s)).best).rate
        for itl_s in (None, 0.018, 0.016, 0.014)
    ]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > rates[-1]


def test_objectives_nobody_can_keep_have_no_rate_and_say_why() -> None:
    advice = advise(PLAIN, Objectives(ttft_s=0.5, itl_s=0.001))
    assert advice.best is None
    assert "time between tokens" in advice.words[0]


def test_prompts_that_take_more_than_the_whole_slope_are_refused() -> None:
    wrong = EngineModel(StepCurve(0.012, 0.00001), 500, 300, 12e-6)
    with pytest.raises(InvalidInput) as refused:
        profile_of(wrong, 8)
    assert refused.value.field == "prompt_s_per_token"


def test_a_curve_can_be_stopped_and_reaches_past_saturation() -> None:
    rates = rates_around(9.0, 10.0)
    assert (rates[0], rates[-1]) == pytest.approx((1.8, 11.0))
    stopped = simulate_curve(PLAIN, rates, 64, TTFT, seconds=60, on_progress=lambda done, _of: done < 2)
    assert [one.rate for one in stopped] == rates[:2]


@pytest.mark.parametrize(("batch", "quantile", "rate"), [(0, 0.95, 1.0), (8, 0.4, 1.0), (8, 0.95, 0.0)])
def test_what_cannot_be_asked_is_refused(batch: int, quantile: float, rate: float) -> None:
    with pytest.raises(InvalidInput):
        point(PLAIN, rate, batch, TTFT, quantile)
