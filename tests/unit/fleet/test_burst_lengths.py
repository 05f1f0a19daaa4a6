"""Lengths of bursts against traffic whose bursts are known."""

from __future__ import annotations

import numpy as np
import pytest

from fleet.burst_lengths import burst_lengths

HALF_MINUTES = 240  # two hours


def traffic(*bursts: tuple[int, int], rate: float = 30.0, high: float = 120.0) -> list[float | None]:
    """Two hours at `rate` a half minute, with bursts as (first half minute, how many)."""
    found: list[float | None] = [rate] * HALF_MINUTES
    for first, count in bursts:
        found[first : first + count] = [high] * count
    return found


def test_bursts_are_found_with_their_lengths() -> None:
    found = burst_lengths(traffic((60, 3), (120, 12), (200, 30)))
    assert found.lengths_s == (90.0, 360.0, 900.0)
    assert found.cut == 0
    assert found.judged_s == (HALF_MINUTES - 20) * 30  # ten minutes say what is usual


def test_a_minute_is_no_burst_and_twice_is_where_it_begins() -> None:
    assert burst_lengths(traffic((60, 2))).lengths_s == ()
    assert burst_lengths(traffic((60, 8), high=59.0)).lengths_s == ()
    assert burst_lengths(traffic((60, 8), high=60.0)).lengths_s == (240.0,)


def test_half_a_minute_of_calm_does_not_end_a_burst() -> None:
    assert burst_lengths(traffic((60, 4), (65, 4))).lengths_s == (270.0,)
    assert burst_lengths(traffic((60, 4), (66, 4))).lengths_s == (120.0, 120.0)


def test_what_a_gap_or_the_end_cuts_is_counted_not_measured() -> None:
    gap = traffic((60, 10))
    gap[65] = None
    # the first five have no end, the four behind the gap no beginning
    assert (burst_lengths(gap).cut, burst_lengths(gap).lengths_s) == (2, ())
    assert burst_lengths(traffic((230, 10))).cut == 1
    assert burst_lengths(traffic((230, 10))).lengths_s == ()


def test_a_long_burst_is_not_its_own_baseline() -> None:
    # 50 minutes: by its end most of the hour before is the burst itself
    assert burst_lengths(traffic((60, 100))).lengths_s == (3000.0,)


@pytest.mark.parametrize("record", [[], [None] * 100, [5.0] * 19])
def test_too_little_says_nothing(record: list[float | None]) -> None:
    found = burst_lengths(record)
    assert (found.lengths_s, found.judged_s) == ((), 0.0)


def test_steady_poisson_traffic_has_no_bursts() -> None:
    # a half minute of mean 300 is twice its mean at 17 standard deviations
    counts = [float(n) for n in np.random.default_rng(1).poisson(300, 2_880)]
    assert burst_lengths(counts).lengths_s == ()
