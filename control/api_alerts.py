"""The calls of the API about alerts, silences, rules and webhooks: what they take, do and answer.

Bodies are checked by models that refuse unknown fields; lengths are seconds. Writes take an idempotency
key. Prevents: a second set of rules beside the pages' and the command line's, and a description of calls
that is not the one that answers.
"""

from __future__ import annotations

from typing import Any

from control.alert_json import book_json, rule_json, webhook_json
from control.alert_rule_store import change_rule, reset_rule, rule_views
from control.alert_silences import add_silence, end_silence
from control.api_calls import Asked, Body, Call, NoteBody
from control.commands_fleet import acknowledge_alert
from control.queries_alerts import alert_book, webhook_views
from control.webhooks import add_webhook, remove_webhook, retry_dead, send_test
from fleet.errors import InvalidInput

MAX_ID = 2**62


class SilenceBody(Body):
    """Whom to be silent about, for how long, and why."""

    rule: str | None = None
    scope: str | None = None
    subject: str | None = None
    pool: str | None = None
    length_s: float
    reason: str


class RuleBody(Body):
    """What to change of a rule; see docs/alerts.md."""

    open_at: float | None = None
    resolve_at: float | None = None
    open_after_s: float | None = None
    resolve_after_s: float | None = None
    severity: str | None = None
    is_enabled: bool | None = None
    note: str = ""


class WebhookBody(Body):
    """Where notices go, and the name of the file with its secret."""

    name: str
    url: str
    kind: str = "generic"
    secret_name: str | None = None


def _number(text: str, field: str) -> int:
    if not text.isdecimal() or not text.isascii() or not 0 < int(text[:20]) < MAX_ID:
        raise InvalidInput(f"{text[:40]!r} is not a number of ours", hint="Send an integer", field=field)
    return int(text)


def _alerts(asked: Asked) -> dict[str, Any]:
    book = alert_book(asked.session, asked.now)
    return book_json(book, with_resolved=asked.query.get("resolved") == "true")


def _acknowledge(asked: Asked) -> dict[str, Any]:
    number = _number(asked.path["alert_id"], "alert_id")
    acknowledge_alert(asked.session, asked.actor, alert_id=number, now=asked.now, note=asked.body.note)
    return {"alert": number, "acknowledged_by": asked.actor.name}


def _silence(asked: Asked) -> dict[str, Any]:
    given = asked.body.model_dump()
    return {"silence": add_silence(asked.session, asked.actor, now=asked.now, **given)}


def _unsilence(asked: Asked) -> dict[str, Any]:
    number = _number(asked.path["silence_id"], "silence_id")
    end_silence(asked.session, asked.actor, silence_id=number, now=asked.now)
    return {"silence": number, "ended_at": asked.now.isoformat()}


def _rules(asked: Asked) -> dict[str, Any]:
    return {"rules": [rule_json(view) for view in rule_views(asked.session)]}


def _change_rule(asked: Asked) -> dict[str, Any]:
    given = asked.body.model_dump(exclude_none=True)
    note = given.pop("note", "")
    name = asked.path["name"]
    change_rule(asked.session, asked.actor, name=name, values=given, now=asked.now, note=note)
    return _rule(asked, name)


def _reset_rule(asked: Asked) -> dict[str, Any]:
    reset_rule(asked.session, asked.actor, name=asked.path["name"], now=asked.now)
    return _rule(asked, asked.path["name"])


def _rule(asked: Asked, name: str) -> dict[str, Any]:
    asked.session.flush()
    found = next(rule_json(view) for view in rule_views(asked.session) if view.rule.name == name)
    return found | {"updated_at": None if found["updated_at"] is None else found["updated_at"].isoformat()}


def _webhooks(asked: Asked) -> dict[str, Any]:
    return {"webhooks": [webhook_json(view) for view in webhook_views(asked.session)]}


def _add_webhook(asked: Asked) -> dict[str, Any]:
    given = asked.body
    add_webhook(
        asked.session,
        asked.actor,
        name=given.name,
        url=given.url,
        kind=given.kind,
        secret_name=given.secret_name,
        now=asked.now,
    )
    return {"webhook": given.name}


def _remove_webhook(asked: Asked) -> dict[str, Any]:
    remove_webhook(asked.session, asked.actor, name=asked.path["name"], now=asked.now)
    return {"webhook": asked.path["name"], "removed_at": asked.now.isoformat()}


def _test_webhook(asked: Asked) -> dict[str, Any]:
    return {"notice": send_test(asked.session, asked.actor, name=asked.path["name"], now=asked.now)}


def _retry_webhook(asked: Asked) -> dict[str, Any]:
    return {"notices": retry_dead(asked.session, asked.actor, name=asked.path["name"], now=asked.now)}


CALLS: tuple[Call, ...] = (
    Call(
        "GET", "/api/v1/alerts", "Unresolved alerts and silences; with resolved=true a week's more", _alerts
    ),
    Call(
        "POST",
        "/api/v1/alerts/{alert_id}/acknowledge",
        "Say that you look after it",
        _acknowledge,
        NoteBody,
    ),
    Call(
        "POST",
        "/api/v1/silences",
        "Tell nobody about matching alerts for a while",
        _silence,
        SilenceBody,
        201,
    ),
    Call("DELETE", "/api/v1/silences/{silence_id}", "End a silence before its time", _unsilence),
    Call("GET", "/api/v1/alert-rules", "The rules in force", _rules),
    Call("PUT", "/api/v1/alert-rules/{name}", "Change fields of a rule", _change_rule, RuleBody),
    Call("DELETE", "/api/v1/alert-rules/{name}", "Make a rule as it is delivered again", _reset_rule),
    Call("GET", "/api/v1/webhooks", "Where notices go, and how it went", _webhooks),
    Call("POST", "/api/v1/webhooks", "Send notices there from now on", _add_webhook, WebhookBody, 201),
    Call("DELETE", "/api/v1/webhooks/{name}", "Send it nothing more", _remove_webhook),
    Call("POST", "/api/v1/webhooks/{name}/test", "Put a test notice in line", _test_webhook, code=202),
    Call("POST", "/api/v1/webhooks/{name}/retry", "Try again what was given up", _retry_webhook, code=202),
)
