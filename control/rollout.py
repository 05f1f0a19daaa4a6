"""How a revision reaches the gateways: one first, a bake with checks, then all, then live. Or stopped.

`advance` is the pure machine; `tick` feeds it with what gateways acknowledged and what the samples say.
Times are seconds. Silence pauses and never promotes. A revision the first gateway refuses, or that breaks
the promises made to users there, goes no further and is taken back. Prevents: a bad policy at every gateway
within one second, and a rollout that turns green because nothing was measured.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from control import audit, lease, queries_policy
from control.database import session_scope
from control.deps import Bake, Deps, Finding, Verdict
from control.lease import LeaseLost
from control.queries_policy import Rollout, RolloutState
from control.roles import Actor, Role
from control.tables import AckRow, AssignmentRow, GatewayObservedRow, GatewayRow, RolloutRow
from fleet.errors import InvalidPolicy
from fleet.policy import Slo, parse

log = logging.getLogger(__name__)

CONTROLLER = Actor("controller", Role.OPERATOR, "controller")


@dataclass(frozen=True, slots=True)
class Stand:
    """How one gateway stands towards the revision of a rollout."""

    gateway: str
    is_reachable: bool
    is_applied: bool  # it confirmed this revision, and contact stands since
    refusal: str | None  # it refused this revision, for this reason


@dataclass(frozen=True, slots=True)
class Move:
    """The next state of a rollout, and why."""

    state: RolloutState
    reason: str
    first_gateway: str | None
    bake_started_at: datetime | None


def advance(
    rollout: Rollout,
    stands: Sequence[Stand],
    finding: Finding,
    now: datetime,
    *,
    evidence_wait_s: float = 0.0,
) -> Move | None:
    """Return what changes now, or None. Pure; paused, live, superseded and aborted change by hand only.

    `finding` is about the first gateway since the bake began; it is used only while baking. Samples come
    with the scrape's delay: a bake without a verdict pauses `evidence_wait_s` after its end.
    """
    if rollout.state == "first":
        return _first(rollout, stands, now)
    if rollout.state == "baking":
        return _baking(rollout, stands, finding, now, evidence_wait_s)
    if rollout.state == "all":
        return _all(rollout, stands)
    return None


def _first(rollout: Rollout, stands: Sequence[Stand], now: datetime) -> Move | None:
    chosen = _stand(stands, rollout.first_gateway)
    if chosen is None or not (chosen.is_reachable or chosen.is_applied):
        other = next((stand for stand in stands if stand.is_reachable), None)
        if other is None:
            return _because(rollout, "no gateway answers" if stands else "no gateway is registered")
        return Move("first", f"{other.gateway} goes first", other.gateway, None)
    if chosen.refusal is not None:
        return Move("aborted", f"{chosen.gateway} refused it: {chosen.refusal}", chosen.gateway, None)
    if chosen.is_applied:
        return Move(
            "baking", f"{chosen.gateway} runs it, alone for {rollout.bake_s:g} s", chosen.gateway, now
        )
    return None


def _baking(
    rollout: Rollout, stands: Sequence[Stand], finding: Finding, now: datetime, evidence_wait_s: float
) -> Move | None:
    first, began = rollout.first_gateway, rollout.bake_started_at
    chosen = _stand(stands, first)
    if chosen is not None and chosen.refusal is not None:
        return Move("aborted", f"{first} refused it: {chosen.refusal}", first, began)
    if chosen is None or not chosen.is_applied or began is None:
        return Move("first", f"{first} was lost while it baked; the bake starts again", first, None)
    if finding.verdict is Verdict.BREACHED:
        return Move("aborted", f"stopped and taken back: {finding.reason}", first, began)
    baked_s = (now - began).total_seconds()
    if baked_s < rollout.bake_s:
        return None
    if finding.verdict is Verdict.NO_DATA:
        if baked_s < rollout.bake_s + evidence_wait_s:
            return None
        return Move("paused", f"cannot tell after {baked_s:.0f} s: {finding.reason}", first, began)
    return Move("all", f"{first} kept its promises: {finding.reason}", first, began)


def _all(rollout: Rollout, stands: Sequence[Stand]) -> Move | None:
    refusals = [
        f"{stand.gateway} refused it: {stand.refusal}" for stand in stands if stand.refusal is not None
    ]
    if refusals:  # taking it back here could undo a rollback; that is for a person to say
        return _because(rollout, "; ".join(refusals))
    applied = sum(stand.is_applied for stand in stands)
    if stands and applied == len(stands):
        return Move(
            "live", f"every gateway runs it ({applied})", rollout.first_gateway, rollout.bake_started_at
        )
    if not stands:
        return _because(rollout, "no gateway is registered")
    missing = ", ".join(stand.gateway for stand in stands if not stand.is_applied)
    return _because(rollout, f"{applied} of {len(stands)} gateways run it; missing: {missing}")


def _because(rollout: Rollout, reason: str) -> Move | None:
    """Stay in the state, with a reason; None if that is the reason already."""
    if rollout.reason == reason:
        return None
    return Move(rollout.state, reason, rollout.first_gateway, rollout.bake_started_at)


def _stand(stands: Sequence[Stand], gateway: str | None) -> Stand | None:
    return next((stand for stand in stands if stand.gateway == gateway), None)


async def tick(deps: Deps) -> str:
    """Move the current rollout on if it can, and return the line to log.

    Raises Unavailable if the database cannot be reached.
    """
    epoch = deps.leadership.current(deps.clock)
    if epoch is None:
        return "standing by"
    try:
        return await asyncio.to_thread(_step, deps, epoch)
    except LeaseLost as exc:
        deps.leadership.step_down()
        log.warning("stepped down", extra={"epoch": epoch, "reason": exc.message})
        return f"stepped down: {exc.message}"


def _step(deps: Deps, epoch: int) -> str:
    now = deps.clock.now()
    with session_scope(deps.engine) as session:
        rollout = queries_policy.current_rollout(session)
        if rollout is None:
            return "no rollout"
        if rollout.state not in ("first", "baking", "all"):
            return f"revision {rollout.revision}: {rollout.state}"
        found = stands(session, rollout)
        finding = _finding(session, deps, rollout, found)
        move = advance(rollout, found, finding, now, evidence_wait_s=deps.evidence_wait_s)
        if move is None:
            return f"revision {rollout.revision}: {rollout.state}"
        lease.require(session, epoch, role=deps.leadership.role)
        if not _write(session, rollout, move, now):
            return f"revision {rollout.revision}: moved on by somebody else"
    log.info("rollout", extra={"revision": rollout.revision, "state": move.state, "reason": move.reason})
    return f"revision {rollout.revision}: {move.state}: {move.reason}"


def stands(session: Session, rollout: Rollout) -> list[Stand]:
    """Return how each registered gateway stands towards the rollout's revision, by name."""
    g, o, a = GatewayRow, GatewayObservedRow, AssignmentRow
    rows = session.execute(
        select(g.name, a.revision, o.revision, o.condition, o.acked_at, o.contact_lost_at, o.seen_at)
        .outerjoin(o, o.gateway == g.name)
        .outerjoin(a, a.gateway == g.name)
        .where(g.state == "active")
        .order_by(g.name)
    ).all()
    refusals = _refusals(session, rollout)
    return [
        Stand(
            gateway=name,
            is_reachable=seen_at is not None and lost_at is None,
            is_applied=acked_at is not None and {given, held} == {rollout.revision},
            refusal=refusals.get(name) if condition == "rejected" else None,
        )
        for name, given, held, condition, acked_at, lost_at, seen_at in rows
    ]


