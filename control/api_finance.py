"""The calls of the API about money beside files: days and ranges, reconciliation, budgets.

Amounts are text, so that nobody's float rounds them. Prevents: a script whose days sum to another total
than the page's.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from control import budgets, reconciliations
from control.api_calls import Asked, Call
from control.day_spend import as_json, asked_days
from control.tokens import Scope

call = partial(Call, reads=Scope.SPEND_READ)


def _days(asked: Asked) -> dict[str, Any]:
    query = asked.query
    found = asked_days(
        asked.session,
        month=query.get("month"),
        first=query.get("from"),
        last=query.get("to"),
        cut=query.get("zone"),
        zone=asked.zone,
        now=asked.now,
    )
    return as_json(found, asked.zone)


def _reconciliation(asked: Asked) -> dict[str, Any]:
    report = reconciliations.reconciliation(
        asked.session, asked.path["month"], zone=asked.zone, now=asked.now
    )
    return reconciliations.as_json(report)


def _budgets(asked: Asked) -> dict[str, Any]:
    return budgets.as_json(budgets.budget_report(asked.session, zone=asked.zone, now=asked.now))


CALLS: tuple[Call, ...] = (
    call(
        "GET",
        "/api/v1/spend/days",
        "What each day of a month or range cost; the days sum to the total",
        _days,
        query={
            "month": "As 2026-11; without it and without a range, the running month",
            "from": "First day of a range, as 2026-11-01, in the declared time zone",
            "to": "Last day of the range, included",
            "zone": "Cut days at this zone's midnight; the total stays the same",
        },
    ),
    call(
        "GET",
        "/api/v1/reconciliation/{month}",
        "A month's invoices beside the books: hours, price and what is unexplained, by class and day",
        _reconciliation,
    ),
    call(
        "GET",
        "/api/v1/budgets",
        "Tenants' budgets of the running month: spent, forecast, and what each gateway does",
        _budgets,
    ),
)
