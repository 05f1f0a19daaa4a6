"""Closed months as they were closed: lines, totals, the bytes of the file, and the declared zone.

Nothing here is computed again. USD as `Decimal`. Prevents: a closed month that changes with a price, a
late record or a release, and months cut in two zones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import cast
from zoneinfo import ZoneInfo

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control.tables import MonthCloseRow, MonthLineRow
from fleet.errors import Conflict
from fleet.months import Month
from fleet.spend import LineKind, MonthSpend, SpendLine


@dataclass(frozen=True, slots=True)
class ClosedMonth:
    """What is known of a closed month without its lines and file."""

    name: str
    number: int  # 1 for the one closed first
    month: Month
    method: str
    rows: int
    total_usd: Decimal
    idle_usd: Decimal
    node_hours: Decimal
    sha256: str
    signature: str
    key_id: str
    closed_at: datetime
    closed_by: str
    note: str
    seal_version: int


def closed_months(session: Session) -> list[ClosedMonth]:
    """Every closed month, newest first."""
    c = MonthCloseRow
    rows = session.execute(
        select(
            c.month,
            c.number,
            c.zone,
            c.starts_at,
            c.ends_at,
            c.method,
            c.rows,
            c.total_usd,
            c.idle_usd,
            c.node_hours,
            c.sha256,
            c.signature,
            c.key_id,
            c.closed_at,
            c.closed_by,
            c.note,
            c.seal_version,
        ).order_by(c.number.desc())
    )
    return [
        ClosedMonth(
            r.month,
            r.number,
            Month(r.month, r.zone, r.starts_at, r.ends_at),
            r.method,
            r.rows,
            r.total_usd,
            r.idle_usd,
            r.node_hours,
            r.sha256,
            r.signature,
            r.key_id,
            r.closed_at,
            r.closed_by,
            r.note,
            r.seal_version,
        )
        for r in rows
    ]


def closed_month(session: Session, name: str) -> ClosedMonth | None:
    """Return the closed month `name`, or None."""
    return next((found for found in closed_months(session) if found.name == name), None)


def stored_lines(session: Session, name: str) -> tuple[SpendLine, ...]:
    """Return the lines of a closed month in the order of its file."""
    rows = session.scalars(
        select(MonthLineRow).where(MonthLineRow.month == name).order_by(MonthLineRow.number)
    )
    return tuple(map(_line, rows))


def stored_body(session: Session, name: str) -> bytes:
    """Return the bytes of a closed month's canonical file."""
    return session.execute(select(MonthCloseRow.body).where(MonthCloseRow.month == name)).scalar_one()


def stored_spend(session: Session, found: ClosedMonth) -> MonthSpend:
    """Return a closed month with its lines."""
    return MonthSpend(
        month=found.month,
        method=found.method,
        lines=stored_lines(session, found.name),
        total_usd=round(found.total_usd, 2),
        idle_usd=round(found.idle_usd, 2),
        node_hours=found.node_hours,
        unpriced_node_hours=Decimal(0),
        unplaced_engine_s=Decimal(0),
        is_estimated=False,
        state="closed",
    )


def adjustment_lines(session: Session, months: Sequence[str]) -> list[SpendLine]:
    """Return the adjustments of `months` that closed months already carry."""
    rows = session.scalars(
        select(MonthLineRow)
        .where(MonthLineRow.kind == "adjustment", MonthLineRow.adjusts.in_(months))
        .order_by(MonthLineRow.month, MonthLineRow.number)
    )
    return list(map(_line, rows))


def require_zone(session: Session, zone: ZoneInfo) -> None:
    """Raise Conflict if a month was closed in another zone than `zone`."""
    c = MonthCloseRow
    other = session.execute(
        select(c.zone, func.count()).where(c.zone != zone.key).group_by(c.zone).order_by(c.zone).limit(1)
    ).first()
    if other is not None:
        raise Conflict(
            f"RHODECK_FINANCE_TIMEZONE is {zone.key}, but {other[1]} months were closed in {other[0]}",
            hint=f"Set RHODECK_FINANCE_TIMEZONE={other[0]}; the zone stays once a month is closed",
        )


def _line(r: MonthLineRow) -> SpendLine:
    return SpendLine(
        cast("LineKind", r.kind),
        r.tenant,
        r.tier,
        r.model,
        r.pool,
        r.requests,
        r.prompt_tokens,
        r.output_tokens,
        r.engine_s,
        r.node_hours,
        r.amount_usd,
        r.adjusts,
        r.note,
    )
