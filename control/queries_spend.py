"""What a month cost: node time at its prices, allocated to tenant, tier and model; closed months as closed.

Money is `Decimal` USD. A month is one of the declared time zone (`RHODECK_FINANCE_TIMEZONE`). Prevents:
totals by day, tenant and month that disagree because they were computed apart: there is one way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control import adjustments, month_inputs
from control.closed_months import ClosedMonth, closed_months, require_zone, stored_body, stored_spend
from control.exports import Export, closed_csv, spend_csv
from control.month_inputs import Basics
from control.tables import MonthClosingRow, NodeQuarterRow
from fleet.months import Month, month_at, month_of
from fleet.spend import MonthSpend, MonthState, subtotals

SETTLED_AFTER = timedelta(hours=1)  # gateways deliver usage within seconds; later data is rare


@dataclass(frozen=True, slots=True)
class MonthName:
    """A month that has data, newest first in lists."""

    name: str
    is_current: bool


@dataclass(frozen=True, slots=True)
class OpenMonth:
    """A month that is not closed, with what its lines were made of: read once."""

    spend: MonthSpend
    basics: Basics
    carried: Mapping[str, Basics]  # closed months whose late node time the adjustments account for


def month_spend(session: Session, name: str, *, zone: ZoneInfo, now: datetime) -> MonthSpend:
    """Return the spend of month `name` ("2026-11") in `zone`; of a closed month what was closed.

    The oldest open month carries the adjustments of closed ones. Raises InvalidInput for another name,
    Conflict if a month was closed in another zone.
    """
    require_zone(session, zone)
    month_of(name, zone)
    for found in closed_months(session):
        if found.name == name:
            return stored_spend(session, found)
    return open_month(session, name, zone=zone, now=now).spend


def open_month(session: Session, name: str, *, zone: ZoneInfo, now: datetime) -> OpenMonth:
    """Return month `name`, which is not closed, with what it is made of. Raises as `month_spend`."""
    month = month_of(name, zone)
    closed = closed_months(session)
    base = month_inputs.basics(session, month, now)
    spend = _spend(session, month, base, now)
    carried: Mapping[str, Basics] = {}
    if closed and next_month(closed[0], zone).name == name:
        late = adjustments.to_carry(session)
        spend, carried = with_adjustments(spend, late), late.carried
    return OpenMonth(replace(spend, state=_state(session, month, now)), base, carried)


def month_file(session: Session, name: str, *, zone: ZoneInfo, now: datetime) -> Export:
    """Return the month's canonical file; of a closed month the very bytes that were signed.

    Raises as `month_spend` and `spend_csv` do.
    """
    spend = month_spend(session, name, zone=zone, now=now)
    if spend.state == "closed":
        return closed_csv(spend, stored_body(session, name), now)
    return spend_csv(spend, now)


def next_month(closed: ClosedMonth, zone: ZoneInfo) -> Month:
    """Return the month after a closed one: the next that can be closed."""
    return month_at(closed.month.end, zone)


def with_adjustments(spend: MonthSpend, late: adjustments.Pending) -> MonthSpend:
    """Return `spend` with adjustment lines after its own, and late node time that has no price yet."""
    return replace(
        spend,
        lines=(*spend.lines, *late.lines),
        total_usd=spend.total_usd + sum((line.amount_usd for line in late.lines), Decimal("0.00")),
        unpriced_node_hours=spend.unpriced_node_hours + late.unpriced_node_hours,
    )


def first_observed(session: Session) -> datetime | None:
    """Return the first quarter-hour with observed node time."""
    return session.scalar(select(func.min(NodeQuarterRow.quarter)))


def months_with_data(session: Session, *, zone: ZoneInfo, now: datetime) -> list[MonthName]:
    """Return the months from the first observed node time to now, newest first; the current one always."""
    first = first_observed(session)
    current = month_at(now, zone)
    names = [MonthName(current.name, True)]
    at = current
    while first is not None and first < at.start:
        at = month_at(at.start - timedelta(seconds=1), zone)
        names.append(MonthName(at.name, False))
    return names


def spend_by_tenant(session: Session, now: datetime, *, zone: ZoneInfo) -> Mapping[str, Decimal]:
    """Return this month's spend so far by tenant, USD. Tenants without use are absent.

    Without adjustments of earlier months: a budget is for this month's use.
    """
    month = month_at(now, zone)
    spend = _spend(session, month, month_inputs.basics(session, month, now), now)
    return {tenant: amount for (tenant,), amount in subtotals(spend.lines, "tenant").items() if tenant}


def _spend(session: Session, month: Month, base: Basics, now: datetime) -> MonthSpend:
    use = month_inputs.use(session, month, base.rule)
    return base.spend(month, use, is_estimated=now < month.end + SETTLED_AFTER)


def _state(session: Session, month: Month, now: datetime) -> MonthState:
    first = first_observed(session)
    if month.is_over(now) and (first is None or first >= month.end):
        return "not recorded"
    return "open" if session.get(MonthClosingRow, month.name) is None else "closing"
