"""What the alerts page changes: one short transaction a click, under the role the person has then.

Prevents: a second way to acknowledge that checks something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from control import alert_rule_store, alert_silences, commands_fleet, webhooks
from control.roles import Actor
from dashboard.actions import change
from fleet.errors import Conflict


def acknowledge(alert_id: int) -> None:
    """Say that somebody looks after an alert."""
    change(lambda s, actor, now: commands_fleet.acknowledge_alert(s, actor, alert_id=alert_id, now=now))


def acknowledge_all(alert_ids: Sequence[int]) -> None:
    """Say that somebody looks after several alerts; those that are over by now are left out."""

    def work(session: Any, actor: Actor, now: datetime) -> None:
        for alert_id in alert_ids:
            with suppress(Conflict):  # resolved since the page was drawn
                commands_fleet.acknowledge_alert(session, actor, alert_id=alert_id, now=now)

    change(work)


def silence(matchers: Mapping[str, str | None], *, length_s: float, reason: str) -> int:
    """Tell nobody about matching alerts for a while; return the silence's number."""
    return change(
        lambda s, actor, now: alert_silences.add_silence(
            s, actor, length_s=length_s, reason=reason, now=now, **matchers
        )
    )


def unsilence(silence_id: int) -> None:
    """End a silence before its time."""
    change(lambda s, actor, now: alert_silences.end_silence(s, actor, silence_id=silence_id, now=now))


def change_rule(name: str, values: Mapping[str, Any], *, note: str) -> None:
    """Change fields of a rule."""
    change(
        lambda s, actor, now: alert_rule_store.change_rule(
            s, actor, name=name, values=values, now=now, note=note
        )
    )


def reset_rule(name: str) -> None:
    """Make a rule as it is delivered again."""
    change(lambda s, actor, now: alert_rule_store.reset_rule(s, actor, name=name, now=now))


def test_webhook(name: str) -> str:
    """Put a test notice in line and return its id."""
    return change(lambda s, actor, now: webhooks.send_test(s, actor, name=name, now=now))


def retry_webhook(name: str) -> int:
    """Try again what was given up for a webhook; return how many notices."""
    return change(lambda s, actor, now: webhooks.retry_dead(s, actor, name=name, now=now))
