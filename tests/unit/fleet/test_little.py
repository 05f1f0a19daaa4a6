"""Little's law where it is a theorem, its tail form, and the trend test, against a reference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import InvalidInput, NotMeasured
from fleet.little import (
    age_residual,
    age_share,
    concurrency_budget,
    infinite_server_quantile,
    log_trend,
    lognormal_quantile,
    lognormal_tail_mean,
    tail_occupancy,
)

LITTLE = json.loads(
    (Path(__file__).parents[2] / "data" / "queueing" / "little_and_alert_vectors.json").read_text()
)["little"]
INFINITE = LITTLE["infinite_server"]


@pytest.mark.parametrize("case", LITTLE["identity"], ids=lambda c: str(c["window"]))
def test_places_occupied_are_sojourns_plus_growth_of_age(case):
    residual = age_residual(
        case["integral_L"], case["sum_sojourn_completed"], case["age_start"], case["age_end"]
    )
    assert residual == pytest.approx(0, abs=1e-5)
    # the same in means: L - X W is the growth of age per second
    start, end = case["window"]
    grown = (case["age_end"] - case["age_start"]) / (end - start)
    share = age_share(case["L_mean"], case["X"], case["W_mean_completed"])
    assert share == pytest.approx(grown / case["L_mean"], rel=1e-4)


@pytest.mark.parametrize("row", INFINITE["rows"], ids=lambda r: f"q{r['q']}")
def test_percentiles_of_time_are_not_percentiles_of_places(row):
    lam, mean, cv = INFINITE["lam"], INFINITE["mean"], INFINITE["cv"]
    w_q = lognormal_quantile(mean, cv, row["q"])
    assert w_q == pytest.approx(row["W_q"], rel=1e-6)
    assert concurrency_budget(lam, w_q) == pytest.approx(row["naive_lambda_W_q"], rel=1e-6)
    assert infinite_server_quantile(lam, mean, row["q"]) == row["true_L_q"]
    tail = lognormal_tail_mean(mean, cv, row["q"])
    assert tail == pytest.approx(row["tail_mean_W"], rel=1e-6)
    assert tail_occupancy(lam, row["q"], tail) == pytest.approx(row["tail_occupancy"], rel=1e-6)


@pytest.mark.parametrize("case", LITTLE["trend"], ids=lambda c: c["name"])
def test_trend_agrees_with_the_reference(case):
    trend = log_trend(case["minutes"], case["p99"])
    # the reference's values are rounded to 6 decimals: a slope between two of them moves by 1e-6 / 2
    assert trend.log_slope_per_min == pytest.approx(case["theil_sen_log_slope_per_min"], abs=5e-7)
    assert trend.doubling_min == pytest.approx(case["doubling_min"], rel=1e-4)
    assert trend.mann_kendall_s == case["mann_kendall_S"]
    assert trend.z == pytest.approx(case["mann_kendall_z"], rel=1e-6)
    assert trend.p_one_sided == pytest.approx(case["p_one_sided"], rel=1e-6)


def test_a_constant_series_has_no_trend_and_no_doubling_time():
    trend = log_trend([0, 1, 2, 3, 4], [2.0] * 5)
    assert (trend.z, trend.p_one_sided, trend.doubling_min) == (0, 0.5, None)


@given(st.lists(st.floats(0.01, 100), min_size=4, max_size=30), st.floats(0.01, 100), st.floats(0.1, 10))
def test_trend_ignores_the_unit_of_values_and_scales_with_that_of_time(values, unit, minute):
    marks = [float(i) for i in range(len(values))]
    one = log_trend(marks, values)
    other = log_trend([m * minute for m in marks], [v * unit for v in values])
    assert other.log_slope_per_min * minute == pytest.approx(one.log_slope_per_min, abs=1e-9)


def test_bad_series_are_refused_and_short_ones_not_measured():
    with pytest.raises(NotMeasured):
        log_trend([0, 1, 2], [1, 2, 3])
    with pytest.raises(InvalidInput):
        log_trend([0, 1, 2, 3], [1, 2, 0, 3])
    with pytest.raises(InvalidInput):
        log_trend([0, 1, 1, 3], [1, 2, 3, 3])
    with pytest.raises(NotMeasured):
        age_share(0, 1, 1)
    with pytest.raises(InvalidInput):
        tail_occupancy(1, 1.5, 1)
    with pytest.raises(InvalidInput):
        infinite_server_quantile(1, 1, 1.0)
