"""The estimator against engines of known capacity: recorded scrapes, a real log, fresh simulations."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from engine_traffic import measured_capacity, run_engine, wave
from hypothesis import given, settings
from hypothesis import strategies as st

from control.capacity_files import read_engines
from fleet.capacity import (
    CapacityEstimate,
    ConfiguredCapacity,
    Grade,
    Method,
    estimate_capacity,
)
from fleet.capacity_learner import CapacityLearner, Siblings, gauges_disagree, point_of, with_fallback
from fleet.capacity_limits import (
    batch_at_latency,
    decoding_share,
    kv_tokens_per_sequence,
    latency_rise_at,
    occupancy_at,
)
from fleet.curve_fit import StepCurve, bin_weights, bootstrap_curves, fit_curve
from fleet.engine_profile import EngineProfile
from fleet.readings import EngineWindow, Histogram
from fleet.saturation import EngineLimits, Mix, Plateau, Point, mix_of

DATA = Path(__file__).parents[2] / "data" / "capacity"
with (DATA / "capacity_truth.csv").open(newline="") as handle:
    TRUTH = list(csv.DictReader(handle))
PREEMPTING = {("kv60k", "0.8"), ("kv60k", "1.15")}


@cache
def scrapes():
    return {
        (dict(e.name)["case"], dict(e.name)["u"]): e.points
        for e in read_engines(DATA / "capacity_scrapes.csv.gz")
    }


def estimate(truth: dict[str, str]) -> CapacityEstimate:
    limits = EngineLimits(int(truth["slots"]), None, int(truth["kv_tokens"]))
    points = scrapes()[truth["case"], truth["u"]]
    return estimate_capacity(points, limits, np.random.default_rng(1))


@pytest.mark.parametrize("truth", TRUTH, ids=lambda r: f"{r['case']}-{r['u']}")
def test_every_band_contains_the_capacity_and_a_far_reach_makes_it_sharp(truth):
    found, true = estimate(truth), float(truth["mu_true_req_s"])
    assert found.requests_per_s is not None
    assert found.low_requests_per_s <= true <= found.high_requests_per_s
    if (truth["case"], truth["u"]) not in PREEMPTING and (found.reach or 0) >= 0.8:
        assert found.requests_per_s == pytest.approx(true, rel=0.03)
        assert found.grade is Grade.A


def test_an_engine_that_only_preempts_has_no_curve_but_a_plateau():
    found = estimate(next(r for r in TRUTH if (r["case"], r["u"]) == ("kv60k", "1.15")))
    assert found.curve is None
    assert found.method is Method.OBSERVED_SATURATION
    assert found.requests_per_s == pytest.approx(11.899, rel=0.05)


@pytest.mark.parametrize("case", ["linear", "slots64", "hinge64", "kv60k"])
def test_overload_by_15_percent_reads_as_such(case):
    truth = next(r for r in TRUTH if (r["case"], r["u"]) == (case, "1.15"))
    found = estimate(truth)
    assert found.grade is Grade.A
    # arrivals as counted over the hour; completions alone would read 1.0
    assert 1.10 <= float(truth["lam_mean"]) / found.requests_per_s <= 1.20


def test_load_seen_decides_the_grade():
    grades = {r["u"]: estimate(r).grade for r in TRUTH if r["case"] == "linear"}
    assert grades == {"0.05": Grade.C, "0.25": Grade.C, "0.5": Grade.B, "0.8": Grade.A, "1.15": Grade.A}


@pytest.mark.parametrize(("below", "rel"), [(32, None), (64, None), (96, None), (128, 0.05), (192, 0.05)])
def test_a_real_engine_log_is_extrapolated_honestly(below, rel):
    # the log's own throughput at 250 or more sequences is 2,867 tokens/s; a line from b <= 128 says +13 %
    engine = read_engines(DATA / "vllm_engine_log_burstgpt_replay.csv.gz")[0]
    points = [p for p in engine.points if p.batch <= below]
    found = estimate_capacity(points, EngineLimits(max_num_seqs=256), np.random.default_rng(1))
    assert found.low_tokens_per_s <= 2867 <= found.high_tokens_per_s
    if rel:
        assert found.tokens_per_s == pytest.approx(2867, rel=rel)
    # too few completions are known to say requests/s: tokens alone
    assert found.requests_per_s is None


def test_fewer_sequences_are_advised_where_they_finish_more():
    # tau = 5 ms + 0.24 ms b to b = 60, twice as steep above: X(60) = 3093/s, X(256) = 2267/s
    b = np.linspace(4, 256, 600)
    tau = 0.005 + 0.00024 * b + 0.00024 * np.maximum(0, b - 60)
    points = [
        Point(10.0 * i, 10, float(x), float(y), float(x / y * 10))
        for i, (x, y) in enumerate(zip(b, tau, strict=True))
    ]
    found = estimate_capacity(points, EngineLimits(256), np.random.default_rng(1), draws=20)
    assert found.advised_batch == pytest.approx(60, abs=15)


FRESH = [
    EngineProfile("plain", 0.02, 5e-5, 8e-6, max_num_seqs=48),
    EngineProfile("knee", 0.009, 1.5e-4, 1e-5, knee_seqs=40, beta_past_knee_s=2.6e-4, max_num_seqs=96),
    EngineProfile("memory", 0.015, 1e-4, 1e-5, max_num_seqs=256, num_gpu_blocks=4001),
]


@pytest.mark.parametrize("profile", FRESH, ids=lambda p: p.name)
@pytest.mark.parametrize("load", [0.2, 0.6, 0.9])
def test_fresh_engines_are_inside_their_band(profile, load):
    true = measured_capacity(profile, seed=11)
    learner = CapacityLearner(EngineLimits(max_num_seqs=profile.max_num_seqs))
    for timed in run_engine(profile, wave(load * true), 3600, seed=5):
        learner.add(timed.ended_at_s, timed.window)
    found = learner.estimate(3600, np.random.default_rng(2))
    assert found.low_requests_per_s <= true <= found.high_requests_per_s
    if found.grade is Grade.A and profile.name != "memory":
        assert found.requests_per_s == pytest.approx(true, rel=0.03)


# -- the curve ------------------------------------------------------------------------------------


def test_outliers_do_not_move_the_curve():
    rng = np.random.default_rng(4)
    b = rng.uniform(1, 100, 400)
    tau = 0.01 + 2e-4 * b + rng.normal(0, 2e-4, 400)
    tau[::20] *= 5  # one window in twenty behind a garbage collection
    curve = fit_curve(b, tau).curve
    assert curve.step_time_s(100) == pytest.approx(0.03, rel=0.02)


def test_an_hour_at_load_outweighs_a_night_of_idling():
    b = np.concatenate((np.full(3000, 1.0), np.full(60, 100.0)))
    weights = bin_weights(b)
    # bins of 3000 and 60 windows: inverse occupancy 50 : 1, capped at 10 x the median weight
    assert weights[-1] / weights[0] == pytest.approx(10)


@settings(max_examples=40, deadline=None)
@given(
    alpha=st.floats(1e-3, 0.1), slope=st.floats(0, 1e-3), unit=st.floats(0.1, 10), seed=st.integers(0, 99)
)
def test_the_curve_is_convex_and_scales_with_the_unit_of_time(alpha, slope, unit, seed):
    rng = np.random.default_rng(seed)
    b = rng.uniform(1, 128, 150)
    tau = (alpha + slope * b) * rng.normal(1, 0.02, 150)
    curve, scaled = fit_curve(b, tau).curve, fit_curve(b, tau * unit).curve
    assert curve.intercept_s > 0
    assert 0 <= curve.slope_s <= curve.last_slope_s
    assert scaled.step_time_s(64) == pytest.approx(curve.step_time_s(64) * unit, rel=1e-3)


def test_resampled_curves_scatter_around_the_fit():
    rng = np.random.default_rng(8)
    b = rng.uniform(1, 100, 360)
    fit = fit_curve(b, 0.01 + 1e-4 * b + rng.normal(0, 5e-4, 360))
    drawn = [c.step_time_s(100) for c in bootstrap_curves(b, 0.01 + 1e-4 * b, fit, 50, rng)]
    assert np.mean(drawn) == pytest.approx(0.02, rel=0.02)
    assert bootstrap_curves(b, 0.01 + 1e-4 * b, fit, 0, rng) == []


def test_beyond_the_reach_only_the_unseen_part_is_stretched():
    curve = StepCurve(0.01, 1e-4)
    assert curve.beyond(50, 100, 2.0) == curve.step_time_s(50)
    # seen to 100: 20 ms; the next 100 sequences at twice 0.1 ms: 40 ms
    assert curve.beyond(200, 100, 2.0) == pytest.approx(0.04)


def test_the_batch_at_an_objective_inverts_the_curve_on_both_sides_of_the_knee():
    curve = StepCurve(0.01, 1e-4, knee=100, extra_slope_s=1e-4)
    assert batch_at_latency(curve, 0.015) == pytest.approx(50)
    assert batch_at_latency(curve, 0.03) == pytest.approx(150)
    assert batch_at_latency(curve, 0.001) == 1
    assert batch_at_latency(StepCurve(0.01, 0.0), 0.02) == float("inf")


def test_running_requests_are_length_biased():
    # 500 + 300 (1 + 0.64) / 2 = 746, not 650
    assert kv_tokens_per_sequence(500, 300, 0.8) == pytest.approx(746)


def test_requests_in_prefill_hold_slots_and_do_not_decode():
    # tau = 20 ms at any batch, O = 50: X(b) = b / (50 * 20 ms) = b; prefill of 0.25 s: b + 0.25 b = 64
    mix = Mix(1000, 50.0, 8000.0, 8000.0, None, prefill_s=0.25)
    assert decoding_share(64, StepCurve(0.02, 0.0), mix) == pytest.approx(64 / 1.25)
    assert decoding_share(64, StepCurve(0.02, 0.0), replace(mix, prefill_s=None)) == 64


def test_time_in_prefill_is_what_runs_without_decoding():
    # 12 run, 10 decode, 10 requests/s end: Little's law gives 2 / 10 = 0.2 s; a noisy gauge gives nothing
    told = [
        Point(10.0 * i, 10, 10.0 + i % 2 / 100, 0.02, 5000, completed=100, running=12) for i in range(40)
    ]
    assert mix_of(told).prefill_s == pytest.approx(0.2, rel=0.01)
    noisy = [replace(p, running=10 + (4 if i % 2 else -4)) for i, p in enumerate(told)]
    assert mix_of(noisy).prefill_s is None


def test_what_occupancy_to_expect_follows_the_load_line():
    # h = alpha / (m b*) = 0.012 / (0.00012 * 256) = 0.39; b / b* = rho h / (1 + h - rho), tau / alpha = ...
    curve = StepCurve(0.012, 0.00012)
    for rho, occupancy, rise in ((0.70, 0.40, 2.0), (0.85, 0.61, 2.6), (0.95, 0.84, 3.2), (1.0, 1.0, 3.56)):
        assert occupancy_at(curve, 256, rho) == pytest.approx(occupancy, abs=0.01)
        assert latency_rise_at(curve, 256, rho) == pytest.approx(rise, abs=0.06)


def test_every_limit_has_its_capacity_with_an_interval_and_the_binding_one_is_mu():
    limits = EngineLimits(256, 8192, 600_000, itl_slo_s=0.5)
    found = estimate_capacity(scrapes()["linear", "0.8"], limits, np.random.default_rng(1))
    rates = {rate.name: rate for rate in found.rates_by_limit}
    assert set(rates) == {"compute", "slots", "kv", "batched_tokens", "itl"}
    assert all(r.low <= r.value <= r.high for r in rates.values())
    assert found.binding == "slots"
    assert rates["slots"].value == found.requests_per_s
    # 1 / (O m) with O 300, m = 0.1 ms + 12 us * 500 / 300: 27.8/s, and never below what slots allow
    assert rates["compute"].low <= 1 / (300 * 1.2e-4) <= rates["compute"].high
    assert rates["compute"].value > rates["slots"].value


# -- the learner ----------------------------------------------------------------------------------


def engine_window(**changes) -> EngineWindow:
    base = {
        "engine": "0", "model": "m", "length_s": 10.0, "restarted": False, "arrivals": 30, "completed": 30,
        "errors": 0, "aborted": 0, "prompt_tokens": 15000, "prompt_tokens_computed": 15000,
        "generation_tokens": 9000, "preemptions": 0, "prefix_cache_hits": 0, "prefix_cache_queries": 0,
        "running": 20, "waiting": 0, "waiting_capacity": None, "kv_used_ratio": 0.1,
        "kv_capacity_tokens": None, "histograms": {"itl_s": Histogram((), (9000,), 200.0)},
    }  # fmt: skip
    return EngineWindow(**{**base, **changes})


def test_concurrency_and_latency_come_from_the_token_gaps():
    point = point_of(100.0, engine_window())
    assert point.batch == pytest.approx(20)  # 200 s of gaps in 10 s
    assert point.itl_s == pytest.approx(200 / 9000)
    assert point.usable


@pytest.mark.parametrize(
    "changes",
    [{"preemptions": 1}, {"restarted": True}, {"flags": ("frozen",)},
     {"histograms": {"itl_s": Histogram((), (199,), 5.0)}}],
)  # fmt: skip
def test_windows_that_lie_about_step_time_stay_out_of_the_curve(changes):
    assert not point_of(100.0, engine_window(**changes)).usable
    assert not point_of(100.0, engine_window(), covered_ratio=0.7).usable


def test_without_token_gaps_there_is_no_point():
    assert point_of(1.0, engine_window(histograms={})) is None
    assert point_of(1.0, engine_window(histograms={"itl_s": Histogram((), (9000,), None)})) is None


def test_counters_and_gauge_that_disagree_are_noticed():
    def points(running: int) -> list[Point]:
        found = [point_of(10.0 * i, engine_window(running=running)) for i in range(6)]
        return [point for point in found if point is not None]

    agreeing, lying = points(22), points(60)
    assert len(agreeing) == len(lying) == 6
    assert not gauges_disagree(agreeing)
    assert gauges_disagree(lying)


def test_a_lying_gauge_is_flagged_and_never_fitted():
    learner = CapacityLearner(EngineLimits(64))
    for i in range(60):
        learner.add(10.0 * i, engine_window(running=60))
    found = learner.estimate(600, np.random.default_rng(1))
    assert "metrics_inconsistent" in found.flags
    assert found.windows < 12
    assert found.requests_per_s is None


def feed(
    learner: CapacityLearner, start: float, minutes: int, output: int, rng: np.random.Generator
) -> float:
    """Feed windows of an engine with tau = 12 ms + 0.12 ms b at loads from 5 to 40 sequences."""
    at = start
    for i in range(minutes * 6):
        at = start + 10.0 * (i + 1)
        b = 22.5 + 17.5 * np.sin(i / 20) + rng.normal(0, 0.5)
        events = round(b / (0.012 + 1.2e-4 * b) * 10)
        done = round(events / output)
        seen = engine_window(
            completed=done,
            prompt_tokens=500 * done,
            prompt_tokens_computed=500 * done,
            running=round(b),
            kv_used_ratio=b * 0.001,
            histograms={"itl_s": Histogram((), (events,), b * 10.0)},
        )
        learner.add(at, seen)
    return at


def test_a_new_mix_starts_a_new_fit_at_the_new_mix():
    learner, rng = CapacityLearner(EngineLimits(max_num_seqs=64)), np.random.default_rng(3)
    at = feed(learner, 0, 120, 300, rng)
    before = learner.estimate(at, rng)
    at = feed(learner, at, 20, 150, rng)
    after = learner.estimate(at, rng)
    # the same engine, half the output: twice the requests/s, 64 / (O tau(64))
    tau = 0.012 + 1.2e-4 * 64
    assert before.requests_per_s == pytest.approx(64 / (300 * tau), rel=0.05)
    assert after.requests_per_s == pytest.approx(64 / (150 * tau), rel=0.05)


def test_until_the_new_mix_has_a_fit_the_old_one_stands_and_says_so():
    learner, rng = CapacityLearner(EngineLimits(max_num_seqs=64)), np.random.default_rng(3)
    at = feed(learner, 0, 120, 300, rng)
    before = learner.estimate(at, rng)
    began = at
    for i in range(1, 100):  # short answers, so few at once that no window has 200 decode steps
        at = began + 10.0 * i
        seen = engine_window(
            completed=10, prompt_tokens=5000, prompt_tokens_computed=5000, running=1,
            histograms={"itl_s": Histogram((), (100,), 1.3)},
        )  # fmt: skip
        learner.add(at, seen)
    stale = learner.estimate(at, rng)
    assert "stale_mix" in stale.flags
    assert stale.requests_per_s == before.requests_per_s
    assert began - 600 <= stale.stale_since_s <= began + 600
    for i in range(1, 100):  # yet another mix too thin for a fit: what was measured goes on standing
        seen = engine_window(
            completed=10, prompt_tokens=5000, prompt_tokens_computed=5000, running=1,
            histograms={"itl_s": Histogram((), (190,), 2.5)},
        )  # fmt: skip
        learner.add(at + 10.0 * i, seen)
        later = learner.estimate(at + 10.0 * i, rng)
    assert later.mix == before.mix
    assert later.requests_per_s == before.requests_per_s


def test_a_mix_that_comes_back_is_known_again():
    learner, rng = CapacityLearner(EngineLimits(max_num_seqs=64)), np.random.default_rng(3)
    at = feed(learner, 0, 60, 300, rng)
    day = learner.estimate(at, rng)
    at = feed(learner, at, 60, 150, rng)
    learner.estimate(at, rng)
    at = feed(learner, at, 15, 300, rng)
    back = learner.estimate(at, rng)
    # an hour and a quarter of windows at 300 steps a request, not the quarter alone, nor the mean of both
    assert back.windows > 400
    assert back.requests_per_s == pytest.approx(day.requests_per_s, rel=0.03)


def test_nothing_is_refitted_while_nothing_changes():
    learner, rng = CapacityLearner(EngineLimits(max_num_seqs=64)), np.random.default_rng(3)
    at = feed(learner, 0, 120, 300, rng)
    first = learner.estimate(at, rng)
    at = feed(learner, at, 3, 300, rng)
    assert learner.estimate(at, rng).fitted_at_s == first.fitted_at_s
    at = feed(learner, at, 8, 300, rng)
    assert learner.estimate(at, rng).fitted_at_s == at


def test_a_night_of_idling_is_not_refitted():
    learner, rng = CapacityLearner(EngineLimits(max_num_seqs=64)), np.random.default_rng(3)
    at = feed(learner, 0, 60, 300, rng)
    first = learner.estimate(at, rng)
    for i in range(1, 2000):
        idle = engine_window(completed=0, running=0, histograms={"itl_s": Histogram((), (0,), 0.0)})
        learner.add(at + 10.0 * i, idle)
    later = learner.estimate(at + 20_000, rng)
    assert later.fitted_at_s == first.fitted_at_s
    assert later.requests_per_s == first.requests_per_s


def test_another_configuration_forgets_what_was_learned():
    learner, rng = CapacityLearner(EngineLimits(max_num_seqs=64)), np.random.default_rng(3)
    at = feed(learner, 0, 60, 300, rng)
    assert learner.estimate(at, rng).requests_per_s is not None
    learner.register(EngineLimits(max_num_seqs=128))
    assert learner.estimate(at, rng).method is Method.UNKNOWN


def test_unregistered_slots_are_assumed_flagged_and_never_trusted():
    learner, rng = CapacityLearner(EngineLimits()), np.random.default_rng(3)
    at = feed(learner, 0, 60, 300, rng)
    found = learner.estimate(at, rng)
    assert "max_num_seqs_assumed" in found.flags
    assert found.grade is Grade.C
    # from the 40 sequences seen (and some noise) to the 1000 the KV cache holds at 0.1 % each
    assert found.low_requests_per_s <= 42 / (300 * (0.012 + 1.2e-4 * 42))
    assert found.high_requests_per_s >= 1000 / (300 * (0.012 + 1.2e-4 * 1000))


def test_old_windows_in_the_wrong_order_are_ignored():
    learner = CapacityLearner(EngineLimits(64), ring_windows=10)
    for at in (10, 20, 20, 15, 30):
        learner.add(at, engine_window())
    assert learner.estimate(30, np.random.default_rng(1)).windows == 3


# -- the fallbacks --------------------------------------------------------------------------------


def known(mu: float, grade: Grade = Grade.B) -> CapacityEstimate:
    return CapacityEstimate(
        Method.CURVE, grade, requests_per_s=mu, low_requests_per_s=mu * 0.9, high_requests_per_s=mu * 1.2,
        tokens_per_s=mu * 300, low_tokens_per_s=mu * 270, high_tokens_per_s=mu * 360,
    )  # fmt: skip


PEAK = CapacityEstimate(Method.PEAK_SEEN, Grade.D, peak_seen_tokens_per_s=500.0)
TYPED = ConfiguredCapacity("benchmark of 2026-03-01", requests_per_s=9.0)


def lent(*estimates: CapacityEstimate) -> Siblings:
    return Siblings.of(estimates)


def test_learned_beats_configured_beats_siblings_and_a_peak_is_never_mu():
    assert with_fallback(known(20), TYPED, lent(known(5))).requests_per_s == 20
    assert with_fallback(PEAK, TYPED, lent(known(5))).method is Method.CONFIGURED
    assert with_fallback(PEAK, TYPED, lent()).requests_per_s == 9
    sibling = with_fallback(PEAK, None, lent(known(10), known(12), known(20, Grade.C)))
    assert (sibling.method, sibling.requests_per_s, sibling.grade) == (Method.SIBLING, 12, Grade.C)
    # the lowest of 0.9 x 10, the highest of 1.2 x 20
    assert (sibling.low_requests_per_s, sibling.high_requests_per_s) == (9, 24)
    alone = with_fallback(PEAK, None, lent())
    assert alone.method is Method.PEAK_SEEN
    assert alone.requests_per_s is None


def test_siblings_that_know_nothing_do_not_count():
    assert with_fallback(PEAK, None, lent(PEAK, with_fallback(PEAK, TYPED, lent()))).requests_per_s is None


def test_a_typed_capacity_is_not_sold_as_exact():
    found = with_fallback(PEAK, TYPED, lent())
    assert (found.low_requests_per_s, found.high_requests_per_s) == (9 * 0.75, 9 * 1.25)
    sure = with_fallback(PEAK, replace(TYPED, relative_error=0.1), lent())
    assert sure.low_requests_per_s == pytest.approx(8.1)
    assert sure.grade is None


def test_a_plateau_that_contradicts_the_curve_wins_and_raises_drift():
    points = [
        Point(10.0 * i, 10, b, 0.012 + 1.2e-4 * b, b / (0.012 + 1.2e-4 * b) * 10, completed=10)
        for i, b in enumerate(np.linspace(2, 60, 200))
    ]
    curve = estimate_capacity(points, EngineLimits(64), np.random.default_rng(1))
    throttled = Plateau(0.7 * curve.tokens_per_s, 0.001, 1990.0, 60)
    found = estimate_capacity(points, EngineLimits(64), np.random.default_rng(1), remembered=throttled)
    assert found.method is Method.OBSERVED_SATURATION
    assert found.tokens_per_s == pytest.approx(0.7 * curve.tokens_per_s)
    assert found.drift == pytest.approx(-0.3)
    assert "capacity_model_drift" in found.flags


def test_an_engine_that_slows_down_is_noticed_before_the_curve_follows():
    # 12 hours at tau = 12 ms + 0.12 ms b, then ten minutes in which every step takes 1.4 times as long
    rng = np.random.default_rng(6)
    b = 30 + 25 * np.sin(np.arange(4320) / 60) + rng.normal(0, 0.5, 4320)
    tau = (0.012 + 1.2e-4 * b) * np.where(np.arange(4320) >= 4260, 1.4, 1.0)
    points = [
        Point(10.0 * i, 10, float(x), float(y), float(x / y * 10), completed=10)
        for i, (x, y) in enumerate(zip(b, tau, strict=True))
    ]
    before = estimate_capacity(points[:4260], EngineLimits(64), np.random.default_rng(1), draws=20)
    found = estimate_capacity(points, EngineLimits(64), np.random.default_rng(1), draws=20)
    assert before.drift is None
    assert found.drift == pytest.approx(1 / 1.4 - 1, abs=0.02)
    assert "step_time_moved" in found.flags
    # the interval reaches down to what the slowed engine can do
    assert found.low_tokens_per_s <= 64 / (1.4 * (0.012 + 1.2e-4 * 64)) <= found.high_tokens_per_s


def test_a_token_budget_nobody_named_is_seen_where_prompts_queue():
    # 8,000 prompt tokens for 50 steps: full steps of 100 ms with 12 decoding, 120 steps/s, slots half empty
    rng = np.random.default_rng(2)
    points = [
        Point(
            10.0 * i, 10, 12.0, 0.1, 1200 * float(rng.normal(1, 0.02)), completed=24, prompt_tokens=192_000,
            prompt_tokens_computed=192_000, running=40, waiting=5,
        )
        for i in range(120)
    ]  # fmt: skip
    found = estimate_capacity(points, EngineLimits(max_num_seqs=128), np.random.default_rng(1))
    assert (found.method, found.grade) == (Method.OBSERVED_SATURATION, Grade.A)
    assert "saturated_by_its_queue" in found.flags
    assert found.tokens_per_s == pytest.approx(120, rel=0.02)
    # nothing of the kind where nobody waits
    idle = [replace(p, waiting=0) for p in points]
    assert estimate_capacity(idle, EngineLimits(128), np.random.default_rng(1)).method is Method.CURVE


def test_output_length_is_not_biased_by_requests_still_running():
    # from empty to 100 running: they decoded 0.82 x 300 steps each that no completion accounts for
    decoded = 300.0 * 200 + 100 * 0.82 * 300
    points = [
        Point(10, 10, 50, 0.02, decoded / 2, completed=100, running=0),
        Point(20, 10, 50, 0.02, decoded / 2, completed=100, running=100),
    ]
    assert mix_of(points).decode_events == pytest.approx(300)


@pytest.mark.parametrize("load", ["0.25", "0.5", "0.8", "1.15"])
def test_a_full_engine_says_nothing_of_one_that_an_objective_keeps_from_filling_up(load):
    # tau(b) = 12 ms + (0.1 ms + 12 us * 500/300) b = 25 ms at b = 108.3: X = 108.3 / (300 * 25 ms) = 14.4
    limits = EngineLimits(256, None, 600_000, itl_slo_s=0.025)
    found = estimate_capacity(scrapes()["linear", load], limits, np.random.default_rng(1))
    assert found.binding == "itl"
    assert found.method is Method.CURVE
    assert found.drift is None
    assert found.low_requests_per_s <= 14.44 <= found.high_requests_per_s
    if found.grade is Grade.A:
        assert found.requests_per_s == pytest.approx(14.44, rel=0.03)


def test_an_objective_below_the_shortest_step_is_said_to_be_out_of_reach():
    limits = EngineLimits(256, None, None, itl_slo_s=0.005)  # a step alone takes 12 ms
    found = estimate_capacity(scrapes()["linear", "0.5"], limits, np.random.default_rng(1))
    assert "itl_objective_out_of_reach" in found.flags


def test_one_impossible_window_does_not_spoil_the_fit():
    # a page may say anything, 1e300 s between tokens too; least squares of that do not converge
    points = scrapes()["linear", "0.5"]
    lie = replace(points[0], batch=1e299, itl_s=1e297, decode_events=1e300, prompt_tokens=10**400)
    limits = EngineLimits(256, None, 600_000)
    honest = estimate_capacity(points[1:], limits, np.random.default_rng(1))
    found = estimate_capacity([lie, *points[1:]], limits, np.random.default_rng(1))
    assert found.curve == honest.curve
    assert found.requests_per_s == pytest.approx(honest.requests_per_s)
