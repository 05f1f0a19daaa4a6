"""Spend by day and by range, from the same books and the same cents as the month: there is one function.

Days are those of the declared time zone unless another is asked for; either way they sum to the range's
total, and the days of a month to the month's. USD as `Decimal`. Prevents: a page, a command and the API
that each add days up in their own way.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control import month_inputs
from control.adjustments import late_lines
from control.late_node_time import closed_node_seconds
from control.prices import in_force, prices
from control.queries_spend import first_observed, month_spend
from control.tables import NodeQuarterRow, RoundRow
from fleet.day_totals import DayTotals, Slice, day_totals, in_cents, quarter_costs, span_of
from fleet.errors import InvalidInput
from fleet.instants import day_of
from fleet.months import QUARTER, Month, month_at, month_of


def spend_slices(
    session: Session,
    start: datetime,
    end: datetime,
    *,
    zone: ZoneInfo,
    now: datetime,
    has_late: bool = False,
) -> list[Slice]:
    """Return cents by part and quarter-hour of [start, end). `zone` is the declared one: it cuts months.

    With `has_late`, node time that came after a month was closed stands where it ran, as providers bill it.
    """
    found: list[Slice] = []
    at = month_at(start, zone)
    while at.start < min(end, now):
        found += [
            each for each in _month_slices(session, at, zone, now, has_late) if start <= each.at < end
        ]
        at = month_at(at.end, zone)
    return found


def month_days(
    session: Session, name: str, *, zone: ZoneInfo, now: datetime, cut: ZoneInfo | None = None
) -> DayTotals:
    """Return the days of month `name`; they sum to the month's total. `cut`: at another zone's midnight.

    Days before the first record and after today are left out. Raises as `month_spend` does.
    """
    month = month_of(name, zone)
    slices = _month_slices(session, month, zone, now)
    span = _shown(session, slices, month.start, month.end, now)
    return day_totals(slices, *span, cut or zone, recorded=_recorded(session, now))


def range_days(
    session: Session,
    first: date,
    last: date,
    *,
    zone: ZoneInfo,
    now: datetime,
    cut: ZoneInfo | None = None,
) -> DayTotals:
    """Return the days `first` to `last` of the declared zone, both included, over months.

    `cut` only moves the midnights between them: the sum stays. Raises InvalidInput for a bad range.
    """
    start, end = span_of(first, last, zone)
    slices = spend_slices(session, start, end, zone=zone, now=now)
    span = _shown(session, slices, start, end, now)
    return day_totals(slices, *span, cut or zone, recorded=_recorded(session, now))


def asked_days(
    session: Session,
    *,
    month: str | None,
    first: str | None,
    last: str | None,
    cut: str | None,
    zone: ZoneInfo,
    now: datetime,
) -> DayTotals:
    """Return the days a command or call asked for: a month, or a range of dates written as 2026-11-30.

    Without either: the running month. Raises InvalidInput naming the field.
    """
    other = None if not cut else zone_named(cut)
    if first is None and last is None:
        return month_days(session, month or month_at(now, zone).name, zone=zone, now=now, cut=other)
    if month is not None or first is None or last is None:
        raise InvalidInput(
            "a range needs both its ends and no month", hint="Give from and to", field="from"
        )
    return range_days(session, day_of(first, "from"), day_of(last, "to"), zone=zone, now=now, cut=other)


def as_json(found: DayTotals, zone: ZoneInfo) -> dict[str, Any]:
    """Return days for JSON; amounts as text, so that none is rounded."""
    return {
        "declared_time_zone": zone.key,
        "days_cut_in": found.zone,
        "from": found.start.isoformat(),
        "until": found.end.isoformat(),
        "total_usd": f"{found.total_usd:.2f}" if found.is_known else None,
        "days": [
            {
                "day": day.day.isoformat(),
                "recorded": day.is_recorded,
                "total_usd": f"{day.total_usd:.2f}" if day.is_known else None,
                "nodes_usd": f"{day.nodes_usd:.2f}" if day.is_recorded else None,
                "charges_usd": f"{day.charges_usd:.2f}",
                "adjustments_usd": f"{day.adjustments_usd:.2f}",
                "node_hours": f"{day.node_hours:.6f}" if day.is_recorded else None,
                "unpriced_node_hours": f"{day.unpriced_hours:.6f}",
            }
            for day in found.days
        ],
    }


def zone_named(name: str, field: str = "zone") -> ZoneInfo:
    """Return the time zone called `name`. Raises InvalidInput for one this machine has no data of."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise InvalidInput(
            f"{name[:60]!r} is not a time zone", hint="Write it as Europe/Berlin", field=field
        ) from exc


def _month_slices(
    session: Session, month: Month, zone: ZoneInfo, now: datetime, has_late: bool = False
) -> list[Slice]:
    spend = month_spend(session, month.name, zone=zone, now=now)
    if spend.state != "closed" or has_late:
        node_s = month_inputs.node_seconds(session, month)
    else:
        node_s = closed_node_seconds(session, month)
    if spend.state == "closed" and has_late:
        own = [line for line in spend.lines if line.kind != "adjustment"]
        carried = [line for line in spend.lines if line.kind == "adjustment"]
        spend = replace(spend, lines=(*own, *late_lines(session, month.name), *carried))
    known = prices(session)
    priced = {(pool, kind, at): in_force(known, kind, pool, at) for pool, kind, at in node_s}
    costs = quarter_costs(node_s, priced, month_inputs.commitments(session), month, now)
    return in_cents(spend, costs)


def _recorded(session: Session, now: datetime) -> tuple[datetime, datetime]:
    """Return the span node time is known of: from the first node seen to the last round or count."""
    first = first_observed(session)
    if first is None:
        return now, now
    counted = session.scalar(select(func.max(NodeQuarterRow.last_seen_at))) or first
    asked = session.scalar(select(func.max(RoundRow.at)))
    return first, now if asked is None else max(counted, asked)


def _shown(
    session: Session, slices: list[Slice], start: datetime, end: datetime, now: datetime
) -> tuple[datetime, datetime]:
    """Return the part of [start, end) that anything is known of: days outside it are not shown as 0."""
    times = [each.at for each in slices]
    first = first_observed(session)
    if first is not None:
        times.append(first)
    known = max(start, min(times, default=end))
    return min(known, end), min(end, max([now, *(each.at + QUARTER for each in slices)]))
