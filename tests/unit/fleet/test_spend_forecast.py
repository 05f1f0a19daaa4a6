"""The forecast of a month's end: exact without noise, honest with it, silent when it is too early."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np
import pytest

from fleet.errors import NotMeasured
from fleet.spend_forecast import COVERAGE, Forecast, forecast

#: Sunday 8 March 2026: a week of complete days lies in March, 23 days are to come with today.
TODAY = date(2026, 3, 8)
YESTERDAY = TODAY - timedelta(days=1)
END = date(2026, 3, 31)
WEEK = (1.2, 1.2, 1.2, 1.2, 1.2, 0.5, 0.5)


def of(history: list[float], spent: float, today_left: float = 1.0) -> Forecast:
    return forecast(history, YESTERDAY, spent=spent, today=TODAY, today_left=today_left, month_end=END)


def test_steady_days_lead_where_they_lead() -> None:
    # 10 USD a day without noise: 7 days spent are 70, 24 more are 240.
    found = of([10.0] * 28, 70.0)
    assert (found.end.low, found.end.usd, found.end.high) == pytest.approx((310, 310, 310))
    assert found.days[0].day == TODAY
    assert found.days[-1].day == END


def test_what_is_left_of_today_is_what_is_still_to_come() -> None:
    # A quarter of today is left: 2.5 USD of it and 23 whole days.
    assert of([10.0] * 28, 77.5, today_left=0.25).end.usd == pytest.approx(77.5 + 2.5 + 230)


def test_weekends_are_forecast_as_weekends() -> None:
    history = [100 * WEEK[(YESTERDAY - timedelta(days=55 - i)).weekday()] for i in range(56)]
    found = of(history, 700.0)
    coming = [TODAY + timedelta(days=n) for n in range(24)]
    truth = 700 + sum(100 * WEEK[day.weekday()] for day in coming)
    assert found.end.usd == pytest.approx(truth, rel=0.01)
    # by day: Sunday today, then Monday
    steps = np.diff([700.0, *(day.usd for day in found.days)])
    assert steps[1] / steps[0] == pytest.approx(1.2 / 0.5, rel=0.15)


def test_a_steady_rise_is_followed_once_it_is_proven() -> None:
    history = [100 + 2.0 * i for i in range(56)]  # 2 USD a day, without noise
    truth = sum(100 + 2.0 * i for i in range(56, 80))
    assert of(history, 0.0).end.usd == pytest.approx(truth, rel=0.02)
    assert of(history[-7:], 0.0).end.usd < truth  # a week proves no trend


@pytest.mark.parametrize("days", [0, 1, 6])
def test_fewer_than_seven_complete_days_are_too_early_to_say(days: int) -> None:
    with pytest.raises(NotMeasured, match="too early to say"):
        of([10.0] * days, 10.0)
    of([10.0] * 7, 10.0)


def test_a_tenant_that_stopped_spends_nothing_more() -> None:
    found = of([0.0] * 10, 50.0)
    assert (found.end.low, found.end.usd, found.end.high) == (50, 50, 50)


def test_the_interval_never_lies_below_what_is_spent_and_widens_with_time() -> None:
    rng = np.random.default_rng(5)
    found = of([float(v) for v in rng.gamma(0.5, 200, 30)], 1_000.0)
    assert all(1_000 <= day.low <= day.usd <= day.high for day in found.days)
    widths = [day.high - day.low for day in found.days]
    assert widths == sorted(widths)


@pytest.mark.parametrize(("days", "neighbours"), [(7, 0.0), (14, 0.5), (28, 0.0), (28, 0.5), (56, 0.5)])
def test_about_four_months_in_five_end_within_the_interval(days: int, neighbours: float) -> None:
    """200 seeded months with weekends, 20 % noise, and days that resemble the day before.

    Nominal 80 %. Not fewer than 70 %: three standard deviations of 200 draws are 8.5 points.
    """
    inside = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        first = YESTERDAY - timedelta(days=days - 1)
        noise, draws = 0.0, list[float]()
        for i in range(days + 24):
            noise = neighbours * noise + rng.normal() * np.sqrt(1 - neighbours**2)
            shape = WEEK[(first + timedelta(days=i)).weekday()]
            draws.append(100 * shape * max(0.0, 1 + 0.2 * noise))
        found = of(draws[:days], 0.0)
        inside += found.end.low <= sum(draws[days:]) <= found.end.high
    assert inside / 200 >= COVERAGE - 0.1
