"""Little's law by stage and at the tail, against requests followed one by one."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import pytest

from fleet.errors import InvalidInput, NotMeasured
from fleet.readings import Histogram
from fleet.stages import fifo_queue_quantile, stage, tail_mean, tail_rows

EDGES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)


def histogram(values, edges=EDGES) -> Histogram:
    counts = [0] * (len(edges) + 1)
    for value in values:
        counts[bisect_left(edges, value)] += 1
    return Histogram(edges, tuple(counts), float(sum(values)))


def test_what_the_finished_do_not_explain_is_growing_old():
    # 5/s leave after 6 s: 30 of 40 places; 10 places of age a second
    found = stage("decode", held=40.0, left=300, time_sum_s=1800.0, length_s=60.0)
    assert (found.left_rate, found.time_mean_s, found.explained) == (5.0, 6.0, 30.0)
    assert found.residual == pytest.approx(10)
    assert found.age_share == pytest.approx(0.25)


def test_the_residual_of_followed_requests_is_the_growth_of_their_ages():
    # 500 requests over 120 s, each of its own length; the window is 30..90 s
    rng = np.random.default_rng(9)
    starts, times = rng.uniform(0, 120, 500), rng.exponential(8, 500)
    ends, (a, b) = starts + times, (30.0, 90.0)
    inside_s = np.clip(np.minimum(ends, b) - np.maximum(starts, a), 0, None).sum()
    done = (ends > a) & (ends <= b)
    ages = [float((at - starts[(starts <= at) & (ends > at)]).sum()) for at in (a, b)]
    found = stage(
        "all", held=inside_s / 60, left=int(done.sum()), time_sum_s=float(times[done].sum()), length_s=60.0
    )
    assert found.residual == pytest.approx((ages[1] - ages[0]) / 60, abs=1e-9)


def test_unknown_parts_stay_unknown_and_an_empty_stage_holds_nothing():
    assert stage("x", held=None, left=3, time_sum_s=1.0, length_s=10.0).residual is None
    assert stage("x", held=2.0, left=3, time_sum_s=None, length_s=10.0).explained is None
    idle = stage("x", held=0.0, left=0, time_sum_s=0.0, length_s=10.0)
    assert (idle.explained, idle.residual, idle.age_share) == (0.0, 0.0, None)
    with pytest.raises(NotMeasured):
        stage("x", held=0.0, left=0, time_sum_s=0.0, length_s=0.0)


@pytest.mark.parametrize("q", [0.0, 0.5, 0.9, 0.99])
def test_the_mean_of_the_slowest_lies_between_its_bounds(q):
    rng = np.random.default_rng(4)
    for _ in range(20):
        values = np.sort(rng.lognormal(0, 1.2, 400))
        found = tail_mean(histogram(values), q)
        slowest = values[round(400 * q) :]
        assert found is not None
        assert found.low <= slowest.mean() + 1e-9
        assert slowest.mean() <= found.high + 1e-9


def test_at_q_0_the_tail_is_everything_and_its_mean_is_exact():
    found = tail_mean(histogram([0.3, 0.4, 7.0]), 0.0)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((7.7 / 3, 7.7 / 3))
    assert tail_mean(Histogram((1.0,), (0, 0), 0.0), 0.5) is None
    with pytest.raises(InvalidInput):
        tail_mean(histogram([1.0]), 1.0)


def test_above_the_last_bound_only_the_sum_bounds_the_slowest():
    # 90 in (0, 1], 10 above; the sum says that those above hold between 110 - 90 and 110 seconds
    with_sum = tail_mean(Histogram((1.0,), (90, 10), 110.0), 0.9)
    assert with_sum is not None
    assert (with_sum.low, with_sum.high) == pytest.approx((2.0, 11.0))
    without = tail_mean(Histogram((1.0,), (90, 10), None), 0.9)
    assert without is not None
    assert (without.low, without.high) == (1.0, float("inf"))


def test_the_slowest_hold_a_part_of_the_places_never_a_percentile_of_them():
    # exponential times of mean 10 s at 12/s: the slowest 1 % hold 12 x 0.01 x 10 (ln 100 + 1) = 6.7 of 120
    rng = np.random.default_rng(8)
    edges = tuple(0.5 * 1.2**i for i in range(35))
    rows = tail_rows(histogram(rng.exponential(10, 7_200), edges), 600.0, (0.99,))
    truth = 12 * 0.01 * 10 * (np.log(100) + 1)
    assert rows[0].tail_held.low <= truth * 1.1
    assert truth * 0.9 <= rows[0].tail_held.high
    # the budget is lambda W_p: 12 x 10 ln 100 = 553 places, eight times what the slowest hold
    assert rows[0].budget.low <= 12 * 10 * np.log(100) * 1.1
    assert 12 * 10 * np.log(100) * 0.9 <= rows[0].budget.high
    share = rows[0].tail_share
    assert share is not None
    assert share.low <= 6.7 / 120 * 1.1
    assert share.high <= 0.1
    assert tail_rows(Histogram((1.0,), (0, 0), 0.0), 60.0) == ()


def test_a_fifo_queue_has_the_law_of_poisson_arrivals_during_a_wait():
    # everybody waits within (1.999, 2] s at 10/s: N is Poisson(20), whose p99 is 31 (P(N<=30) = 0.9865)
    found = fifo_queue_quantile(Histogram((1.999, 2.0), (0, 600, 0), 1200.0), 60.0, 0.99)
    assert found is not None
    assert found[0] <= 31 <= found[1]
    assert found[1] - found[0] <= 1
    assert fifo_queue_quantile(Histogram((1.0,), (0, 100), 1e3), 60.0, 0.99) is None  # above the last bound
    assert fifo_queue_quantile(Histogram((1.0,), (0, 0), 0.0), 60.0, 0.99) is None