def _refusals(session: Session, rollout: Rollout) -> dict[str, str]:
    k = AckRow
    rows = session.execute(
        select(k.gateway, k.message)
        .where(k.revision == rollout.revision, ~k.accepted, k.at >= rollout.started_at)
        .order_by(k.id)
    )
    return {gateway: message for gateway, message in rows}


def _finding(session: Session, deps: Deps, rollout: Rollout, found: Sequence[Stand]) -> Finding:
    if rollout.state != "baking" or rollout.bake_started_at is None or rollout.first_gateway is None:
        return Finding(Verdict.NO_DATA, "nothing bakes")
    revision = queries_policy.revision(session, rollout.revision)
    try:
        slo = parse(revision.document if revision else None).slo
    except InvalidPolicy:  # it never reaches a gateway, so it never bakes for long
        slo = Slo()
    others = tuple(stand.gateway for stand in found if stand.gateway != rollout.first_gateway)
    return deps.verdict(session, Bake(rollout.first_gateway, others, rollout.bake_started_at, slo))


def _write(session: Session, rollout: Rollout, move: Move, now: datetime) -> bool:
    """Compare-and-set the row; a change of state goes into the record, and live ends what was live."""
    moved = session.execute(
        update(RolloutRow)
        .where(RolloutRow.id == rollout.id, RolloutRow.state == rollout.state)
        .values(
            state=move.state,
            reason=move.reason,
            first_gateway=move.first_gateway,
            bake_started_at=move.bake_started_at,
            updated_at=now,
        )
        .returning(RolloutRow.id)
    ).first()
    if moved is None:
        return False
    if move.state == "live":
        session.execute(
            update(RolloutRow)
            .where(RolloutRow.state == "live", RolloutRow.id != rollout.id)
            .values(state="superseded", updated_at=now)
        )
    if move.state != rollout.state:
        audit.append(
            session,
            CONTROLLER,
            f"rollout.{move.state}",
            f"revision {rollout.revision}",
            move.reason,
            {"from": rollout.state, "to": move.state},
            now,
        )
    return True
