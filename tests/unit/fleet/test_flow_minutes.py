"""Rounds become disjoint minutes: what is covered counts, what is not stays unknown."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.equilibrium import Minute
from fleet.flow_minutes import FlowMinutes, FlowSlice, StageCount, flow_minute, width_s
from fleet.readings import Histogram
from fleet.slo_windows import GoodCount

EDGES = (1.0, 2.0, 4.0)


def slice_(at_s: float, **changes) -> FlowSlice:
    known = {
        "arrivals": 20,
        "departures": 20,
        "inside": 40.0,
        "time": Histogram(EDGES, (0, 20, 0, 0), 40.0),
        "good": GoodCount(20, 19, 19),
    }
    return FlowSlice(at_s, changes.pop("length_s", 10.0), **(known | changes))


def closed_by(slices: list[FlowSlice], period_s: float = 10.0) -> list:
    minutes = FlowMinutes(period_s)
    return [minute for one in slices if (minute := minutes.add(one)) is not None]


def test_a_round_that_ends_on_the_mark_belongs_to_the_minute_it_ends():
    found = closed_by([slice_(10.0 * n) for n in range(1, 14)])
    assert [m.ended_at_s for m in found] == [60.0, 120.0]
    assert [m.minute.arrivals for m in found] == [120, 120]
    assert [m.covered_s for m in found] == [60.0, 60.0]


def test_arrivals_count_only_with_their_departures():
    # two rounds do not know departures: 4 x 20 on both sides, over 40 s
    slices = [slice_(10.0 * n, departures=None if n <= 2 else 20) for n in range(1, 7)]
    found = flow_minute(slices, 60.0, 60.0)
    assert (found.minute.arrivals, found.minute.departures, found.minute.length_s) == (80, 80, 40.0)


def test_less_than_half_a_minute_is_unknown():
    found = flow_minute([slice_(10.0), slice_(20.0)], 60.0, 60.0)
    assert (found.minute.arrivals, found.minute.mean_in_system) == (None, None)


def test_places_are_averaged_between_looks():
    # 0 at the start, 60 at the end, a straight line: 30 on average
    slices = [slice_(10.0 * n, inside=10.0 * n) for n in range(1, 7)]
    found = flow_minute(slices, 60.0, 60.0, before=slice_(0.0, inside=0.0))
    assert found.minute.mean_in_system == pytest.approx(30)


def test_places_of_which_a_look_is_missing_are_unknown():
    slices = [slice_(10.0 * n, inside=None if n == 3 else 40.0) for n in range(1, 7)]
    assert flow_minute(slices, 60.0, 60.0).minute.mean_in_system is None


def test_a_gap_ends_the_minute_and_the_time_before_it_is_not_its_start():
    minutes = FlowMinutes(10.0)
    for n in range(1, 7):
        minutes.add(slice_(10.0 * n, inside=100.0))
    minutes.add(slice_(610.0, inside=0.0))
    for n in range(62, 68):
        found = minutes.add(slice_(10.0 * n, inside=0.0))
    assert found is not None
    assert found.minute.mean_in_system == 0.0


def test_a_slice_that_is_not_newer_changes_nothing():
    minutes = FlowMinutes(10.0)
    minutes.add(slice_(10.0))
    minutes.add(slice_(10.0))
    minutes.add(slice_(5.0))
    found = minutes.add(slice_(70.0))
    assert found is not None
    assert found.minute.arrivals is None  # one round of six
    assert found.covered_s == 10.0


def test_a_minute_that_was_kept_already_is_not_made_again():
    # a controller with rounds of a minute goes on after one with rounds of ten seconds: two-minute marks
    minutes = FlowMinutes(60.0)
    minutes.minutes.append(flow_minute([slice_(10.0 * n) for n in range(7, 13)], 120.0, 60.0))
    for at_s in (120.0, 180.0, 240.0, 300.0):
        minutes.add(slice_(at_s, length_s=60.0))
    assert [m.minute.at_min for m in minutes.minutes] == [2.0, 4.0]
    assert minutes.minutes[-1].covered_s == 120.0


def test_minutes_with_a_gap_between_them_are_not_successive():
    minutes = FlowMinutes(10.0)
    for n in [*range(1, 13), *range(61, 68)]:  # two minutes, eight without a round, one more
        minutes.add(slice_(10.0 * n))
    assert [m.arrivals for m in minutes.unbroken(670.0, 3600.0)] == [120, 120, None, 120]
    # the newest ended at 660 s: it is the present at 670 s, and ten minutes later it is not
    assert minutes.unbroken(670.0, 3600.0)[-1].at_min == 11.0
    assert minutes.unbroken(1260.0, 3600.0)[-1] == Minute(19.0)
    assert FlowMinutes(10.0).unbroken(670.0, 3600.0) == []


def test_long_rounds_make_long_minutes():
    assert (width_s(10.0), width_s(30.0), width_s(120.0)) == (60.0, 60.0, 240.0)
    found = closed_by([FlowSlice(120.0 * n, 120.0, arrivals=5, departures=5) for n in range(1, 6)], 120.0)
    assert [m.minute.arrivals for m in found] == [10, 10]


def test_a_quantile_of_hardly_any_requests_is_unknown():
    few = Histogram(EDGES, (0, 1, 0, 0), 1.5)
    assert flow_minute([slice_(60.0, time=few)], 60.0, 60.0).minute.p99_s is None


def test_objectives_count_the_unfinished_minute_too():
    minutes = FlowMinutes(10.0)
    for n in range(1, 10):
        minutes.add(slice_(10.0 * n))
    assert minutes.good(90.0, 3600.0) == GoodCount(180, 171, 171)
    assert minutes.good(90.0, 25.0) == GoodCount(60, 57, 57)  # the rounds of 70, 80 and 90


def test_stages_keep_sums_and_what_one_round_does_not_say():
    slices = [
        slice_(
            10.0 * n, stages={"decode": StageCount(30.0, 20, 60.0), "prefill": StageCount(None, None, None)}
        )
        for n in range(1, 7)
    ]
    stages = {s.name: s for s in flow_minute(slices, 60.0, 60.0).stages}
    assert stages["decode"].explained == pytest.approx(6.0)  # 2/s of 3 s
    assert stages["decode"].held == pytest.approx(30.0)
    assert "prefill" not in stages


@given(st.lists(st.integers(0, 50), min_size=6, max_size=90), st.integers(0, 5))
def test_no_request_is_counted_twice_or_lost(arrivals, skipped):
    slices = [
        slice_(10.0 * (n + 1 + skipped), arrivals=count, departures=count)
        for n, count in enumerate(arrivals)
    ]
    minutes = FlowMinutes(10.0)
    found = [m for one in slices if (m := minutes.add(one)) is not None]
    last = FlowSlice(slices[-1].at_s + 60.0, 10.0)
    last_minute = minutes.add(last)
    assert last_minute is not None
    found.append(last_minute)
    counted = sum(m.minute.arrivals or 0 for m in found)
    short = [m for m in found if m.minute.arrivals is None]
    assert len({m.ended_at_s for m in found}) == len(found)
    if not short:
        assert counted == sum(arrivals)
    assert all(np.diff([m.ended_at_s for m in found]) >= 60.0)
