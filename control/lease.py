"""Who leads: one row a role with an owner, an end and an epoch, by the database's clock.

The epoch is a fencing token: it rises whenever the owner changes and never falls. Every write of a leader
calls `require` in its own transaction, and gateways refuse a push of an older epoch. Times are seconds.
Prevents: two controllers that both write after one of them was asleep (a stalled process, a half-open
connection, a pooler that hands an advisory lock to somebody else).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from control.database import session_scope
from control.deps import Deps, Leadership
from fleet.errors import Conflict, FleetError

log = logging.getLogger(__name__)

_TAKE = text(
    """
    INSERT INTO lease AS l (role, owner, epoch, expires_at)
    VALUES (:role, :owner, 1, clock_timestamp() + make_interval(secs => :ttl_s))
    ON CONFLICT (role) DO UPDATE SET
        epoch = l.epoch + CASE WHEN l.owner = excluded.owner AND l.expires_at > clock_timestamp()
                               THEN 0 ELSE 1 END,
        owner = excluded.owner,
        expires_at = excluded.expires_at
    WHERE l.owner = excluded.owner OR l.expires_at <= clock_timestamp()
    RETURNING epoch, expires_at
    """
)
_REQUIRE = text(
    "SELECT 1 FROM lease "
    "WHERE role = :role AND epoch = :epoch AND expires_at > clock_timestamp() FOR UPDATE"
)
_RAISE = text(
    "UPDATE lease SET epoch = :above + 1 "
    "WHERE role = :role AND epoch = :epoch AND owner = :owner AND expires_at > clock_timestamp() "
    "RETURNING epoch"
)
_GIVE_UP = text(
    "UPDATE lease SET expires_at = clock_timestamp() "
    "WHERE role = :role AND owner = :owner AND epoch = :epoch"
)


class LeaseLost(Conflict):
    """This process does not lead (any more): nothing was written."""


class Held(NamedTuple):
    """A lease that was just taken or renewed."""

    epoch: int
    expires_at: datetime  # by the database's clock


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a role, as the database has it. `left_s` is below 0 once the lease has run out."""

    owner: str
    epoch: int
    left_s: float


def take(session: Session, *, role: str, owner: str, ttl_s: float) -> Held | None:
    """Take the lease if it is free, renew it if it is ours, return None if another holds it.

    A lease of ours that ran out gets a new epoch too: somebody may have led in between.
    """
    row = session.execute(_TAKE, {"role": role, "owner": owner, "ttl_s": ttl_s}).first()
    return None if row is None else Held(row.epoch, row.expires_at)


def require(session: Session, epoch: int, *, role: str = "controller") -> None:
    """Raise LeaseLost unless `epoch` leads now; keep it so until the transaction ends.

    Call it first in every writing transaction of a leader: the row lock holds off a successor.
    """
    if session.execute(_REQUIRE, {"role": role, "epoch": epoch}).first() is None:
        raise LeaseLost(
            f"epoch {epoch} does not lead any more", hint="Another controller took over; this one stands by"
        )


def raise_epoch(session: Session, leadership: Leadership, epoch: int, *, above: int) -> int:
    """Lift the held epoch over `above` and return it: a gateway knows a higher one than the database.

    That happens after a restore of the database or a push by hand. Raises LeaseLost if we do not lead.
    """
    asked = {"role": leadership.role, "owner": leadership.owner, "epoch": epoch, "above": above}
    row = session.execute(_RAISE, asked).first()
    if row is None:
        raise LeaseLost(
            f"epoch {epoch} does not lead any more", hint="Another controller took over; this one stands by"
        )
    raised: int = row.epoch
    return raised


def leader(session: Session, *, role: str = "controller") -> Leader | None:
    """Return who holds or last held the lease; None if nobody ever did."""
    row = session.execute(
        text(
            "SELECT owner, epoch, EXTRACT(EPOCH FROM expires_at - clock_timestamp())::float8 AS left_s "
            "FROM lease WHERE role = :role"
        ),
        {"role": role},
    ).first()
    return None if row is None else Leader(row.owner, row.epoch, row.left_s)


async def tick(deps: Deps) -> str:
    """Take or renew the lease and return the line to log. Call it every third of the TTL.

    On any doubt (database away, call too slow) nothing is extended: leadership then ends by itself,
    `lease_margin_s` before the lease does.
    """
    leadership = deps.leadership
    asked_at_s = deps.clock.monotonic_s()
    before = leadership.current(deps.clock)
    held = await asyncio.to_thread(_take_now, deps)
    if held is None:
        leadership.step_down()
        return "standing by: another controller leads" if before is None else "stepped down: lease lost"
    leadership.epoch = held.epoch
    leadership.until_s = asked_at_s + deps.lease_ttl_s - deps.lease_margin_s
    if held.epoch != before:
        log.info("leading", extra={"epoch": held.epoch, "owner": leadership.owner})
    return f"leading with epoch {held.epoch}"


async def release(deps: Deps) -> None:
    """Give the lease back at shutdown, so that a successor need not wait for its end."""
    epoch = deps.leadership.epoch
    deps.leadership.step_down()
    if epoch is None:
        return
    try:
        await asyncio.to_thread(_give_up, deps, epoch)
    except (FleetError, DBAPIError) as exc:  # it ends by itself
        log.warning("lease not given back", extra={"epoch": epoch, "reason": str(exc)})


def _take_now(deps: Deps) -> Held | None:
    leadership = deps.leadership
    with session_scope(deps.engine) as session:
        return take(session, role=leadership.role, owner=leadership.owner, ttl_s=deps.lease_ttl_s)


def _give_up(deps: Deps, epoch: int) -> None:
    asked = {"role": deps.leadership.role, "owner": deps.leadership.owner, "epoch": epoch}
    with session_scope(deps.engine) as session:
        session.execute(_GIVE_UP, asked)
