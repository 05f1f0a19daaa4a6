"""Budgets and invoices in words: the sentence a reader takes away is the one the numbers carry."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest

from control.budgets import BudgetReport, TenantBudget
from control.reconciliations import Report
from dashboard import charts_budgets, charts_days
from dashboard import viewmodels_budgets as vm
from dashboard import viewmodels_reconciliation as vr
from dashboard.times import UTC_ZONE
from fleet.budgets import Crossing, Doing, Enforcement, judge
from fleet.day_totals import Day, DayTotals
from fleet.limiters import Mode
from fleet.months import month_of
from fleet.policy import OverBudget
from fleet.reconciliation import InvoiceLine, OurTime, reconcile
from fleet.spend_forecast import Forecast, ForecastDay

MARCH = month_of("2026-03", ZoneInfo("Europe/Berlin"))
#: 20 March, noon in Berlin.
NOW = datetime(2026, 3, 20, 11, tzinfo=UTC)
AHEAD = Forecast(
    tuple(ForecastDay(date(2026, 3, 20 + n), 65 + 10 * n, 62 + 5 * n, 70 + 15 * n) for n in range(12)),
    28,
    (1.0,) * 7,
)
ACTS = Enforcement("gw-1", Doing.ACTS, "refuses with 429 now")
LATE = Enforcement("gw-2", Doing.LATE, "it has not said that it knows")


def budget(
    limit: str, *, ahead: Forecast | None = AHEAD, gateways: tuple[Enforcement, ...] = ()
) -> TenantBudget:
    days = {date(2026, 3, 18): Decimal(40), date(2026, 3, 20): Decimal(20)}
    state = judge(
        "acme", Decimal(limit), Decimal(60), days, ahead, "" if ahead else "too early to say: why"
    )
    return TenantBudget(state, OverBudget.REFUSE, Mode.ENFORCE, days, gateways)


def report(*budgets: TenantBudget) -> BudgetReport:
    return BudgetReport(MARCH, budgets, (), (0.5, 0.8, 1.0), NOW - timedelta(seconds=20), NOW, 3)


@pytest.mark.parametrize(
    ("made", "tone", "said"),
    [
        (budget("50", gateways=(ACTS, LATE)), "act", "acme is over its budget since 20 Mar; then: "
         "refuses with 429 (gateways: 1 acts, 1 does not know yet)"),
        (budget("100"), "act", "acme will run over its budget, 22 Mar to 28 Mar, likely 24 Mar; then: "),
        (budget("150"), "watch", "acme is likely to run over its budget, 26 Mar or not this month"),
        (budget("200"), "watch", "acme may run over its budget, 29 Mar or not this month; then: refuses"),
        (budget("999"), "good", "Every tenant stays within its budget"),
        (budget("999", ahead=None), "plain", "of 1 tenant it is too early to say"),
    ],
)  # fmt: skip
def test_the_headline_says_who_when_and_what_then(made: TenantBudget, tone: str, said: str) -> None:
    found = vm.headline(report(made))
    assert found[0] == tone
    assert said in found[1].replace("\\", "")


def test_no_budget_at_all_says_how_to_set_one() -> None:
    assert "set monthly_budget_usd" in vm.headline(report())[1]


def test_rows_show_what_is_known_and_a_dash_for_the_rest() -> None:
    rows = vm.budget_rows(report(budget("100"), budget("999", ahead=None), budget("0")))
    assert rows["usd"][0] == "60.00 of 100.00"
    assert rows["part"] == [60.0, pytest.approx(6.006, abs=0.001), None]
    assert rows["end"][:2] == ["175 (117 to 235)", None]
    assert rows["standing"][1] == "? too early to say"


def test_cards_count_and_age() -> None:
    over, coming, counted, doubt = vm.cards(report(budget("50", gateways=(ACTS, LATE))), NOW, UTC_ZONE)
    assert (over.value, coming.value, counted.value, doubt.value) == ("1", "0", "20 s", "1")
    assert doubt.tone == "watch"
    nothing = vm.cards(replace(report(), counted_to=None), NOW, UTC_ZONE)[2]
    assert (nothing.value, nothing.tone) == ("\u2014", "unknown")


@pytest.mark.parametrize(
    ("doing", "signs", "said"),
    [
        (Doing.WARNS, "\u2713 warns", "gateways: 2 warn"),  # all that is asked of them: no remark
        (Doing.COUNTS, "! only counts", "gateways: 2 only count"),
        (Doing.ACTS, "\u2713 acts", "gateways: 2 act"),
        (Doing.LATE, "! does not know yet", "gateways: 2 do not know yet"),
    ],
)
def test_what_two_gateways_do_is_said_of_two(doing: Doing, signs: str, said: str) -> None:
    made = budget("50", gateways=(Enforcement("gw-1", doing, ""), Enforcement("gw-2", doing, "")))
    assert vm.gateway_rows(made)["does"] == [signs, signs]
    assert f"({said})" in vm.then_text(made)


def test_a_crossing_on_one_day_is_one_day() -> None:
    day = date(2026, 3, 24)
    assert vm.when_text(Crossing(day, day, day), is_spent=False) == "on 24 Mar"
    assert vm.when_text(Crossing(), is_spent=False) == "not this month"


def test_the_chart_joins_what_is_spent_and_what_is_ahead_at_now() -> None:
    made = charts_budgets.month_path(budget("100"), MARCH, NOW, (0.5, 0.8, 1.0))
    low, high, middle, spent = made.spec["data"]
    here = "2026-03-20 12:00"  # Berlin's clock
    assert (spent["x"][0], spent["y"][0]) == ("2026-03-18 00:00", 0)  # nothing is known of days before
    assert (spent["x"][-1], spent["y"][-1]) == (here, 60)
    assert {line["x"][0] for line in (low, high, middle)} == {here}
    assert middle["x"][1] == "2026-03-21 00:00"  # today's end
    assert middle["x"][-1] == "2026-04-01 00:00"
    assert [shape["y0"] for shape in made.spec["layout"]["shapes"]] == [50, 80, 100]
    without = charts_budgets.month_path(budget("100", ahead=None), MARCH, NOW, ())
    assert [line["name"] for line in without.spec["data"]] == ["spent"]
    assert "No forecast" in without.summary


def test_what_nobody_counted_yet_is_neither_zero_nor_within_the_budget() -> None:
    uncounted = replace(report(budget("999", ahead=None)), counted_to=None)
    made = charts_budgets.month_path(uncounted.budgets[0], MARCH, NOW, (), is_counted=False)
    assert made.spec["data"] == []
    assert "$60" not in made.summary
    assert "Nobody is over" not in vm.headline(uncounted)[1]
    over, coming = vm.cards(uncounted, NOW, UTC_ZONE)[:2]
    assert (over.value, over.tone) == ("\u2014", "unknown")
    assert coming.tone == "unknown"


def day(number: int, usd: str, adjusted: str = "0.00") -> Day:
    return Day(
        date(2026, 3, number), Decimal(usd), Decimal("1.00"), Decimal(adjusted), Decimal(24), Decimal(0)
    )


DAYS = DayTotals("UTC", MARCH.start, MARCH.end, (day(1, "10.00", "-2.50"), day(2, "12.34")))


def test_the_table_of_days_ends_with_their_sum() -> None:
    rows = vr.day_rows(DAYS)
    assert rows["usd"] == ["8.50", "13.34", "21.84"]
    assert rows["adjustments"] == ["-2.50", "0.00", "-2.50"]
    assert rows["day"] == ["Sun 1 Mar", "Mon 2 Mar", "total"]
    drawn = charts_days.days_chart(DAYS)
    assert [bar["name"] for bar in drawn.spec["data"]] == ["nodes", "unused and platform", "adjustments"]
    assert "the dearest is 2026-03-02 with $13.34" in drawn.summary


def invoice(*lines: InvoiceLine) -> Report:
    ours = [OurTime(date(2026, 3, 1), "on_demand", "a", Decimal(24), Decimal("672.00"))]
    month = month_of("2026-03", ZoneInfo("UTC"))
    found, none = reconcile(month, ours, lines), Decimal(0)
    return Report((), found, (), "UTC", Decimal(672), none, none, none, False)


def line(usd: str, hours: str | None = "24", node_class: str | None = "on_demand") -> InvoiceLine:
    return InvoiceLine(
        date(2026, 3, 1), "x", node_class, None if hours is None else Decimal(hours), None, Decimal(usd)
    )


@pytest.mark.parametrize(
    ("lines", "tone", "said"),
    [
        ([line("672")], "good", "agree to the cent"),
        ([line("700", "25")], "watch", "$28.00 more than our books: +28.00 by other hours"),
        ([line("660")], "watch", "$12.00 less than our books"),
        ([line("672"), line("5", None, None)], "act", "$5.00 of the invoice are unexplained"),
        # two that cancel out are still two
        ([line("672"), line("5", None, None), InvoiceLine(None, "y", None, None, None, Decimal(-5))], "act",
         "$10.00 of the invoice are unexplained; in all it is the same as our books"),
        # so are two days of one label, and other hours of two classes
        ([line("672"), line("5", None, None), InvoiceLine(date(2026, 3, 2), "x", None, None, None,
                                                          Decimal(-5))], "act", "$10.00 of the invoice"),
        ([line("700", "25"), line("-28", "-1", "spot")], "watch", "is the same as our books: 0.00 by"),
        ([line("672"), line("5", None, "other")], "good", "to the cent; beside them stand $5.00 declared"),
    ],
)  # fmt: skip
def test_an_invoice_is_never_called_reconciled_over_an_unexplained_difference(
    lines: list[InvoiceLine], tone: str, said: str
) -> None:
    found = vr.headline(invoice(*lines))
    assert found[0] == tone
    assert said in found[1].replace("\\", "")


def test_rows_that_differ_come_with_their_reason_the_unexplained_first() -> None:
    rows = vr.differing_rows(invoice(line("700", "25"), line("5", None, None)))
    assert rows["what"] == ["1 Mar, not assigned: x", "1 Mar, on-demand"]
    assert rows["both"] == ["\u2014 / \u2014", "24.00 / 25.00"]
    assert rows["unexplained"] == ["+5.00", "0.00"]
    assert rows["why"] == ["no node class is assigned to this label", "other hours"]
