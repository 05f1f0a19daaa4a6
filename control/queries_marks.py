"""What happened, and when, as marks on charts: alerts, policy revisions, restarts of engines.

Prevents: a step in a chart whose cause stands on another page.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from control.tables import AlertRow, NodeRow, PolicyRevisionRow, SampleRow

MarkKind = Literal["alert", "resolved", "revision", "restart"]
#: Marks of one kind on one chart; of more, the newest.
MAX_OF_A_KIND = 30


@dataclass(frozen=True, slots=True)
class Mark:
    """One instant with a short label and what to say about it."""

    at: datetime
    kind: MarkKind
    label: str
    text: str
    alert: int | None = None


def marks(session: Session, since: datetime, until: datetime, *, node: str | None = None) -> list[Mark]:
    """Return what happened in [since, until], oldest first; of a node: what concerns it.

    That is its own alerts, those of its pool and of the fleet, and its own restarts.
    """
    pool = None if node is None else session.scalar(select(NodeRow.pool).where(NodeRow.name == node))
    found = _alerts(session, since, until, node, pool)
    found += _revisions(session, since, until)
    found += _restarts(session, since, until, node)
    return sorted(found, key=lambda mark: mark.at)


def _alerts(
    session: Session, since: datetime, until: datetime, node: str | None, pool: str | None
) -> list[Mark]:
    a = AlertRow
    query = select(a).where(a.opened_at <= until, or_(a.opened_at >= since, a.resolved_at >= since))
    if node is not None:
        is_ours = or_(a.scope.not_in(("node", "pool")), (a.scope == "node") & (a.subject == node))
        query = query.where(or_(is_ours, (a.scope == "pool") & (a.subject == pool)))
    rows = session.scalars(query.order_by(a.opened_at.desc()).limit(MAX_OF_A_KIND))
    found: list[Mark] = []
    for row in rows:
        label = f"{row.rule} {row.subject}".strip()
        if row.opened_at >= since:
            found.append(Mark(row.opened_at, "alert", label, f"{row.severity}: {row.summary}", row.id))
        if row.resolved_at is not None and since <= row.resolved_at <= until:
            why = row.detail.get("resolved", "over")
            found.append(Mark(row.resolved_at, "resolved", label, f"{why}: {row.summary}", row.id))
    return found


def _revisions(session: Session, since: datetime, until: datetime) -> list[Mark]:
    r = PolicyRevisionRow
    rows = session.execute(
        select(r.number, r.created_at, r.author, r.note)
        .where(r.created_at >= since, r.created_at <= until)
        .order_by(r.created_at.desc())
        .limit(MAX_OF_A_KIND)
    )
    return [
        Mark(at, "revision", f"r{number}", f"revision {number} by {author}: {note}")
        for number, at, author, note in rows
    ]


def _restarts(session: Session, since: datetime, until: datetime, node: str | None) -> list[Mark]:
    s = SampleRow
    query = select(s.at, s.node, s.engine).where(s.restarted, s.at >= since, s.at <= until)
    if node is not None:
        query = query.where(s.node == node)
    rows = session.execute(query.order_by(s.at.desc()).limit(MAX_OF_A_KIND))
    return [
        Mark(at, "restart", f"restart {name}", f"engine {engine} of {name} restarted")
        for at, name, engine in rows
    ]
