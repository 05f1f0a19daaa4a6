"""What reconciling reads and writes: short transactions, the leader's epoch required in each write.

Owns: loading what each gateway is to run, storing generations, recording answers and acknowledgements.
Prevents: a leader that lost its lease writing generations, and one bad node row that stops all pushes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError
from sqlalchemy import null, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from control import assignments, lease, queries_policy
from control.assignments import Target
from control.conditions import Desired, Known, Refusal
from control.database import session_scope
from control.deps import Deps
from control.tables import (
    AckRow,
    AssignmentRow,
    GatewayObservedRow,
    GatewayRow,
    NodeRow,
    PoolRow,
    TenantKeyRow,
)
from fleet.errors import InvalidPolicy
from fleet.messages import Credential, NodeTarget
from fleet.policy import Policy

log = logging.getLogger(__name__)

#: That a gateway still is as it was is written this often, seconds; pages doubt it after ten times as long.
CONFIRMED_EVERY_S = 2.5
_KNOWN = tuple(part.name for part in fields(Known))


@dataclass(frozen=True, slots=True)
class Place:
    """One gateway as the database has it. `target` None with a `refusal`: the revision cannot be sent."""

    name: str
    url: str
    target: Target | None
    refusal: Refusal | None
    refused_revision: int | None
    generation: int | None  # last given to this gateway
    given_digest: str | None  # of that generation
    known: Known

    @property
    def digest(self) -> str | None:
        """Return the digest of the target; None without one."""
        return None if self.target is None else self.target.digest


@dataclass(frozen=True, slots=True)
class Ack:
    """A confirmation or a refusal to add to the history."""

    gateway: str
    desired: Desired
    accepted: bool
    message: str = ""


def load(deps: Deps, now: datetime) -> list[Place]:
    """Return every registered gateway with what it is to run. One short read transaction."""
    with session_scope(deps.engine) as session:
        return _places(session, deps, now)


def store_generations(
    deps: Deps, epoch: int, raise_above: int | None, given: Mapping[str, Desired], places: Sequence[Place]
) -> int:
    """Write changed assignments and return the epoch to send with.

    Raises LeaseLost; then nothing was written.
    """
    now = deps.clock.now()
    with session_scope(deps.engine) as session:
        lease.require(session, epoch, role=deps.leadership.role)
        if raise_above is not None:
            epoch = lease.raise_epoch(session, deps.leadership, epoch, above=raise_above)
        rows = [
            {
                "gateway": place.name,
                "generation": wanted.generation,
                "revision": wanted.revision,
                "digest": wanted.digest,
                "document": assignments.content(place.target.assignment),
                "updated_at": now,
            }
            for place in places
            if place.target is not None
            and (wanted := given.get(place.name)) is not None
            and (wanted.generation, wanted.digest) != (place.generation, place.given_digest)
        ]
        if rows:
            statement = insert(AssignmentRow)
            values = {name: statement.excluded[name] for name in rows[0] if name != "gateway"}
            session.connection().execute(
                statement.on_conflict_do_update(index_elements=["gateway"], set_=values), rows
            )
    return epoch


def news(places: Sequence[Place], known: Mapping[str, Known]) -> dict[str, Known]:
    """Return what is worth writing: what changed, and what was confirmed long enough ago to say so again.

    Figures of load in a status move all the time; by themselves they wait for the next confirmation.
    """
    return {
        place.name: after
        for place in places
        if (after := known[place.name]) is not place.known
        and (
            not _is_same(place.known, after)
            or _seconds(place.known.tried_at, after.tried_at) >= CONFIRMED_EVERY_S
        )
    }


def _is_same(before: Known, after: Known) -> bool:
    moving = {"seen_at": None, "tried_at": None, "status": None}
    is_told = (before.status is None) == (after.status is None)
    return is_told and replace(before, **moving) == replace(after, **moving)


def _seconds(before: datetime | None, after: datetime | None) -> float:
    if before is None or after is None:
        return 0.0 if before is after else CONFIRMED_EVERY_S
    return abs((after - before).total_seconds())  # a clock that was set back is news


def record(deps: Deps, epoch: int, known: Mapping[str, Known], acks: Sequence[Ack]) -> None:
    """Write what is known now and add to the history. Raises LeaseLost: nothing was written.

    `known` has every gateway that `acks` are about.
    """
    now = deps.clock.now()
    with session_scope(deps.engine) as session:
        lease.require(session, epoch, role=deps.leadership.role)
        active = set(session.scalars(select(GatewayRow.name).where(GatewayRow.state == "active")))
        rows = [  # but those removed while we were calling them
            {"gateway": name} | {part: getattr(state, part) for part in _KNOWN}
            for name, state in sorted(known.items())
            if name in active
        ]
        _observe(session, rows)
        for ack in acks:
            session.add(
                AckRow(
                    at=now,
                    gateway=ack.gateway,
                    boot_id=known[ack.gateway].boot_id or "",
                    epoch=epoch,
                    generation=ack.desired.generation,
                    revision=ack.desired.revision,
                    digest=ack.desired.digest,
                    accepted=ack.accepted,
                    message=ack.message,
                )
            )


def _observe(session: Session, rows: Sequence[dict[str, Any]]) -> None:
    """Put rows of `gateway_observed` in the place of those that are there."""
    told = [row for row in rows if row["status"] is not None]
    untold = [{k: v for k, v in row.items() if k != "status"} for row in rows if row["status"] is None]
    for part in (told, untold):  # an unknown status is SQL's NULL, not JSON's
        if not part:
            continue
        statement = insert(GatewayObservedRow)
        values: dict[str, Any] = {name: statement.excluded[name] for name in part[0] if name != "gateway"}
        values.setdefault("status", null())
        session.connection().execute(
            statement.on_conflict_do_update(index_elements=["gateway"], set_=values), list(part)
        )


def _places(session: Session, deps: Deps, now: datetime) -> list[Place]:
    g, a, o = GatewayRow, AssignmentRow, GatewayObservedRow
    rows = session.execute(
        select(
            g.name, g.base_url, a.generation, a.digest, o.gateway, *(getattr(o, part) for part in _KNOWN)
        )
        .outerjoin(a, a.gateway == g.name)
        .outerjoin(o, o.gateway == g.name)
        .where(g.state == "active")
        .order_by(g.name)
    ).all()
    rollout = queries_policy.current_rollout(session)
    names = [row.name for row in rows]
    wanted = {name: rollout.revision_for(name) if rollout else None for name in names}
    built = _built(session, deps, now, {number for number in wanted.values() if number is not None}, names)
    return [
        _place(name, url, built, wanted[name], generation, digest, Known(*parts) if seen else Known())
        for name, url, generation, digest, seen, *parts in rows
    ]


def _place(
    name: str,
    url: str,
    built: Mapping[int, dict[str, Target] | Refusal],
    wanted: int | None,
    generation: int | None,
    given_digest: str | None,
    known: Known,
) -> Place:
    made = built[wanted] if wanted is not None else None
    target = made[name] if isinstance(made, dict) else None
    return Place(
        name=name,
        url=url,
        target=target,
        refusal=made if isinstance(made, Refusal) else None,
        refused_revision=wanted if isinstance(made, Refusal) else None,
        generation=generation,
        given_digest=given_digest,
        known=known,
    )


def _built(
    session: Session, deps: Deps, now: datetime, numbers: set[int], names: Sequence[str]
) -> dict[int, dict[str, Target] | Refusal]:
    """Return assignments by revision, or why a revision cannot be sent (it came past the commands)."""
    if not numbers:
        return {}
    nodes, keys = node_targets(session), _credentials(session)
    built: dict[int, dict[str, Target] | Refusal] = {}
    for number in sorted(numbers):
        found = queries_policy.revision(session, number)
        try:
            policy = deps.targets.policy(number, found.document if found else None)
        except InvalidPolicy as exc:
            message = f"the controller does not send revision {number}: {exc.message}"
            built[number] = Refusal(None, message, exc.field)
            continue
        over = _over_budget(session, deps, now, policy)
        built[number] = deps.targets.of(policy, number, names, nodes, keys, over)
    return built


def _over_budget(session: Session, deps: Deps, now: datetime, policy: Policy) -> list[str]:
    """Return the tenants that have spent their month's budget. Adds nothing up where nobody has one."""
    budgets = {
        name: tenant.monthly_budget_usd
        for name, tenant in policy.tenants.items()
        if tenant.monthly_budget_usd is not None
    }
    if not budgets:
        return []
    spent = deps.spend(session, now)
    return [name for name, budget in budgets.items() if spent.get(name, 0) >= budget]


