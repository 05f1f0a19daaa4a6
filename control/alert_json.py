"""Alerts, silences and rules as scripts read them: the one JSON form of command line and API.

Times are ISO 8601, durations seconds, a value nobody knows is null. Prevents: two spellings of one field.
"""

from __future__ import annotations

from typing import Any

from control.alert_rule_store import RuleView
from control.alerts import runbook_of
from control.queries_alerts import AlertBook, AlertEntry, WebhookView


def rule_json(view: RuleView) -> dict[str, Any]:
    """Return a rule as scripts read it."""
    rule = view.rule
    return {
        "name": rule.name,
        "title": rule.title,
        "unit": rule.unit,
        "scopes": list(rule.scopes),
        "direction": rule.direction.value,
        "severity": rule.severity.value,
        "open_at": rule.open_at,
        "resolve_at": rule.resolve_at,
        "open_after_s": rule.open_after_s,
        "resolve_after_s": rule.resolve_after_s,
        "is_enabled": rule.is_enabled,
        "changes": view.changes,
        "updated_at": view.updated_at,
        "updated_by": view.updated_by,
        "runbook": runbook_of(rule.name),
    }


def alert_json(alert: AlertEntry) -> dict[str, Any]:
    """Return an alert as scripts read it."""
    return {
        "id": alert.id,
        "rule": alert.rule,
        "scope": alert.scope,
        "subject": alert.subject,
        "pool": alert.pool,
        "state": alert.state,
        "severity": alert.severity,
        "opened_at": alert.opened_at,
        "acknowledged_at": alert.acknowledged_at,
        "acknowledged_by": alert.acknowledged_by,
        "resolved_at": alert.resolved_at,
        "notified_at": alert.notified_at,
        "value": alert.value,
        "threshold": alert.threshold,
        "summary": alert.summary,
        "silence": None if alert.silence is None else alert.silence.id,
        "runbook": runbook_of(alert.rule),
    }


def book_json(book: AlertBook, *, with_resolved: bool) -> dict[str, Any]:
    """Return alerts and silences as scripts read them."""
    listed = [*book.unresolved, *(book.resolved if with_resolved else ())]
    return {
        "alerts": [alert_json(alert) for alert in listed],
        "silences": [
            {
                "id": s.id,
                "rule": s.rule,
                "scope": s.scope,
                "subject": s.subject,
                "pool": s.pool,
                "reason": s.reason,
                "created_by": s.created_by,
                "created_at": s.created_at,
                "expires_at": s.expires_at,
            }
            for s in book.silences
        ],
    }


def webhook_json(view: WebhookView) -> dict[str, Any]:
    """Return a webhook as scripts read it."""
    return {
        "name": view.name,
        "kind": view.kind,
        "url": view.url,
        "secret_name": view.secret_name,
        "last_ok_at": view.last_ok_at,
        "last_error": view.last_error,
        "last_error_at": view.last_error_at,
        "pending": view.pending,
        "dead": view.dead,
    }
