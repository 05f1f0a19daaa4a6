"""KV pressure: a trend is followed, noise is not, and what is not said stays unknown."""

from __future__ import annotations

import numpy as np
import pytest

from fleet.kv_forecast import KvPoint, kv_forecast


def points(values, **changes) -> list[KvPoint]:
    return [KvPoint(10.0 * i, value, **changes) for i, value in enumerate(values)]


def test_a_rise_of_one_percent_a_round_fills_the_cache_when_the_line_says():
    # 0.60 + 0.01 a 10 s: the median of the last three is 0.88; 0.12 left at 0.06 a minute: 120 s
    found = kv_forecast(points(0.60 + 0.01 * i for i in range(30)))
    assert found is not None
    assert found.growth_per_min == pytest.approx(0.06)
    assert found.exhausted_in_s == pytest.approx(120)
    assert found.forecast_ratio == pytest.approx(0.88 + 0.3)


def test_a_noisy_plateau_is_no_trend():
    # 30 points with sd 0.01 around 0.9: alarms only in the 1 % of windows the test allows
    rng = np.random.default_rng(3)
    runs = [kv_forecast(points(0.9 + rng.normal(0, 0.01, 30))) for _ in range(200)]
    assert sum(run is not None and run.exhausted_in_s is not None for run in runs) <= 8  # 2 expected
    assert all(run is not None and run.forecast_ratio == pytest.approx(0.9, abs=0.15) for run in runs)


def test_a_falling_or_short_history_does_not_fill():
    falling = kv_forecast(points(0.9 - 0.01 * i for i in range(20)))
    assert falling is not None
    assert falling.exhausted_in_s is None
    short = kv_forecast(points([0.5, 0.7]))
    assert short is not None
    assert (short.growth_per_min, short.forecast_ratio, short.exhausted_in_s) == (None, None, None)
    assert kv_forecast([]) is None


def test_oversubscription_is_what_running_and_waiting_want():
    # 40 running hold 0.8: each 0.02; 20 wait: 60 x 0.02 = 1.2 caches; 100,000 x 0.02 = 2,000 tokens each
    found = kv_forecast(points([0.8] * 12, running=40, waiting=20, preemptions=1, capacity_tokens=100_000))
    assert found is not None
    assert found.oversubscription == pytest.approx(1.2)
    assert found.tokens_per_request == pytest.approx(2_000)
    assert found.preemptions == 12
    assert found.recomputed_tokens == pytest.approx(24_000)


def test_with_hardly_anything_running_nobody_knows_what_a_request_holds():
    found = kv_forecast(points([0.1] * 12, running=2, waiting=0))
    assert found is not None
    assert (found.oversubscription, found.tokens_per_request, found.preemptions) == (None, None, None)
