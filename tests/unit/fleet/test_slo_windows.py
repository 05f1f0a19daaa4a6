"""Burn rates in two windows: counts add up, few requests say nothing, the lower window decides."""

from __future__ import annotations

import pytest

from fleet.readings import Histogram
from fleet.slo import Objective, Share
from fleet.slo_windows import PAIRS, GoodCount, burn, good_count, total

P95 = Objective(target=0.95)


def test_counts_of_parts_add_up_and_lost_requests_were_not_good():
    served = Histogram((0.25, 0.5, 1.0), (60, 35, 4, 1), None)
    one = good_count(P95, served, lost=20)
    assert one == GoodCount(120, 95, 95)
    assert total([one, one, GoodCount()]) == GoodCount(240, 190, 190)
    assert good_count(P95, None, lost=7) == GoodCount(7, 0, 0)
    assert GoodCount().share is None
    # a threshold inside a bucket: 60 surely, 95 at most
    assert good_count(Objective(threshold=0.4), served, lost=0) == GoodCount(100, 60, 95)


def test_a_blip_that_is_over_does_not_burn_and_neither_does_one_that_just_began():
    # 72 % bad of 5 % allowed: 14.4 times
    bad, fine = GoodCount(1_000, 280, 280), GoodCount(1_000, 1_000, 1_000)
    assert burn(P95, bad, bad).sure == pytest.approx(14.4)
    assert burn(P95, bad, fine).sure == pytest.approx(0)
    assert burn(P95, fine, bad).sure == pytest.approx(0)


def test_few_requests_say_nothing():
    assert burn(P95, GoodCount(99, 0, 0), GoodCount(99, 0, 0)).sure is None
    assert burn(P95, GoodCount(1_000, 900, 900), GoodCount()).sure is None
    assert burn(P95, GoodCount(), GoodCount()).sure is None


def test_what_the_buckets_leave_open_does_not_raise():
    open_ = burn(P95, GoodCount(1_000, 500, 990), GoodCount(1_000, 500, 990))
    assert open_.long is not None
    assert (open_.long.low, open_.long.high) == pytest.approx((0.2, 10.0))
    assert open_.sure == pytest.approx(0.2)


def test_the_pairs_spend_a_month_as_the_workbook_says():
    # 14.4 for an hour is 2 % of 30 days, 6 for six hours is 5 %
    spent = {name: rate * long_s / (30 * 86_400) for name, (long_s, _, rate) in PAIRS.items()}
    assert spent == pytest.approx({"fast": 0.02, "slow": 0.05})
    assert Share(0.9, 0.9).is_exact
