"""Objectives from histograms: exact at an edge, an honest interval between edges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import InvalidInput, NotMeasured
from fleet.readings import Histogram
from fleet.slo import Objective, Share, attainment, burn_rate, counted_within, goodput

TTFT = Histogram(edges=(0.25, 0.5, 1.0), counts=(60, 35, 4, 1), sum=None)


def test_a_threshold_on_an_edge_is_exact():
    found = attainment(Objective(), TTFT)
    assert found.share == Share(0.95, 0.95)  # 60 + 35 of 100 at or under 0.5 s
    assert found.share.is_exact
    assert found.is_met is True
    assert found.budget_left.low == pytest.approx(0)  # 5 % allowed, 5 % used


def test_a_threshold_inside_a_bucket_is_an_interval_and_may_be_undecided():
    found = attainment(Objective(threshold=0.4), TTFT)
    assert found.share == Share(0.60, 0.95)  # the 35 between 0.25 and 0.5 may lie on either side
    assert found.is_met is None
    assert attainment(Objective(threshold=0.2), TTFT).share == Share(0.0, 0.60)
    assert attainment(Objective(threshold=0.2), TTFT).is_met is False


def test_above_the_last_edge_nobody_knows():
    assert counted_within(TTFT, 5.0) == (99, 100)


def test_refused_and_failed_requests_count_against_the_objective():
    # 95 good of 100 served, 90 refused, 10 failed: 95 of 200
    found = attainment(Objective(), TTFT, refused=90, failed=10)
    assert found.share.low == pytest.approx(0.475)
    assert found.offered == 200
    assert found.is_met is False
    assert found.budget_left.low == pytest.approx(1 - 0.525 / 0.05)


def test_burn_rate_one_spends_the_budget_exactly():
    assert burn_rate(Objective(target=0.99), Share(0.99, 0.99)).low == pytest.approx(1)
    # 14.4 times: 28.8 % of 2 % allowed
    assert burn_rate(Objective(target=0.98), Share(0.712, 0.712)).high == pytest.approx(14.4)


def test_goodput_is_good_requests_a_second():
    assert goodput(Objective(), TTFT, covered_s=50) == Share(1.9, 1.9)
    with pytest.raises(NotMeasured):
        goodput(Objective(), TTFT, covered_s=0)


def test_without_requests_there_is_no_attainment():
    with pytest.raises(NotMeasured):
        attainment(Objective(), Histogram((0.5,), (0, 0), None))


@pytest.mark.parametrize("bad", [{"target": 1.0}, {"target": 0.0}, {"threshold": 0.0}, {"window_s": -1.0}])
def test_an_objective_without_a_budget_or_a_threshold_is_refused(bad):
    with pytest.raises(InvalidInput):
        Objective(**bad)
    with pytest.raises(InvalidInput):
        attainment(Objective(), TTFT, refused=-1)


@given(values=st.lists(st.floats(0.001, 30), min_size=1, max_size=200), threshold=st.floats(0.001, 30))
def test_the_interval_always_contains_the_truth(values, threshold):
    edges = (0.01, 0.1, 0.5, 1.0, 5.0, 10.0)
    counts = [0] * 7
    for value in values:
        counts[sum(value > edge for edge in edges)] += 1
    surely, at_most = counted_within(Histogram(edges, tuple(counts), None), threshold)
    assert surely <= sum(value <= threshold for value in values) <= at_most
