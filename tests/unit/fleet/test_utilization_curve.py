"""The distribution of rho over time, with how much of the time is known."""

from __future__ import annotations

import pytest

from fleet.utilization_curve import utilization_curve


def test_a_day_mostly_idle_with_a_bad_hour():
    # of 100 rounds 80 at 0.28, 20 at 1.1: p50 0.28, p90 1.1, a fifth above the knee
    found = utilization_curve([0.28] * 80 + [1.1] * 20)
    assert found is not None
    assert (found.p10, found.p50, found.p90) == pytest.approx((0.28, 0.28, 1.1))
    assert found.above_knee == pytest.approx(0.2)
    assert found.is_mostly_idle is True
    assert [share for share, _ in found.points][-1] == 1.0


def test_unknown_rounds_are_no_part_of_the_curve_and_lower_the_coverage():
    found = utilization_curve([0.9, None, None, None])
    assert found is not None
    assert found.p50 == 0.9
    assert found.coverage == 0.25
    assert found.is_mostly_idle is None
    assert utilization_curve([None]) is None
    assert utilization_curve([]) is None


def test_missing_rounds_count_against_the_coverage():
    found = utilization_curve([0.1] * 10, expected=100)
    assert found is not None
    assert found.coverage == pytest.approx(0.1)
