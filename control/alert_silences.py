"""Silences: nobody is told about matching alerts until a time that was said beforehand.

Times are timezone-aware. The alerts themselves go on: they open, show and resolve. Prevents: a silence
for a night that lasts a year, one nobody can say why, and one that hides more than it was meant to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from control import audit
from control.roles import Actor, Permission, require
from control.tables import AlertRow, AlertSilenceRow, PoolRow
from fleet.alert_rules import rule_named
from fleet.errors import Conflict, InvalidInput, NotFound

SCOPES = ("fleet", "pool", "node", "gateway", "tier", "tenant", "model", "engine")
MIN_LENGTH_S, MAX_LENGTH_S = 60.0, 30 * 86_400.0
MAX_REASON = 500
MAX_NAME = 200
_SHOWN_NAMES = 20


@dataclass(frozen=True, slots=True)
class Silence:
    """One silence. A matcher that is None matches everything."""

    id: int
    rule: str | None
    scope: str | None
    subject: str | None
    pool: str | None
    reason: str
    created_at: datetime
    created_by: str
    expires_at: datetime
    ended_at: datetime | None
    ended_by: str | None

    def is_active(self, at: datetime) -> bool:
        """Return whether it holds at `at`."""
        ends = self.expires_at if self.ended_at is None else min(self.ended_at, self.expires_at)
        return self.created_at <= at < ends

    def matches(self, alert: AlertRow) -> bool:
        """Return whether it is about this alert."""
        pairs = (
            (self.rule, alert.rule),
            (self.scope, alert.scope),
            (self.subject, alert.subject),
            (self.pool, alert.pool),
        )
        return all(wanted is None or wanted == found for wanted, found in pairs)

    @property
    def matcher(self) -> str:
        """What it matches, in words: "rule node_silent, pool h100"."""
        named = {"rule": self.rule, "scope": self.scope, "subject": self.subject, "pool": self.pool}
        return ", ".join(f"{name} {value}" for name, value in named.items() if value is not None)


def silences(session: Session, *, since: datetime) -> list[Silence]:
    """Return silences that held at or after `since`, newest first."""
    s = AlertSilenceRow
    rows = session.scalars(select(s).where(s.expires_at > since).order_by(s.created_at.desc(), s.id.desc()))
    return [_view(row) for row in rows if row.ended_at is None or row.ended_at > since]


def active_silences(session: Session, at: datetime) -> list[Silence]:
    """Return the silences that hold at `at`."""
    return [silence for silence in silences(session, since=at) if silence.is_active(at)]


def silencing(alert: AlertRow, active: Sequence[Silence]) -> Silence | None:
    """Return the silence that is about `alert` and ends last; None if people are told."""
    matching = [silence for silence in active if silence.matches(alert)]
    return max(matching, key=lambda silence: silence.expires_at, default=None)


def add_silence(
    session: Session,
    actor: Actor,
    *,
    length_s: float,
    reason: str,
    now: datetime,
    rule: str | None = None,
    scope: str | None = None,
    subject: str | None = None,
    pool: str | None = None,
) -> int:
    """Tell nobody about matching alerts for `length_s` seconds (1 min to 30 days); return its number.

    Raises InvalidInput without a matcher, a reason or a usable length, NotFound for an unknown rule.
    """
    require(actor, Permission.ACKNOWLEDGE_ALERTS)
    given = {"rule": rule, "scope": scope, "subject": subject, "pool": pool}
    matchers = {name: value for name, value in given.items() if value is not None}
    if not matchers:
        raise InvalidInput(
            "a silence without a matcher would hide every alert",
            hint="Name a rule, scope, subject or pool",
            field="rule",
        )
    for name, value in matchers.items():
        is_fleet = name == "subject" and value == "" and scope == "fleet"
        if not is_fleet and not (value and len(value) <= MAX_NAME and value.isprintable()):
            raise InvalidInput(f"{name} {value[:40]!r} names nothing", hint="Write a name", field=name)
    if rule is not None:
        rule_named(rule)
    if scope is not None and scope not in SCOPES:
        raise InvalidInput(
            f"scope {scope!r} does not exist", hint=f"Write one of {', '.join(SCOPES)}", field="scope"
        )
    _require_pool(session, pool if scope != "pool" or subject is None else subject)
    if not MIN_LENGTH_S <= length_s <= MAX_LENGTH_S:
        raise InvalidInput(
            f"a silence of {length_s:g} s is not possible",
            hint="Write 1 minute to 30 days; make a new one when it ends",
            field="length_s",
        )
    said = " ".join(reason.split())
    if not said or len(said) > MAX_REASON or not said.isprintable():
        raise InvalidInput(
            "a silence needs a reason",
            hint=f"Say why in 1 to {MAX_REASON} characters; whoever is on call reads it",
            field="reason",
        )
    row = AlertSilenceRow(
        **given,
        reason=said,
        created_at=now,
        created_by=actor.name,
        expires_at=now + timedelta(seconds=length_s),
    )
    session.add(row)
    session.flush()
    detail = matchers | {"expires_at": row.expires_at.isoformat()}
    audit.append(session, actor, "alert.silence", f"silence {row.id}", said, detail, now)
    return row.id


def _require_pool(session: Session, name: str | None) -> None:
    """Refuse a pool that neither is registered nor has an open alert: such a silence would hide nothing."""
    if name is None or session.get(PoolRow, name) is not None:
        return
    a = AlertRow
    if session.scalar(select(a.id).where(a.pool == name, a.resolved_at.is_(None)).limit(1)) is not None:
        return
    known = session.scalars(select(PoolRow.name).order_by(PoolRow.name).limit(_SHOWN_NAMES)).all()
    raise NotFound(
        f"there is no pool {name[:80]!r}: the silence would hide nothing",
        hint=f"Write one of {', '.join(known)}" if known else "No pool is registered yet",
        field="pool",
    )


def end_silence(session: Session, actor: Actor, *, silence_id: int, now: datetime, note: str = "") -> None:
    """End a silence before its time: what is open is told about at once. Raises NotFound, Conflict."""
    require(actor, Permission.ACKNOWLEDGE_ALERTS)
    row = session.get(AlertSilenceRow, silence_id, with_for_update=True)
    if row is None:
        raise NotFound(
            f"there is no silence {silence_id}", hint="See `rhodeck alerts list`", field="silence_id"
        )
    if not _view(row).is_active(now):
        raise Conflict(f"silence {silence_id} is over", hint="Nothing was changed", field="silence_id")
    row.ended_at, row.ended_by = now, actor.name
    audit.append(session, actor, "alert.unsilence", f"silence {silence_id}", note, {}, now)


def _view(row: AlertSilenceRow) -> Silence:
    return Silence(
        row.id,
        row.rule,
        row.scope,
        row.subject,
        row.pool,
        row.reason,
        row.created_at,
        row.created_by,
        row.expires_at,
        row.ended_at,
        row.ended_by,
    )
