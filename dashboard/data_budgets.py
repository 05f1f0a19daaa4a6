"""What the Budgets page reads: tenants' budgets of the running month, as command and API have them.

Prevents: a page that forecasts in its own way.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from control.budgets import BudgetReport, budget_report
from dashboard.data import QUESTIONS, Reading, ask
from dashboard.deps import Deps


def _budgets(session: Any, of: Deps, now: datetime) -> BudgetReport:
    return budget_report(session, zone=of.zone, now=now)


QUESTIONS["budgets"] = _budgets


def budgets() -> Reading[BudgetReport]:
    """Tenants with a budget, worst first, and those that spend without one."""
    return ask("budgets")
