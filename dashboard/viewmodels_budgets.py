"""Budgets in words: who will run over, when, and what happens then. Pure.

Money is Decimal USD; forecasts are shown to the dollar with their interval. Prevents: a forecast to the
cent, and a budget called enforced on the word of whoever sent it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

from control.budgets import BudgetReport, TenantBudget
from dashboard import words
from dashboard.times import UNKNOWN, Zone, age
from dashboard.viewmodels import Card
from dashboard.words import Tone
from fleet.budgets import Crossing, Doing, Standing
from fleet.limiters import Mode
from fleet.policy import OverBudget
from fleet.spend_forecast import COVERAGE

TONES: dict[Standing, Tone] = {
    Standing.OVER: "act",
    Standing.WILL: "act",
    Standing.LIKELY: "watch",
    Standing.MAY: "watch",
    Standing.WITHIN: "good",
    Standing.UNKNOWN: "unknown",
}
_SIGNS: dict[Tone, str] = {"act": "\u2715", "watch": "!", "good": "\u2713", "unknown": "?", "plain": ""}
_ACTIONS = {
    OverBudget.WARN: "warns",
    OverBudget.DOWNGRADE: "serves as best-effort",
    OverBudget.REFUSE: "refuses with 429",
}
#: Words of a gateway that need somebody to look, worst first.
_AHEAD = (Standing.OVER, Standing.WILL, Standing.LIKELY, Standing.MAY)
_OF_MANY = {
    Doing.ACTS: "act",
    Doing.WARNS: "warn",
    Doing.COUNTS: "only count",
    Doing.LATE: "do not know yet",
}
_FAULTS = (Doing.CANNOT, Doing.LATE, Doing.UNKNOWN, Doing.OFF)
METHOD = (
    "Spent is what the controller holds against the budget: this month's lines without adjustments. The "
    "forecast is from complete days and their weekdays; its interval is for "
    f"{100 * COVERAGE:.0f} % of months. Alerts open at "
)


def headline(report: BudgetReport) -> tuple[Tone, str]:
    """Return who will run over and when, in one sentence."""
    if not report.budgets:
        return "plain", "No tenant has a budget: set monthly_budget_usd on the Policy page"
    said = [_sentence(b) for b in report.budgets if b.state.standing in _AHEAD]
    tone = TONES[report.budgets[0].state.standing]
    if said:
        more = f", and {len(said) - 3} more" if len(said) > 3 else ""
        return tone, words.plain(". ".join(said[:3]) + more)
    if report.counted_to is None:
        return "plain", "Spend is not counted yet: nobody can say who is over a budget"
    unknown = sum(b.state.standing is Standing.UNKNOWN for b in report.budgets)
    if unknown:
        return (
            "plain",
            f"Nobody is over a budget; of {words.plural(unknown, 'tenant')} it is too early to say",
        )
    return "good", "Every tenant stays within its budget, at the high end of its forecast too"


def _sentence(budget: TenantBudget) -> str:
    state = budget.state
    is_spent = state.standing is Standing.OVER
    when = when_text(state.crossing, is_spent=is_spent)
    verb = "is likely to run over" if state.standing is Standing.LIKELY else state.standing
    what = f"is over its budget {when}" if is_spent else f"{verb} its budget, {when}"
    return f"{state.tenant} {what}; then: {then_text(budget)}"


def cards(report: BudgetReport, now: datetime, zone: Zone) -> list[Card]:
    """Return how many tenants stand how, and how old the spend is."""
    count = Counter(b.state.standing for b in report.budgets)
    over, coming = count[Standing.OVER], count[Standing.WILL] + count[Standing.LIKELY]
    old = None if report.counted_to is None else (now - report.counted_to).total_seconds()
    if not report.budgets:
        labels = ("Over budget", "Will or likely to", "Gateways in doubt")
        over_, coming_, doubt = (Card(label, UNKNOWN, "no budget is set", "plain") for label in labels)
        return [over_, coming_, _counted_card(old, report, zone), doubt]
    return [
        _over_card(over, is_counted=report.counted_to is not None),
        Card(
            "Will or likely to",
            words.count(coming),
            "before the month ends" if coming else "none known" if count[Standing.UNKNOWN] else "none",
            "watch" if coming else "unknown" if count[Standing.UNKNOWN] else "good",
            f"{count[Standing.MAY]} more may; {count[Standing.UNKNOWN]} too early to say",
        ),
        _counted_card(old, report, zone),
        _doubt_card(report),
    ]


def _doubt_card(report: BudgetReport) -> Card:
    label, note = "Gateways in doubt", f"month {report.month.name}, in {report.month.zone}"
    said = [each for budget in report.budgets for each in budget.gateways]
    faults = [each for each in said if each.doing in _FAULTS]
    if not said:
        return Card(label, UNKNOWN, "no gateway yet", "unknown", note)
    if not faults:
        return Card(label, "0", "all do as they should", "good", note)
    tone: Tone = "act" if any(each.doing is Doing.CANNOT for each in faults) else "watch"
    return Card(label, words.count(len({each.gateway for each in faults})), "look below", tone, note)


def _counted_card(old_s: float | None, report: BudgetReport, zone: Zone) -> Card:
    if old_s is None:
        return Card("Spend counted", UNKNOWN, "nothing yet", "unknown")
    tone: Tone = "watch" if old_s > 600 else "plain"
    return Card("Spend counted", age(old_s), "ago", tone, zone.stamp(report.counted_to))


def _over_card(over: int, *, is_counted: bool) -> Card:
    if not over and not is_counted:
        return Card("Over budget", UNKNOWN, "not counted yet", "unknown")
    return Card("Over budget", words.count(over), "over" if over else "none", "act" if over else "good")


def budget_rows(report: BudgetReport) -> dict[str, list[Any]]:
    """Return every budget, worst first."""
    budgets = report.budgets
    return {
        "tenant": [b.state.tenant for b in budgets],
        "standing": [_standing(b) for b in budgets],
        "part": [
            None if b.state.ratio is None or report.counted_to is None else min(100.0, 100 * b.state.ratio)
            for b in budgets
        ],
        "usd": [f"{_spent(report, b)} of {b.state.limit_usd:,.2f}" for b in budgets],
        "end": [_end(b) for b in budgets],
        "then": [then_text(b) for b in budgets],
    }


def _spent(report: BudgetReport, budget: TenantBudget) -> str:
    return UNKNOWN if report.counted_to is None else f"{budget.state.spent_usd:,.2f}"


def _standing(budget: TenantBudget) -> str:
    state = budget.state
    is_spent = state.standing is Standing.OVER
    when = f", {when_text(state.crossing, is_spent=is_spent)}" if state.standing in _AHEAD else ""
    return f"{_SIGNS[TONES[state.standing]]} {state.standing}{when}"


def _end(budget: TenantBudget) -> str | None:
    ahead = budget.state.forecast
    if ahead is None:
        return None
    return f"{ahead.end.usd:,.0f} ({ahead.end.low:,.0f} to {ahead.end.high:,.0f})"


def when_text(crossing: Crossing, *, is_spent: bool) -> str:
    """Return when: "since 14 Mar", "21 Mar to 28 Mar, likely 24 Mar", "not this month"."""
    if is_spent:
        return "this month" if crossing.day is None else f"since {_day(crossing.day)}"
    if crossing.earliest is None:
        return "not this month"
    if crossing.earliest == crossing.latest:
        return f"on {_day(crossing.earliest)}"
    likely = "" if crossing.day is None else f", likely {_day(crossing.day)}"
    latest = "or not this month" if crossing.latest is None else f"to {_day(crossing.latest)}"
    return f"{_day(crossing.earliest)} {latest}{likely}"


def _day(day: date) -> str:
    return f"{day.day} {day:%b}"


def then_text(budget: TenantBudget) -> str:
    """Return what happens at 100 %, and how many gateways do it by their own word."""
    if not budget.gateways:
        return f"{_ACTIONS[budget.action]}; no gateway is registered"
    count = Counter(each.doing for each in budget.gateways)
    said = ", ".join(f"{count[doing]} {_does(doing, count[doing])}" for doing in Doing if count[doing])
    said = f"{'gateway' if len(budget.gateways) == 1 else 'gateways'}: {said}"
    shadow = {Mode.SHADOW: " in shadow", Mode.OFF: " switched off", Mode.ENFORCE: ""}[budget.mode]
    return f"{_ACTIONS[budget.action]}{shadow} ({said})"


def _does(doing: Doing, count: int) -> str:
    return doing if count == 1 else _OF_MANY.get(doing, doing)


def gateway_rows(budget: TenantBudget) -> dict[str, list[Any]]:
    """Return what each gateway does about one tenant."""
    return {
        "gateway": [each.gateway for each in budget.gateways],
        "does": [f"{_sign(each.doing)} {each.doing}" for each in budget.gateways],
        "why": [each.words for each in budget.gateways],
    }


def _sign(doing: Doing) -> str:
    if doing in (Doing.READY, Doing.ACTS, Doing.WARNS):
        return "\u2713"
    return "\u2715" if doing is Doing.CANNOT else "?" if doing is Doing.UNKNOWN else "!"


def unbudgeted_rows(report: BudgetReport) -> dict[str, list[Any]]:
    """Return tenants that spend without a budget."""
    return {
        "tenant": [tenant for tenant, _ in report.unbudgeted],
        "usd": [f"{usd:,.2f}" for _, usd in report.unbudgeted],
    }


def method_text(report: BudgetReport) -> str:
    """Return how the figures are made and where alerts open."""
    marks = [f"{100 * ratio:g} %" for ratio in report.thresholds]
    return METHOD + (", ".join(marks) + "." if marks else "no part: all budget rules are off.")


def no_forecast_text(budget: TenantBudget) -> str:
    """Return why there is no forecast; nothing where there is one."""
    return words.plain(budget.state.why_unknown)


def names(report: BudgetReport) -> list[str]:
    """Return tenants with a budget, worst first."""
    return [budget.state.tenant for budget in report.budgets]


def one(budgets: Sequence[TenantBudget], tenant: str) -> TenantBudget:
    """Return the budget of `tenant`, which is one of them."""
    return next(budget for budget in budgets if budget.state.tenant == tenant)
