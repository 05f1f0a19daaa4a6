"""What must hold before a month closes: a checklist, each item with what was found.

A failed item that blocks cannot be waived; another one closes the month only when finance accepts it.
Times are UTC. Prevents: a month closed while use of it still waits at a gateway, and node time without a
price that silently costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from sqlalchemy import exists, func, or_, select
from sqlalchemy.orm import Session

from control.closed_months import closed_months
from control.queries_spend import SETTLED_AFTER, first_observed, next_month
from control.tables import (
    GatewayObservedRow,
    GatewayRow,
    NodeQuarterRow,
    QualityFindingRow,
    SampleRow,
    UsageCursorRow,
    UsageRecordRow,
)
from fleet.months import Month, month_at
from fleet.quality_kinds import MEANINGS, Kind
from fleet.spend import MonthSpend

#: What leaves node time or use of a month unmeasured.
GAPS = (Kind.NO_PAGE, Kind.GAP, Kind.ROUNDS_MISSED, Kind.ROUNDS_DROPPED)


@dataclass(frozen=True, slots=True)
class Check:
    """One item of the checklist."""

    name: str
    is_met: bool
    is_blocking: bool  # cannot be accepted
    found: str


def checklist(session: Session, spend: MonthSpend, zone: ZoneInfo, now: datetime) -> tuple[Check, ...]:
    """Return the checklist of an open month with its present `spend`."""
    month = spend.month
    return (
        _is_over(month, now),
        _is_next(session, month, zone),
        _node_time_counted(session, month),
        _is_priced(session, spend),
        _gateways_drained(session, month, now),
        _recorded_from_the_start(session, month),
        _gaps(session, month),
        Check(
            "all use in a pool with node time",
            not spend.unplaced_engine_s,
            False,
            f"{spend.unplaced_engine_s:,.0f} engine-seconds elsewhere",
        ),
    )


def _is_over(month: Month, now: datetime) -> Check:
    ready_at = month.end + SETTLED_AFTER
    return Check("month is over", now >= ready_at, True, f"can close from {ready_at:%Y-%m-%d %H:%M} UTC on")


def _is_next(session: Session, month: Month, zone: ZoneInfo) -> Check:
    closed, first = closed_months(session), first_observed(session)
    if closed:
        wanted = next_month(closed[0], zone).name
    else:
        wanted = "" if first is None else month_at(first, zone).name
    return Check(
        "earlier months are closed",
        month.name == wanted,
        True,
        f"the next month to close is {wanted}" if wanted else "no node was ever observed up",
    )


def _node_time_counted(session: Session, month: Month) -> Check:
    mark = session.scalar(select(func.max(NodeQuarterRow.last_seen_at)))
    if mark is None:
        return Check("node time is counted", False, True, "the ledger has counted nothing yet")
    waiting = session.scalar(select(exists().where(SampleRow.at > mark, SampleRow.at < month.end)))
    return Check(
        "node time is counted", not waiting, True, f"the ledger stands at {mark:%Y-%m-%d %H:%M} UTC"
    )


def _is_priced(session: Session, spend: MonthSpend) -> Check:
    """Unpriced node time stops the close; a month of none, while others have some, needs consent."""
    if spend.has_node_time:
        found = f"{spend.unpriced_node_hours:.2f} node-hours without a price"
        return Check("prices for all node time", not spend.unpriced_node_hours, True, found)
    is_first = first_observed(session) is None
    return Check("prices for all node time", False, is_first, "no node time is counted")


def _gateways_drained(session: Session, month: Month, now: datetime) -> Check:
    rows = session.execute(  # of those that may hold use of the month
        select(GatewayRow.name, GatewayObservedRow.seen_at, GatewayObservedRow.status)
        .outerjoin(GatewayObservedRow, GatewayObservedRow.gateway == GatewayRow.name)
        .where(GatewayRow.state == "active", GatewayRow.created_at < month.end)
        .order_by(GatewayRow.name)
    ).all()
    waiting: list[str] = []
    for name, seen_at, status in rows:
        spool = (status or {}).get("usage_spool", "")
        if _taken_beyond(session, name, month.end):
            continue
        cursor = session.get(UsageCursorRow, (name, spool))
        taken = 0 if cursor is None else cursor.seq
        if seen_at is None or seen_at < month.end or taken < int((status or {}).get("usage_last_seq", 0)):
            waiting.append(name)
    if not rows:
        found = "no gateway is registered that could hold any"
    elif not waiting:
        found = "all drained since the end"
    elif now < month.end:
        found = "not before the month is over"
    else:
        found = f"not drained since the end: {', '.join(waiting)}"
    return Check("gateways' usage is drained", not waiting, False, found)


def _taken_beyond(session: Session, gateway: str, end: datetime) -> bool:
    """Say whether a record finished after `end` was taken: a spool hands out its records in order."""
    u = UsageRecordRow
    return bool(session.scalar(select(exists().where(u.gateway == gateway, u.finished_at >= end))))


def _recorded_from_the_start(session: Session, month: Month) -> Check:
    first = first_observed(session)
    is_whole = first is not None and first <= month.start
    return Check(
        "recorded from its start",
        is_whole,
        False,
        "nothing is recorded"
        if first is None
        else f"node time is recorded from {first:%Y-%m-%d %H:%M} UTC on",
    )


def _gaps(session: Session, month: Month) -> Check:
    q = QualityFindingRow
    rows = session.execute(
        select(q.kind, func.count(func.distinct(q.source)))
        .where(q.kind.in_(GAPS), q.since < month.end, or_(q.until.is_(None), q.until >= month.start))
        .group_by(q.kind)
        .order_by(q.kind)
    ).all()
    found = ", ".join(gap_words(Kind(kind), count) for kind, count in rows)
    return Check("no gaps in the data", not rows, False, found or "none were found")


def gap_words(kind: Kind, sources: int) -> str:
    """Return a kind of gap and how many sources had it: "No metrics page at 2 sources"."""
    return f"{MEANINGS[kind].title} at {sources:,} source{'' if sources == 1 else 's'}"
