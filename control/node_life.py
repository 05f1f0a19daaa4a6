"""Corrections of a node's life: quarter-hours in which it ran though nobody saw it, or did not run.

For nodes registered later than they started, scrapes that were lost, and nodes seen up that nobody was
billed for. Books of an open month change; what falls into a closed one comes late and is carried by the
next month that closes. Times are quarter-hours of UTC. Prevents: node-hours on a provider's invoice that
no book can ever hold, and a ledger edited by hand without a name and a reason.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from control import audit
from control.closed_months import closed_months
from control.roles import Actor, Permission, require
from control.tables import NodeQuarterRow, NodeRow
from fleet.errors import Conflict, InvalidInput, NotFound
from fleet.instants import require_instant
from fleet.months import QUARTER, quarter_of

MAX_SPAN = timedelta(days=366)
WHOLE = Decimal(int(QUARTER.total_seconds()))
_ONE_INSERT = 2_000


def correct_node_life(
    session: Session,
    *,
    node: str,
    start: datetime,
    end: datetime,
    was_up: bool,
    reason: str,
    actor: Actor,
    now: datetime,
) -> Decimal:
    """Say that `node` was up (or not) in [start, end); return the seconds that changed, negative for less.

    Joins the caller's transaction. Raises NotFound, InvalidInput for times that are no past quarter-hours,
    Conflict for time before the first closed month or that the ledger has not counted yet, Forbidden.
    """
    require(actor, Permission.CLOSE_MONTHS)
    reason = reason.strip()
    if not 1 <= len(reason) <= 300 or not reason.isprintable():
        raise InvalidInput(
            "a correction needs a reason of 1 to 300 characters", hint="Say what was wrong", field="reason"
        )
    start, end = require_instant(start, "from"), require_instant(end, "to")
    row = session.get(NodeRow, node)
    if row is None:
        raise NotFound(
            f"there is no node {node[:80]!r}",
            hint="Register it with `rhodeck nodes add`; it may be gone since",
        )
    _require_span(session, start, end)
    before = _up_s(session, node, start, end)
    if was_up:
        _fill(session, row, start, end)
    else:
        n = NodeQuarterRow
        session.execute(
            update(n).where(n.node == node, n.quarter >= start, n.quarter < end, n.up_s != 0).values(up_s=0)
        )
    changed = _up_s(session, node, start, end) - before
    detail = {
        "from": start.isoformat(),
        "to": end.isoformat(),
        "was": "up" if was_up else "down",
        "changed_s": str(changed),
    }
    audit.append(session, actor, "node.life", f"node {node}", reason, detail, now)
    return changed


def _require_span(session: Session, start: datetime, end: datetime) -> None:
    for field, at in (("from", start), ("to", end)):
        if at != quarter_of(at):
            raise InvalidInput(
                f"{at.isoformat()} is no quarter-hour", hint="Books are kept by quarter-hour", field=field
            )
    if not timedelta(0) < end - start <= MAX_SPAN:
        raise InvalidInput(
            f"{start.isoformat()} to {end.isoformat()} is no span",
            hint=f"Give its beginning first, at most {MAX_SPAN.days} days",
            field="to",
        )
    counted = session.scalar(select(func.max(NodeQuarterRow.last_seen_at)))
    if counted is None or end > counted:
        upto = "nothing" if counted is None else f"{counted:%Y-%m-%d %H:%M} UTC"
        raise Conflict(
            f"the ledger has not counted up to {end:%Y-%m-%d %H:%M} UTC, only {upto}",
            hint="Only time it has counted is corrected: end earlier, or wait",
        )
    closed = closed_months(session)
    if closed and start < closed[-1].month.start:
        raise Conflict(
            f"{start:%Y-%m-%d} is before {closed[-1].name}, the first month that was closed",
            hint="Time before it is in no month; enter an amount with `rhodeck months correct`",
        )


def _up_s(session: Session, node: str, start: datetime, end: datetime) -> Decimal:
    n = NodeQuarterRow
    found = session.scalar(
        select(func.sum(n.up_s)).where(n.node == node, n.quarter >= start, n.quarter < end)
    )
    return found or Decimal(0)


def _fill(session: Session, row: NodeRow, start: datetime, end: datetime) -> None:
    n = NodeQuarterRow
    values = [
        {
            "node": row.name,
            "quarter": start + number * QUARTER,
            "pool": row.pool,
            "price_class": row.price_class,
            "up_s": WHOLE,
            "last_seen_at": start + (number + 1) * QUARTER,
        }
        for number in range((end - start) // QUARTER)
    ]
    for first in range(0, len(values), _ONE_INSERT):
        statement = insert(n).values(values[first : first + _ONE_INSERT])
        session.execute(
            statement.on_conflict_do_update(
                index_elements=[n.node, n.quarter],
                set_={
                    "up_s": WHOLE,
                    "last_seen_at": func.greatest(n.last_seen_at, statement.excluded.last_seen_at),
                },
                where=or_(n.up_s < WHOLE, n.last_seen_at < statement.excluded.last_seen_at),
            )
        )
