"""What pages read about alerts: the book of the alerts page, the count of every page, marks on charts.

Prevents: a frame that asks for everything to show one number.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from control import queries_alerts, queries_marks
from control.queries_alerts import AlertBook, AlertCount
from control.queries_marks import Mark
from dashboard.data import QUESTIONS, Reading, ask
from dashboard.deps import Deps


def _book(session: Any, _of: Deps, now: datetime) -> AlertBook:
    return queries_alerts.alert_book(session, now)


def _count(session: Any, _of: Deps, now: datetime) -> AlertCount:
    return queries_alerts.alert_count(session, now)


def _marks(session: Any, _of: Deps, now: datetime, span_s: int, node: str | None) -> list[Mark]:
    return queries_marks.marks(session, now - timedelta(seconds=span_s), now, node=node)


QUESTIONS |= {"alert_book": _book, "alert_count": _count, "marks": _marks}


def book() -> Reading[AlertBook]:
    """Alerts, silences, rules, webhooks and notices now."""
    return ask("alert_book")


def count() -> Reading[AlertCount]:
    """How many alerts are unresolved."""
    return ask("alert_count")


def marks(span_s: int, node: str | None = None) -> Reading[list[Mark]]:
    """What happened in the last `span_s` seconds, of one node or of the fleet."""
    return ask("marks", span_s, node)
