"""Steering a rollout by hand: pause, resume, promote, abort. Each joins the caller's transaction.

Every step is a compare-and-set on the state the operator saw, with its row in the record. Prevents: a
promote that lands on a rollout somebody aborted a second before.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import update
from sqlalchemy.orm import Session

from control import audit, queries_policy
from control.commands_policy import checked_note
from control.queries_policy import Rollout
from control.roles import Actor, Permission, require
from control.tables import RolloutRow
from fleet.errors import Conflict, NotFound


def pause(session: Session, *, actor: Actor, note: str, now: datetime) -> Rollout:
    """Keep the revision at its first gateway until `resume`, `promote` or `abort`."""
    return _step(session, actor, "pause", note, now, allowed=("first", "baking"), to="paused")


def resume(session: Session, *, actor: Actor, note: str, now: datetime) -> Rollout:
    """Bake again from the start: what was seen before a pause is not evidence any more."""
    return _step(session, actor, "resume", note, now, allowed=("paused",), to="first")


def promote(session: Session, *, actor: Actor, note: str, now: datetime) -> Rollout:
    """Send the revision to every gateway now, on the operator's word instead of the samples'."""
    return _step(session, actor, "promote", note, now, allowed=("first", "baking", "paused"), to="all")


def abort(session: Session, *, actor: Actor, note: str, now: datetime) -> Rollout:
    """Stop the rollout; gateways go back to the revision before it at the next tick.

    Raises Conflict once it is live: then `policy rollback` is the way back. Raises Conflict also where
    nothing was sent to all gateways before, so that there is nothing to go back to.
    """
    require(actor, Permission.STEER_ROLLOUT)
    rollout = _current(session)
    if rollout.state in ("first", "baking", "paused", "all") and rollout.base_revision is None:
        raise Conflict(
            f"revision {rollout.revision} is the first one: there is nothing to go back to",
            hint="Publish a corrected revision instead",
        )
    return _step(
        session, actor, "abort", note, now, allowed=("first", "baking", "paused", "all"), to="aborted"
    )


def _current(session: Session) -> Rollout:
    rollout = queries_policy.current_rollout(session)
    if rollout is None:
        raise NotFound("there is no rollout", hint="Publish a revision first")
    return rollout


def _step(
    session: Session,
    actor: Actor,
    verb: str,
    note: str,
    now: datetime,
    *,
    allowed: tuple[str, ...],
    to: str,
) -> Rollout:
    require(actor, Permission.STEER_ROLLOUT)
    reason = checked_note(note)
    rollout = _current(session)
    if rollout.state not in allowed:
        raise Conflict(
            f"the rollout of revision {rollout.revision} is {rollout.state}; "
            f"{verb} needs {' or '.join(allowed)}",
            hint="Use `rhodeck policy rollback N` to leave a live revision"
            if rollout.state == "live"
            else "Look at `rhodeck policy rollout`",
        )
    moved = session.execute(
        update(RolloutRow)
        .where(RolloutRow.id == rollout.id, RolloutRow.state == rollout.state)
        .values(
            state=to,
            reason=f"{verb} by {actor.name}: {reason}",
            bake_started_at=None if to == "first" else rollout.bake_started_at,
            updated_at=now,
        )
        .returning(RolloutRow.id)
    ).first()
    if moved is None:
        raise Conflict(
            "the rollout moved on at this moment", hint="Look again, then decide", retryable=True
        )
    audit.append(
        session,
        actor,
        f"rollout.{verb}",
        f"revision {rollout.revision}",
        reason,
        {"from": rollout.state, "to": to},
        now,
    )
    session.expire_all()
    return _current(session)
