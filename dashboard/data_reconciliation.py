"""What the Spend page reads beside lines: days of a month, and its invoices beside the books.

Prevents: days and differences that a page adds up in its own way.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from control import day_spend, invoices
from control.reconciliations import Report, reconciliation
from dashboard.data import QUESTIONS, Reading, ask
from dashboard.deps import Deps
from fleet.day_totals import DayTotals
from fleet.errors import NotFound
from fleet.invoice_columns import FileMapping


def _month_days(session: Any, of: Deps, now: datetime, month: str) -> DayTotals:
    return day_spend.month_days(session, month, zone=of.zone, now=now)


def _reconciliation(session: Any, of: Deps, now: datetime, month: str) -> Report | None:
    try:
        return reconciliation(session, month, zone=of.zone, now=now)
    except NotFound:  # no invoice was imported
        return None


def _mapping(session: Any, _of: Deps, _now: datetime, provider: str) -> FileMapping:
    return invoices.saved_mapping(session, provider)


QUESTIONS["month_days"] = _month_days
QUESTIONS["reconciliation"] = _reconciliation
QUESTIONS["invoice_mapping"] = _mapping


def month_days(month: str) -> Reading[DayTotals]:
    """What each day of a month cost, in finance's zone."""
    return ask("month_days", month)


def month_reconciliation(month: str) -> Reading[Report | None]:
    """A month's invoices beside the books; None if none was imported."""
    return ask("reconciliation", month)


def saved_mapping(provider: str) -> Reading[FileMapping]:
    """How a provider's file was read last."""
    return ask("invoice_mapping", provider, is_brief=True)
