"""What policy there is, how far it has come, and who changed what. Reads only; plain values.

Ages are seconds, times timezone-aware UTC. Prevents: a page that calls a policy "applied" because it was
sent; conditions here come from what gateways answered, with the age of that answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from pydantic import ValidationError
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control.tables import (
    AssignmentRow,
    AuditRow,
    GatewayObservedRow,
    GatewayRow,
    PolicyRevisionRow,
    RolloutRow,
    TenantKeyRow,
)
from fleet.messages import GatewayStatus, NodeOut, OverQuota, PromptFit, QueueState
from fleet.outcomes import Tier

Condition = Literal["unknown", "converged", "behind", "drifting", "unreachable", "rejected"]
#: Seconds without a look from any controller after which a condition is not repeated.
SILENT_S = 30.0
RolloutState = Literal["first", "baking", "paused", "all", "live", "superseded", "aborted"]


@dataclass(frozen=True, slots=True)
class Revision:
    """One immutable policy document with who, when and why. `restores` is set on a rollback."""

    number: int
    parent: int | None
    digest: str
    document: dict[str, Any]
    author: str
    note: str
    restores: int | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class RevisionHead:
    """A line of history: a revision without its document, and how its rollout ended or stands."""

    number: int
    parent: int | None
    digest: str
    author: str
    note: str
    restores: int | None
    created_at: datetime
    rollout_state: RolloutState | None


@dataclass(frozen=True, slots=True)
class GatewayState:
    """One gateway: what it should run, what it last said it runs, and how old that word is."""

    name: str
    url: str
    condition: Condition
    age_s: float | None  # since its last answer; None: it never answered
    observed_generation: int | None
    desired_generation: int | None
    revision_observed: int | None
    revision_desired: int | None
    boot_id: str | None
    message: str  # why it is not converged, in words; "" when it is
    pointer: str | None  # JSON pointer of the field it rejected
    in_flight: int | None  # requests
    in_flight_tokens: int | None
    queues: dict[Tier, QueueState] | None  # None: it did not say
    nodes_usable: int | None
    nodes_total: int | None
    unsupported: tuple[str, ...]  # policy fields it says it does not enforce
    acked_at: datetime | None  # when it confirmed what it should run; None: not confirmed
    draining: bool
    over: Mapping[str, OverQuota] = field(default_factory=dict[str, OverQuota])  # tenants above their quota
    group: str | None = None  # the gateway it is one of several processes of
    prompts: Mapping[str, PromptFit] = field(default_factory=dict[str, PromptFit])  # by model
    nodes_apart: Mapping[str, str] = field(
        default_factory=dict[str, str]
    )  # why they take no, or little, work
    nodes_out: Mapping[str, NodeOut] = field(default_factory=dict[str, NodeOut])  # ejected, or on trial


@dataclass(frozen=True, slots=True)
class Rollout:
    """How one revision reaches the gateways."""

    id: int
    revision: int
    base_revision: int | None
    state: RolloutState
    strategy: Literal["staged", "all_at_once"]
    first_gateway: str | None
    bake_s: float
    bake_started_at: datetime | None
    reason: str
    started_at: datetime
    updated_at: datetime

    def revision_for(self, gateway: str) -> int | None:
        """Return the revision `gateway` is to run at this stage; None: leave it as it is."""
        if self.state in ("all", "live"):
            return self.revision
        is_open = self.state in ("first", "baking", "paused")
        return self.revision if is_open and gateway == self.first_gateway else self.base_revision


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One row of the record."""

    id: int
    at: datetime
    actor: str
    role: str
    via: str
    action: str
    subject: str
    note: str
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TenantKey:
    """A tenant's API key without the key."""

    id: str
    tenant: str
    label: str
    created_by: str
    created_at: datetime
    revoked_at: datetime | None


def head(session: Session) -> Revision | None:
    """Return the newest revision; None before the first."""
    p = PolicyRevisionRow
    row = session.scalars(select(p).order_by(p.number.desc()).limit(1)).first()
    return None if row is None else _revision(row)


def revision(session: Session, number: int) -> Revision | None:
    """Return one revision; None if there is none of this number."""
    row = session.get(PolicyRevisionRow, number)
    return None if row is None else _revision(row)


def history(session: Session, *, limit: int = 50, before: int | None = None) -> list[RevisionHead]:
    """Return up to `limit` revisions, newest first, numbers below `before` where given."""
    p, r = PolicyRevisionRow, RolloutRow
    asked = (
        select(p.number, p.parent, p.digest, p.author, p.note, p.restores, p.created_at, r.state)
        .outerjoin(r, r.revision == p.number)
        .order_by(p.number.desc())
        .limit(limit)
    )
    if before is not None:
        asked = asked.where(p.number < before)
    return [RevisionHead(*row) for row in session.execute(asked)]


def current_rollout(session: Session) -> Rollout | None:
    """Return the rollout that counts: that of the newest revision. None before the first."""
    r = RolloutRow
    newest = select(r).order_by(r.revision.desc()).limit(1).execution_options(populate_existing=True)
    row = session.scalars(newest).first()
    return None if row is None else as_rollout(row)


