"""A burst is ten times the usual for 90 seconds: not one scrape, not ten times nothing."""

from __future__ import annotations

import numpy as np
import pytest

from fleet.bursts import MIN_BASELINE_RATE, Counted, burst


def rounds(rates: list[tuple[float, float]], period_s: float = 10.0) -> list[Counted]:
    """Return rounds of (rate, for how many seconds), one after the other."""
    found: list[Counted] = []
    at_s = 0.0
    for rate, span_s in rates:
        for _ in range(round(span_s / period_s)):
            at_s += period_s
            found.append(Counted(at_s, round(rate * period_s), period_s))
    return found


def ratio(rates: list[tuple[float, float]], period_s: float = 10.0) -> float | None:
    found = rounds(rates, period_s)
    seen = burst(found, found[-1].at_s, period_s=period_s)
    return None if seen is None else seen.ratio


def test_ten_times_the_usual_for_90_seconds():
    assert ratio([(4, 1800), (40, 90)]) == pytest.approx(10)
    assert ratio([(4, 1800)]) == pytest.approx(1)


def test_one_fast_half_minute_is_no_burst():
    # 120 req/s for 30 s is a mean of 42.7 over 90 s; the weakest third bounds it at twice 4
    assert ratio([(4, 1800), (120, 30), (4, 60)]) == pytest.approx(2)


def test_a_long_burst_does_not_become_its_own_baseline_before_half_an_hour():
    assert ratio([(4, 3600), (40, 1500)]) == pytest.approx(10)


def test_ten_times_nothing_is_nothing():
    assert ratio([(0, 1800), (0.2, 90)]) == pytest.approx(0.2 / MIN_BASELINE_RATE)
    assert ratio([(0, 1800)]) == 0


def test_without_a_baseline_or_with_a_gap_nobody_knows():
    assert ratio([(4, 500), (40, 90)]) is None
    found = rounds([(4, 1800), (40, 90)])
    assert burst(found, found[-1].at_s + 60) is None
    assert burst([], 0.0) is None


@pytest.mark.parametrize("period_s", [1.0, 5.0, 30.0])
def test_the_period_of_rounds_does_not_matter(period_s):
    assert ratio([(4, 1800), (40, 90)], period_s) == pytest.approx(10)


def test_poisson_noise_of_a_steady_hour_is_far_from_ten_times():
    # 1 req/s: 90 arrivals have sd 9.5, so 3 in 10,000 hours pass 1.4 times
    rng = np.random.default_rng(5)
    for _ in range(50):
        found = [Counted(10.0 * (i + 1), int(rng.poisson(10)), 10.0) for i in range(360)]
        seen = burst(found, 3600.0)
        assert seen is not None
        assert seen.ratio < 2
