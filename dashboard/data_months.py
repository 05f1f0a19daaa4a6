"""What the month-close page reads: months and their states, a checklist, a check of a closed one.

Prevents: a page that judges a month in its own way.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from control import adjustments, month_close
from control.adjustments import LateRecord
from control.late_node_time import LateNodeTime, late_node_time
from control.month_checks import Check, checklist
from control.month_close import MonthView, Verified
from control.queries_cost_rules import CommitmentView, RuleView, commitment_views, rule_views
from control.queries_pools import pool_table
from control.queries_spend import month_spend
from dashboard.data import QUESTIONS, Reading, ask
from dashboard.deps import Deps
from fleet.spend import MonthSpend


@dataclass(frozen=True, slots=True)
class MonthBook:
    """One month: its lines, and what its state asks for."""

    spend: MonthSpend
    checks: tuple[Check, ...]  # while it is open or closing
    verified: Verified | None  # once it is closed
    late: tuple[LateRecord, ...]
    late_time: tuple[LateNodeTime, ...]


@dataclass(frozen=True, slots=True)
class CostRules:
    """What finance declared, and the pools there are."""

    rules: tuple[RuleView, ...]
    commitments: tuple[CommitmentView, ...]
    pools: tuple[str, ...]


def _month_list(session: Any, of: Deps, now: datetime) -> list[MonthView]:
    return month_close.months(session, zone=of.zone, now=now)


def _month_book(session: Any, of: Deps, now: datetime, month: str) -> MonthBook:
    spend = month_spend(session, month, zone=of.zone, now=now)
    if spend.state == "closed":
        verified = month_close.verify(session, month, key_file=of.settings.finance_key)
        late = tuple(adjustments.late_records(session, month))
        return MonthBook(spend, (), verified, late, tuple(late_node_time(session, month)))
    checks = () if spend.state == "not recorded" else checklist(session, spend, of.zone, now)
    return MonthBook(spend, checks, None, (), ())


def _cost_rules(session: Any, _of: Deps, _now: datetime) -> CostRules:
    pools = tuple(pool.name for pool in pool_table(session))
    return CostRules(tuple(rule_views(session)), tuple(commitment_views(session)), pools)


QUESTIONS["cost_rules"] = _cost_rules
QUESTIONS["month_list"] = _month_list
QUESTIONS["month_book"] = _month_book


def month_list() -> Reading[list[MonthView]]:
    """Months since the first observed node time, newest first."""
    return ask("month_list", is_brief=True)


def month_book(month: str) -> Reading[MonthBook]:
    """One month with its checklist or its check."""
    return ask("month_book", month, is_brief=True)


def cost_rules() -> Reading[CostRules]:
    """Rules of allocation and commitments, newest first."""
    return ask("cost_rules", is_brief=True)