def node_targets(session: Session) -> list[NodeTarget]:
    """Return the nodes as gateways are told of them: those that take requests, and those that drain."""
    n, p = NodeRow, PoolRow
    rows = session.execute(
        select(
            n.name,
            n.pool,
            n.base_url,
            n.price_class,
            n.state,
            p.models,
            p.max_num_seqs,
            p.scheduling_policy,
            p.role,
        )
        .join(p, p.name == n.pool)
        .where(n.state.in_(("active", "draining")))
    )
    nodes: list[NodeTarget] = []
    for row in rows:
        try:
            nodes.append(
                NodeTarget(
                    name=row.name,
                    pool=row.pool,
                    base_url=_with_port(row.base_url),
                    models=tuple(row.models),
                    price_class=row.price_class,
                    draining=row.state == "draining",
                    max_num_seqs=row.max_num_seqs,
                    honours_priority=row.scheduling_policy == "priority",
                    role=row.role,
                )
            )
        except ValueError as exc:
            log.warning("node left out of assignments", extra={"node": row.name, "reason": str(exc)})
    return nodes


def _with_port(url: str) -> str:
    """Return the address with its port in sight: gateways accept no other form."""
    parts = urlsplit(url)
    if parts.port is not None or not parts.hostname:
        return url
    return f"{parts.scheme}://{parts.netloc}:{443 if parts.scheme == 'https' else 80}"


def _credentials(session: Session) -> list[Credential]:
    k = TenantKeyRow
    keys: list[Credential] = []
    for row in session.execute(select(k.id, k.sha256, k.tenant).where(k.revoked_at.is_(None))):
        try:
            keys.append(Credential(key_id=row.id, sha256=row.sha256, tenant=row.tenant))
        except ValidationError as exc:
            log.warning("tenant key left out of assignments", extra={"key_id": row.id, "reason": str(exc)})
    return keys
