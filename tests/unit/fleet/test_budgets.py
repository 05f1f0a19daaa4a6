"""Budgets: who runs over and when, and what a gateway does about it by its own word."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest

from fleet.budgets import Crossing, Doing, GatewayWord, Standing, enforcement, judge, passed
from fleet.limiters import Mode
from fleet.policy import OverBudget
from fleet.spend_forecast import Forecast, ForecastDay

LIMIT = Decimal(100)
#: From 60 USD on the 20th: 10 USD a day in the middle, 5 to 15 in the interval.
AHEAD = Forecast(
    tuple(
        ForecastDay(date(2026, 3, 20 + n), 60 + 10.0 * n, 60 + 5.0 * n, 60 + 15.0 * n) for n in range(12)
    ),
    28,
    (1.0,) * 7,
)


def test_the_day_of_running_over_has_an_earliest_and_a_latest() -> None:
    # 100 is reached after 4 days in the middle, 3 at the earliest (105), 8 at the latest (100).
    state = judge("acme", LIMIT, Decimal(60), {}, AHEAD)
    assert state.standing is Standing.WILL
    assert state.crossing == Crossing(date(2026, 3, 24), date(2026, 3, 23), date(2026, 3, 28))
    assert (state.ratio, state.left_usd) == (0.6, Decimal(40))


@pytest.mark.parametrize(
    ("limit", "standing"),
    [
        ("115", Standing.WILL),  # the low end of the 31st is 115
        ("115.01", Standing.LIKELY),
        ("170", Standing.LIKELY),  # the middle
        ("170.01", Standing.MAY),
        ("225", Standing.MAY),  # the high end
        ("225.01", Standing.WITHIN),
        ("60", Standing.OVER),
    ],
)
def test_how_sure_it_is_that_a_tenant_runs_over(limit: str, standing: Standing) -> None:
    state = judge("acme", Decimal(limit), Decimal(60), {}, AHEAD)
    assert state.standing is standing
    assert (state.crossing.earliest is None) == (standing in (Standing.WITHIN, Standing.OVER))


def test_a_spent_budget_names_the_day_it_was_spent() -> None:
    days = {date(2026, 3, 1): Decimal(40), date(2026, 3, 3): Decimal(60), date(2026, 3, 4): Decimal(9)}
    state = judge("acme", LIMIT, Decimal(109), days, AHEAD)
    assert (state.standing, state.crossing.day) == (Standing.OVER, date(2026, 3, 3))
    assert state.left_usd == Decimal(-9)


def test_without_a_forecast_nothing_is_said_of_the_end() -> None:
    state = judge("acme", LIMIT, Decimal(60), {}, None, "too early to say: 3 complete days")
    assert (state.standing, state.crossing) == (Standing.UNKNOWN, Crossing())


def test_a_budget_of_nothing_is_spent_from_the_start() -> None:
    state = judge("acme", Decimal(0), Decimal(0), {}, None)
    assert (state.standing, state.ratio, passed(state, (0.5, 1.0))) == (Standing.OVER, None, (0.5, 1.0))


def test_thresholds_are_passed_when_they_are_reached() -> None:
    state = judge("acme", LIMIT, Decimal(80), {}, None)
    assert passed(state, (1.0, 0.5, 0.8)) == (0.5, 0.8)


FRESH = GatewayWord("gw-1", 1.0, True, 4, OverBudget.REFUSE, Mode.ENFORCE, (), False)


@pytest.mark.parametrize(
    ("word", "is_spent", "doing", "words"),
    [
        (FRESH, False, Doing.READY, "at 100 % it refuses with 429"),
        (replace(FRESH, is_told=True), True, Doing.ACTS, "refuses with 429 now"),
        (FRESH, True, Doing.LATE, "has not said that it knows"),
        (replace(FRESH, is_told=None), True, Doing.LATE, "has not said that it knows"),
        (replace(FRESH, action=OverBudget.DOWNGRADE), False, Doing.READY, "serves as best-effort"),
        (replace(FRESH, action=OverBudget.WARN), False, Doing.WARNS, "serves as before"),
        (replace(FRESH, mode=Mode.SHADOW), False, Doing.COUNTS, "in shadow"),
        (replace(FRESH, mode=Mode.OFF), False, Doing.OFF, "limiters.monthly_budget is off"),
        (replace(FRESH, action=None), False, Doing.LATE, "revision 4, which has no such budget"),
        (replace(FRESH, is_fresh=False, age_s=45.0), True, Doing.UNKNOWN, "last heard 45 s ago"),
        (replace(FRESH, is_fresh=False, age_s=None), False, Doing.UNKNOWN, "last heard never"),
        (replace(FRESH, revision=None), False, Doing.UNKNOWN, "last heard"),
        (replace(FRESH, unsupported=("/tenants/*/over_budget",)), True, Doing.CANNOT, "over_budget"),
        (replace(FRESH, unsupported=("/tenants/acme",)), True, Doing.CANNOT, "/tenants/acme"),
        (replace(FRESH, unsupported=("/tenants",)), True, Doing.CANNOT, "/tenants"),
        (replace(FRESH, unsupported=("/tenants/beta/over_budget",)), False, Doing.READY, "refuses"),
        (replace(FRESH, unsupported=("/routing/prefix_affinity", "")), False, Doing.READY, "refuses"),
    ],
)
def test_what_a_gateway_does_is_what_it_said(
    word: GatewayWord, is_spent: bool, doing: Doing, words: str
) -> None:
    found = enforcement("acme", word, is_spent=is_spent)
    assert found.doing is doing
    assert words in found.words
