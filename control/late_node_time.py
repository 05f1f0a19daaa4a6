"""Node time that came after its month was closed: what came, what was accounted for, and what is known now.

The database keeps every change of a closed month's node time (`late_node_time`), so what a month was closed
with is what is known now less what came late. Node time in seconds. Prevents: a closed month whose days
move, and node-hours that a provider bills and nobody's month ever carries.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control import month_inputs
from control.closed_months import ClosedMonth
from control.month_inputs import Basics
from control.tables import LateNodeTimeRow, MonthCloseRow, PoolRow
from fleet.months import Month

#: Where a close keeps what it accounted for of earlier months' late node time, in its signed basis.
CARRIED = "late_node_time"
QuarterSeconds = dict[tuple[str, str, datetime], Decimal]  # (pool, price class, quarter-hour) -> seconds


@dataclass(frozen=True, slots=True)
class LateNodeTime:
    """Node time of one node that a closed month did not have, or has too much."""

    node: str
    pool: str
    price_class: str
    change_s: Decimal  # negative: less
    first: datetime  # quarter-hours
    last: datetime
    received_at: datetime

    def as_dict(self) -> dict[str, str]:
        """Return it for JSON; hours as text."""
        return {
            "node": self.node,
            "pool": self.pool,
            "price_class": self.price_class,
            "node_hours": f"{self.change_s / 3600:.6f}",
            "first_quarter": self.first.isoformat(),
            "last_quarter": self.last.isoformat(),
            "received_at": self.received_at.isoformat(),
        }


def late_node_time(session: Session, name: str) -> list[LateNodeTime]:
    """Return what came late of closed month `name`, by node; what came and went again is left out."""
    r = LateNodeTimeRow
    change = func.sum(r.change_s)
    rows = session.execute(
        select(
            r.node,
            r.pool,
            r.price_class,
            change,
            func.min(r.quarter),
            func.max(r.quarter),
            func.max(r.received_at),
        )
        .where(r.month == name)
        .group_by(r.node, r.pool, r.price_class)
        .having(change != 0)
        .order_by(r.node, r.pool, r.price_class)
    )
    return [LateNodeTime(*row) for row in rows]


def closed_node_seconds(session: Session, month: Month) -> QuarterSeconds:
    """Return the node-seconds `month` was closed with: those known now less those that came late."""
    seconds = defaultdict(Decimal, month_inputs.node_seconds(session, month))
    r = LateNodeTimeRow
    late = session.execute(
        select(r.pool, r.price_class, r.quarter, func.sum(r.change_s))
        .where(r.month == month.name)
        .group_by(r.pool, r.price_class, r.quarter)
    )
    for pool, price_class, quarter, change_s in late:
        seconds[pool, price_class, quarter] -= change_s
    return {key: up_s for key, up_s in seconds.items() if up_s}


def newest_change(session: Session) -> int:
    """Return the number of the newest late change; 0 if there is none."""
    return session.scalar(select(func.max(LateNodeTimeRow.id))) or 0


def has_unaccounted(session: Session, name: str, newest: ClosedMonth) -> bool:
    """Say whether node time of closed month `name` changed after `newest`, the month closed last."""
    mark = session.execute(
        select(MonthCloseRow.watermark).where(MonthCloseRow.month == newest.name)
    ).scalar_one()
    r = LateNodeTimeRow
    found = session.scalar(
        select(r.id).where(r.month == name, r.id > int(mark.get(CARRIED, 0))).order_by(r.id).limit(1)
    )
    return found is not None


def accounted(session: Session, closed: ClosedMonth) -> Basics:
    """Return what `closed` was divided with last: at its close, or by the close that carried late time."""
    c = MonthCloseRow
    carried: dict[str, Any] | None = session.scalar(
        select(c.basis[CARRIED][closed.name])
        .where(c.number > closed.number, c.basis[CARRIED].has_key(closed.name))
        .order_by(c.number.desc())
        .limit(1)
    )
    if carried is not None:
        return Basics.of_json(carried)
    return Basics.of_json(session.execute(select(c.basis).where(c.month == closed.name)).scalar_one())


def known_now(session: Session, closed: ClosedMonth, before: Basics) -> Basics:
    """Return `closed` with the node time known now: prices of then, and the places and rule of `before`."""
    node_time, charges = month_inputs.costs(session, closed.month, closed.month.end)
    pools = session.execute(select(PoolRow.name, PoolRow.max_num_seqs))
    slots = {pool: places for pool, places in pools} | before.slots
    used = {each.pool for each in node_time}
    kept = {pool: places for pool, places in slots.items() if pool in before.slots or pool in used}
    return Basics(tuple(node_time), tuple(charges), kept, before.rule)
