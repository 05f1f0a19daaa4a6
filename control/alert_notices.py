"""What a notice says: the frozen body, and its two forms on the wire.

Pure. The generic form is one JSON object with `type`, `timestamp` and `data` (Standard Webhooks
specification 1.0); the Alertmanager form is the array of `POST /api/v2/alerts` (Alertmanager's OpenAPI
description, postableAlerts). Times are ISO 8601 in UTC. Prevents: a notice that says something else at its
second delivery, and one that says what is wrong but not what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from urllib.parse import urlencode

from control.tables import AlertRow
from fleet.alert_rules import AlertRule

NoticeKind = Literal["open", "resolved", "repeat", "test"]
#: Alerts listed in one notice; the rest is counted.
MAX_LISTED = 100
SUBJECTS_NAMED = 5
#: An open alert ends for an Alertmanager this long after it was last told; a change of leader takes less.
ALERTMANAGER_ENDS_AFTER_S = 900.0


def notice_body(
    kind: NoticeKind,
    group: tuple[str, str, str],
    at: datetime,
    rule: AlertRule | None,
    firing: Sequence[AlertRow],
    resolved: Sequence[AlertRow],
) -> dict[str, Any]:
    """Return the body of a notice about one group of alerts."""
    name, scope, pool = group
    shown = (firing or resolved)[0] if (firing or resolved) else None
    listed = [alert_entry(row, rule) for row in [*firing, *resolved][:MAX_LISTED]]
    return {
        "type": f"alert.{kind}",
        "timestamp": iso(at),
        "data": {
            "rule": name,
            "scope": scope,
            "pool": pool or None,
            "title": name if rule is None else rule.title,
            "severity": None if shown is None else shown.severity,
            "summary": summary(firing, resolved),
            "firing": len(firing),
            "resolved": len(resolved),
            "runbook": runbook_path(name),
            "alerts": listed,
            "omitted": len(firing) + len(resolved) - len(listed),
        },
    }


def alert_entry(row: AlertRow, rule: AlertRule | None) -> dict[str, Any]:
    """Return one alert as a notice lists it."""
    return {
        "id": row.id,
        "rule": row.rule,
        "scope": row.scope,
        "subject": row.subject,
        "pool": row.pool,
        "state": row.state,
        "severity": row.severity,
        "opened_at": iso(row.opened_at),
        "resolved_at": None if row.resolved_at is None else iso(row.resolved_at),
        "value": row.value,
        "threshold": row.threshold,
        "unit": None if rule is None else rule.unit,
        "summary": row.summary,
        "page": alert_path(row.id),
        "runbook": runbook_path(row.rule),
    }


def summary(firing: Sequence[AlertRow], resolved: Sequence[AlertRow]) -> str:
    """Return one sentence: what one alert says, or how many there are and of whom."""
    if len(firing) == 1 and not resolved:
        return firing[0].summary
    if len(resolved) == 1 and not firing:
        return f"over: {resolved[0].summary}"
    parts = [f"{len(firing)} firing: {_subjects(firing)}"] if firing else []
    parts += [f"{len(resolved)} over: {_subjects(resolved)}"] if resolved else []
    return "; ".join(parts)


def _subjects(rows: Sequence[AlertRow]) -> str:
    names = [row.subject or "the fleet" for row in rows]
    more = len(names) - SUBJECTS_NAMED
    return ", ".join(names[:SUBJECTS_NAMED]) + (f" and {more} more" if more > 0 else "")


def alert_path(alert_id: int) -> str:
    """Return an alert's address on the dashboard, without its host."""
    return f"/alerts?{urlencode({'alert': alert_id})}"


def runbook_path(rule: str) -> str:
    """Return the address of a rule's runbook on the dashboard, without its host."""
    return f"/alerts?{urlencode({'runbook': rule})}"


def with_links(body: Mapping[str, Any], public_url: str | None) -> dict[str, Any]:
    """Return a body whose paths on the dashboard are whole addresses, where ours is known."""
    if public_url is None:
        return dict(body)
    base = public_url.rstrip("/")
    data = dict(body["data"])
    data["runbook"] = base + str(data["runbook"])
    data["alerts"] = [
        {**alert, "page": base + alert["page"], "runbook": base + alert["runbook"]}
        for alert in data["alerts"]
    ]
    return {**body, "data": data}


def alertmanager_alerts(
    alerts: Sequence[Mapping[str, Any]], now: datetime, public_url: str | None
) -> list[dict[str, Any]]:
    """Return entries of notices as `POST /api/v2/alerts` takes them.

    The labels say which alert it is and never change; what may change stands in the annotations. An open
    alert ends 15 minutes from now unless told again.
    """
    return [_alertmanager_alert(alert, now, public_url) for alert in alerts]


def _alertmanager_alert(alert: Mapping[str, Any], now: datetime, public_url: str | None) -> dict[str, Any]:
    base = "" if public_url is None else public_url.rstrip("/")
    labels = {
        "alertname": alert["rule"],
        "service": "rhodeck",
        "severity": alert["severity"],
        "scope": alert["scope"],
        "subject": alert["subject"] or "fleet",
        "pool": alert["pool"],
    }
    ends = alert["resolved_at"] or iso(now + timedelta(seconds=ALERTMANAGER_ENDS_AFTER_S))
    made: dict[str, Any] = {
        "labels": {name: value for name, value in labels.items() if value},
        "annotations": {"summary": alert["summary"], "runbook_url": base + alert["runbook"]},
        "startsAt": alert["opened_at"],
        "endsAt": ends,
    }
    if base:
        made["generatorURL"] = base + alert["page"]
    return made


def iso(at: datetime) -> str:
    """Return a time as notices carry it: "2026-11-29T17:00:00.000Z"."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
