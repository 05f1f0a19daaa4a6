"""What pages, API and CLI may ask about alerts, silences, webhooks and what people were told.

Frozen values; ages are seconds at the caller's `now`. Prevents: an alert hidden by a silence without
anybody being able to see it, and a webhook that has been dead for a week.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control.alert_groups import fleet_rules, is_inhibited
from control.alert_rule_store import RuleView, rule_views
from control.alert_silences import Silence, active_silences, silences, silencing
from control.freshness import age_s, stale_after_s
from control.tables import AlertDeliveryRow, AlertNoticeRow, AlertRow, RoundRow, WebhookRow

HISTORY = timedelta(days=7)
MAX_HISTORY = 200
MAX_NOTICES = 100


@dataclass(frozen=True, slots=True)
class AlertEntry:
    """One alert with who looks after it and who is told. `silence` None: people are told."""

    id: int
    rule: str
    scope: str
    subject: str  # "" for the fleet
    pool: str | None
    state: str  # "open" | "stale" | "acknowledged" | "resolved"
    severity: str
    opened_at: datetime
    updated_at: datetime
    age_s: float
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    resolved_at: datetime | None
    notified_at: datetime | None
    value: float | None
    threshold: float | None
    summary: str
    detail: dict[str, Any] = field(default_factory=dict[str, Any])
    silence: Silence | None = None
    is_inhibited: bool = False  # a pool's, while the fleet's alert of the same rule tells of it


@dataclass(frozen=True, slots=True)
class WebhookView:
    """One webhook, how its last calls went and what waits for it."""

    name: str
    kind: str
    url: str
    secret_name: str | None
    created_at: datetime
    created_by: str
    last_ok_at: datetime | None
    last_error: str | None
    last_error_at: datetime | None
    pending: int
    dead: int


@dataclass(frozen=True, slots=True)
class NoticeView:
    """What people were told, and whom it reached: webhook -> (state, attempts, error)."""

    id: str
    at: datetime
    rule: str
    kind: str
    summary: str
    deliveries: dict[str, tuple[str, int, str | None]]


@dataclass(frozen=True, slots=True)
class AlertBook:
    """Everything about alerts at one moment."""

    unresolved: tuple[AlertEntry, ...]
    resolved: tuple[AlertEntry, ...]  # of the last week, newest first
    silences: tuple[Silence, ...]  # that hold now, newest first
    rules: tuple[RuleView, ...]
    webhooks: tuple[WebhookView, ...]
    notices: tuple[NoticeView, ...]
    unknown_since: datetime | None = None  # the newest round, if it is too old: nobody judges since


@dataclass(frozen=True, slots=True)
class AlertCount:
    """How many alerts are unresolved, for the frame of every page."""

    unresolved: int
    critical: int  # of them, critical ones nobody has acknowledged and no silence hides
    unknown_since: datetime | None = None  # nobody judges since


def alert_book(session: Session, now: datetime) -> AlertBook:
    """Return everything the alerts page shows."""
    return AlertBook(
        unresolved=tuple(unresolved_alerts(session, now)),
        resolved=tuple(resolved_alerts(session, now)),
        silences=tuple(s for s in silences(session, since=now) if s.is_active(now)),
        rules=tuple(rule_views(session)),
        webhooks=tuple(webhook_views(session)),
        notices=tuple(notice_views(session)),
        unknown_since=unknown_since(session, now),
    )


def unknown_since(session: Session, now: datetime) -> datetime | None:
    """Return when the last round was judged, if that is too long ago to speak of the present; else None.

    Before the first round nothing was judged, and there is no alert to be in doubt of.
    """
    newest = session.execute(
        select(RoundRow.at, RoundRow.period_s).order_by(RoundRow.at.desc()).limit(1)
    ).first()
    if newest is None:
        return None
    is_present = (age_s(newest.at, now) or 0.0) < stale_after_s(newest.period_s)
    return None if is_present else newest.at


def unresolved_alerts(session: Session, now: datetime) -> list[AlertEntry]:
    """Return what is open, acknowledged or stale: critical first, then the newest."""
    active = active_silences(session, now)
    rows = session.scalars(
        select(AlertRow)
        .where(AlertRow.state != "resolved")
        .order_by(AlertRow.severity, AlertRow.opened_at.desc(), AlertRow.id.desc())
    ).all()
    wide = fleet_rules(rows)
    return [
        replace(_entry(row, now, silencing(row, active)), is_inhibited=is_inhibited(row, wide))
        for row in rows
    ]


def resolved_alerts(session: Session, now: datetime, *, limit: int = MAX_HISTORY) -> list[AlertEntry]:
    """Return what was resolved in the last seven days, newest first."""
    rows = session.scalars(
        select(AlertRow)
        .where(AlertRow.state == "resolved", AlertRow.resolved_at > now - HISTORY)
        .order_by(AlertRow.resolved_at.desc(), AlertRow.id.desc())
        .limit(limit)
    )
    return [_entry(row, now, None) for row in rows]


def alert_count(session: Session, now: datetime) -> AlertCount:
    """Return the count every page shows."""
    active = active_silences(session, now)
    rows = session.scalars(select(AlertRow).where(AlertRow.state != "resolved")).all()
    critical = [
        row
        for row in rows
        if row.severity == "critical" and row.acknowledged_at is None and silencing(row, active) is None
    ]
    return AlertCount(len(rows), len(critical), unknown_since(session, now))


def _entry(row: AlertRow, now: datetime, silence: Silence | None) -> AlertEntry:
    return AlertEntry(
        id=row.id,
        rule=row.rule,
        scope=row.scope,
        subject=row.subject,
        pool=row.pool,
        state=row.state,
        severity=row.severity,
        opened_at=row.opened_at,
        updated_at=row.updated_at,
        age_s=age_s(row.opened_at, now) or 0.0,
        acknowledged_at=row.acknowledged_at,
        acknowledged_by=row.acknowledged_by,
        resolved_at=row.resolved_at,
        notified_at=row.notified_at,
        value=row.value,
        threshold=row.threshold,
        summary=row.summary,
        detail=row.detail,
        silence=silence,
    )


def webhook_views(session: Session) -> list[WebhookView]:
    """Return the webhooks in use by name, with what waits and what was given up."""
    d = AlertDeliveryRow
    rows = session.execute(
        select(d.webhook, d.state, func.count()).where(d.state != "delivered").group_by(d.webhook, d.state)
    )
    counts: dict[tuple[str, str], int] = {(name, state): count for name, state, count in rows}
    hooks = session.scalars(
        select(WebhookRow).where(WebhookRow.removed_at.is_(None)).order_by(WebhookRow.name)
    )
    return [
        WebhookView(
            hook.name,
            hook.kind,
            hook.url,
            hook.secret_name,
            hook.created_at,
            hook.created_by,
            hook.last_ok_at,
            hook.last_error,
            hook.last_error_at,
            counts.get((hook.name, "pending"), 0),
            counts.get((hook.name, "dead"), 0),
        )
        for hook in hooks
    ]


def notice_views(session: Session, *, limit: int = MAX_NOTICES) -> list[NoticeView]:
    """Return what people were told, newest first."""
    n, d = AlertNoticeRow, AlertDeliveryRow
    rows = list(session.scalars(select(n).order_by(n.at.desc(), n.id).limit(limit)))
    deliveries = session.execute(
        select(d.notice, d.webhook, d.state, d.attempts, d.error)
        .where(d.notice.in_([row.id for row in rows]))
        .order_by(d.webhook)
    )
    found: dict[str, dict[str, tuple[str, int, str | None]]] = {}
    for notice, webhook, state, attempts, error in deliveries:
        found.setdefault(notice, {})[webhook] = (state, attempts, error)
    return [
        NoticeView(row.id, row.at, row.rule, row.kind, _summary(row.body), found.get(row.id, {}))
        for row in rows
    ]


def _summary(body: Mapping[str, Any]) -> str:
    return str(body.get("data", {}).get("summary", ""))