def gateway_states(session: Session, now: datetime) -> list[GatewayState]:
    """Return every registered gateway by group and name, removed ones left out.

    "unknown" when no controller looked for `SILENT_S`; "behind" from the moment a rollout wants another
    revision at a gateway, although the controller has not sent it yet.
    """
    rollout = current_rollout(session)
    g, o, a = GatewayRow, GatewayObservedRow, AssignmentRow
    rows = session.execute(
        select(g.name, g.base_url, g.process_group, o, a.generation, a.revision)
        .outerjoin(o, o.gateway == g.name)
        .outerjoin(a, a.gateway == g.name)
        .where(g.state == "active")
        .order_by(func.coalesce(g.process_group, g.name), func.length(g.name), g.name)
    )
    return [
        replace(_gateway_state(name, url, seen, generation, given, rollout, now), group=group)
        for name, url, group, seen, generation, given in rows
    ]


def audit_page(session: Session, *, before: int | None = None, limit: int = 100) -> list[AuditEntry]:
    """Return up to `limit` rows of the record, newest first, numbers below `before` where given."""
    a = AuditRow
    asked = (
        select(a.id, a.at, a.actor, a.role, a.via, a.action, a.subject, a.note, a.detail)
        .order_by(a.id.desc())
        .limit(limit)
    )
    if before is not None:
        asked = asked.where(a.id < before)
    return [AuditEntry(*row) for row in session.execute(asked)]


def tenant_keys(session: Session, *, tenant: str | None = None) -> list[TenantKey]:
    """Return keys by tenant and age, revoked ones included; of one tenant where given."""
    k = TenantKeyRow
    asked = select(k.id, k.tenant, k.label, k.created_by, k.created_at, k.revoked_at)
    if tenant is not None:
        asked = asked.where(k.tenant == tenant)
    return [TenantKey(*row) for row in session.execute(asked.order_by(k.tenant, k.created_at, k.id))]


def as_rollout(row: RolloutRow) -> Rollout:
    """Return the row as a plain value."""
    return Rollout(
        id=row.id,
        revision=row.revision,
        base_revision=row.base_revision,
        state=row.state,  # pyright: ignore[reportArgumentType] # a CHECK constraint holds the values
        strategy=row.strategy,  # pyright: ignore[reportArgumentType] # written by commands only
        first_gateway=row.first_gateway,
        bake_s=row.bake_s,
        bake_started_at=row.bake_started_at,
        reason=row.reason,
        started_at=row.started_at,
        updated_at=row.updated_at,
    )


def _revision(row: PolicyRevisionRow) -> Revision:
    return Revision(
        row.number,
        row.parent,
        row.digest,
        row.document,
        row.author,
        row.note,
        row.restores,
        row.created_at,
    )


def _gateway_state(
    name: str,
    url: str,
    seen: GatewayObservedRow | None,
    generation: int | None,
    given: int | None,
    rollout: Rollout | None,
    now: datetime,
) -> GatewayState:
    status = _status(seen)
    wanted = rollout.revision_for(name) if rollout else None
    condition, message = _standing(seen, given, wanted, now)
    return GatewayState(
        name=name,
        url=url,
        condition=condition,
        age_s=max(0.0, (now - seen.seen_at).total_seconds()) if seen and seen.seen_at else None,
        observed_generation=seen.generation if seen else None,
        desired_generation=generation,
        revision_observed=seen.revision if seen else None,
        revision_desired=given if wanted is None else wanted,
        boot_id=seen.boot_id if seen else None,
        message=message,
        pointer=seen.rejected_pointer if seen and condition == "rejected" else None,
        in_flight=status.in_flight_requests if status else None,
        in_flight_tokens=status.in_flight_tokens if status else None,
        queues=status.queues if status else None,
        nodes_usable=status.nodes_usable if status else None,
        nodes_total=status.nodes_total if status else None,
        unsupported=status.unsupported if status else (),
        acked_at=seen.acked_at if seen and condition == "converged" else None,
        draining=status.draining if status else False,
        over=status.over if status else {},
        prompts=status.prompts if status else {},
        nodes_apart=status.nodes_apart if status else {},
        nodes_out=status.nodes_out if status else {},
    )


def _standing(
    seen: GatewayObservedRow | None, given: int | None, wanted: int | None, now: datetime
) -> tuple[Condition, str]:
    """Return condition and message as they may be said now, which can be less than was stored."""
    if seen is None or seen.tried_at is None:
        return "unknown", "no controller has asked it yet"
    silent_s = (now - seen.tried_at).total_seconds()
    if silent_s > SILENT_S:
        return "unknown", f"no controller has asked it for {silent_s:.0f} s; it was {seen.condition} then"
    if seen.condition == "converged" and wanted is not None and wanted != given:
        return "behind", f"it holds revision {seen.revision}, revision {wanted} is on its way"
    return seen.condition, seen.message  # pyright: ignore[reportReturnType] # a CHECK holds the values


def _status(seen: GatewayObservedRow | None) -> GatewayStatus | None:
    if seen is None or seen.status is None:
        return None
    try:
        return GatewayStatus.model_validate(seen.status)
    except ValidationError:  # stored by another release: what it said cannot be read, so nothing is shown
        return None
