"""Who is told what, and when: alerts of one rule, scope and pool in one notice.

A group waits `GROUP_WAIT_S` after its first alert, so that forty nodes that fall silent together are one
notice; later ones of the same group wait until `GROUP_INTERVAL_S` after the last notice; what nobody has
acknowledged is told again every `REPEAT_S`. What was told once is told when it is over, too. Acknowledged
and silenced alerts are not told as new; a silence that ends while its alert is open is. Times are those of
the rounds, so that a late round tells what an early one would have. Everything is written in the round's
transaction. A pool's alert is not told while the same rule stands open for the whole fleet; what is left of
it when the fleet's is over is. Prevents: forty pages for one switch, a page for a breach that lasted a
moment, and "resolved" for something nobody heard of.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from control.alert_notices import NoticeKind, notice_body
from control.alert_silences import Silence, active_silences, silencing
from control.tables import AlertDeliveryRow, AlertGroupRow, AlertNoticeRow, AlertRow, WebhookRow
from fleet.alert_rules import AlertRule

GROUP_WAIT_S = 30.0
GROUP_INTERVAL_S = 300.0
REPEAT_S = 4 * 3600.0

Group = tuple[str, str, str]  # rule, scope, pool


@dataclass(slots=True)
class _News:
    """What is to be told about one group."""

    opened: list[AlertRow] = field(default_factory=list[AlertRow])
    told: list[AlertRow] = field(default_factory=list[AlertRow])  # open, told before, unacknowledged
    resolved: list[AlertRow] = field(default_factory=list[AlertRow])
    is_active: bool = False  # somebody was told of an alert that is still open


def group_of(row: AlertRow) -> Group:
    """Return the group an alert is told with."""
    return row.rule, row.scope, row.pool or ""


def tell(session: Session, at: datetime, rules: Mapping[str, AlertRule]) -> list[AlertNoticeRow]:
    """Write the notices that are due at `at`, with a delivery for each webhook; return them.

    Joins the caller's transaction. Calling it twice for one `at` writes nothing more.
    """
    news = _news(session, active_silences(session, at))
    groups = {
        (row.rule, row.scope, row.pool): row
        for row in session.scalars(select(AlertGroupRow).execution_options(populate_existing=True))
    }
    made: list[AlertNoticeRow] = []
    for key in sorted({*news, *groups}):
        made += _tell_group(session, at, key, news.get(key, _News()), groups.get(key), rules)
    if made:
        _address(session, made, at)
    return made


def _news(session: Session, active: Sequence[Silence]) -> dict[Group, _News]:
    a = AlertRow
    is_open = a.state != "resolved"
    is_owed = and_(a.notified_at.is_not(None), a.resolved_notified_at.is_(None))
    rows = session.scalars(
        select(a).where(or_(is_open, is_owed)).order_by(a.id).execution_options(populate_existing=True)
    )
    found: dict[Group, _News] = {}
    rows = list(rows)
    wide = fleet_rules(rows)
    for row in rows:
        news = found.setdefault(group_of(row), _News())
        if row.state == "resolved":
            news.resolved.append(row)
            continue
        news.is_active |= row.notified_at is not None
        if row.acknowledged_at is not None or silencing(row, active) is not None or is_inhibited(row, wide):
            continue
        (news.opened if row.notified_at is None else news.told).append(row)
    return found


def fleet_rules(rows: Iterable[AlertRow]) -> frozenset[str]:
    """Return the rules that stand open for the whole fleet; one without data says nothing of pools."""
    return frozenset(r.rule for r in rows if r.scope == "fleet" and r.state in ("open", "acknowledged"))


def is_inhibited(row: AlertRow, wide: frozenset[str]) -> bool:
    """Return whether a pool's alert is part of the fleet's own, which tells of it, silenced or not."""
    return row.scope == "pool" and row.rule in wide


def _tell_group(
    session: Session,
    at: datetime,
    key: Group,
    news: _News,
    group: AlertGroupRow | None,
    rules: Mapping[str, AlertRule],
) -> list[AlertNoticeRow]:
    kind = _kind(at, news, group)
    if kind is None:
        if group is not None and not (news.is_active or news.opened or news.resolved):
            session.delete(group)
        elif group is not None:
            group.due_at = None
        return []
    if group is None:
        group = AlertGroupRow(rule=key[0], scope=key[1], pool=key[2], due_at=None, notified_at=None)
        session.add(group)
    if group.due_at is None:
        group.due_at = _due(at, kind, news, group)
    if at < group.due_at:
        return []
    notice = AlertNoticeRow(
        id=f"msg_{secrets.token_hex(16)}",
        at=at,
        rule=key[0],
        scope=key[1],
        pool=key[2],
        kind=kind,
        body=notice_body(kind, key, at, rules.get(key[0]), [*news.opened, *news.told], news.resolved),
    )
    session.add(notice)
    for row in news.opened:
        row.notified_at = at
    for row in news.resolved:
        row.resolved_notified_at = at
    group.notified_at, group.due_at = at, None
    session.flush()
    return [notice]


def _kind(at: datetime, news: _News, group: AlertGroupRow | None) -> NoticeKind | None:
    """Return what there is to say; None if nothing."""
    if news.opened:
        return "open"
    if news.resolved:
        return "resolved"
    last = None if group is None else group.notified_at
    is_time = last is not None and at >= last + timedelta(seconds=REPEAT_S)
    return "repeat" if news.told and is_time else None


def _due(at: datetime, kind: NoticeKind, news: _News, group: AlertGroupRow) -> datetime:
    if kind == "repeat":
        return at
    due = at + timedelta(seconds=GROUP_WAIT_S)
    if kind == "open" and news.is_active and group.notified_at is not None:
        return max(due, group.notified_at + timedelta(seconds=GROUP_INTERVAL_S))
    return due


def _address(session: Session, notices: Sequence[AlertNoticeRow], at: datetime) -> None:
    """Put a delivery for each webhook beside each notice."""
    names = session.scalars(select(WebhookRow.name).where(WebhookRow.removed_at.is_(None))).all()
    session.add_all(
        AlertDeliveryRow(notice=notice.id, webhook=name, state="pending", attempts=0, next_at=at)
        for notice in notices
        for name in names
    )
    session.flush()
