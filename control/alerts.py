"""Alerts: one row for each breach, from opening to resolution, kept in line with its timer.

Owns: the timers (in the database, so that a restarted controller forgets nothing), the alert rows, and
the moment people are told. A row follows its timer's condition, not single events, so applying a round
twice changes nothing. Prevents: an alarm from one bad scrape, a second alert for the same breach, and an
alarm that turns itself off because its source fell silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import delete, func, select, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from control.alert_groups import tell
from control.alert_observations import Key, Observation, observe
from control.alert_rule_store import rules_in_force
from control.alert_subjects import is_gone
from control.sample_store import json_fit, plain_text
from control.tables import AlertRow, AlertTimerRow
from fleet.alert_rules import RULES, AlertRule
from fleet.breach import AlarmState, Condition, step
from fleet.errors import InvalidInput

__all__ = ["Change", "Observation", "apply", "count_unresolved", "observe"]

T = TypeVar("T")
#: Timers in one statement: five parameters each, and Postgres takes 65,535 in one.
TIMERS_AT_ONCE = 2_000
_UNRESOLVED = AlertRow.state != "resolved"


@dataclass(frozen=True, slots=True)
class Change:
    """An alert opened, went stale, came back or was resolved."""

    rule: str
    scope: str
    subject: str
    state: str


@dataclass(frozen=True, slots=True)
class _Round:
    """One round being applied."""

    session: Session
    at: datetime
    period_s: float
    rules: Mapping[str, AlertRule]


def apply(
    session: Session, at: datetime, period_s: float, observations: Sequence[Observation]
) -> list[Change]:
    """Advance every timer by one round, bring the alert rows in line and write the notices that are due.

    All in the caller's transaction. A subject nobody observed in this round is unknown, unless it is gone
    or its rule is off: then its alert is resolved. Timers at rest are not stored.
    """
    now = _Round(session, at, period_s, rules_in_force(session))
    timers = {
        (row.rule, row.scope, row.subject): _state(row.machine)
        for row in session.scalars(select(AlertTimerRow).execution_options(populate_existing=True))
    }
    unresolved = select(AlertRow).where(_UNRESOLVED).with_for_update()
    alerts = {
        (row.rule, row.scope, row.subject): row
        for row in session.scalars(unresolved.execution_options(populate_existing=True))
    }
    seen = {o.key: o for o in observations if _is_watched(now, o.rule, o.scope)}
    changes: list[Change] = []
    for key in {*timers, *alerts} - seen.keys():
        why = _why_over(now, key)
        if why is None:
            seen[key] = _unseen(key, alerts.get(key))
        elif key in alerts:
            changes.append(_resolve(alerts[key], at, why))
    kept: dict[Key, AlarmState] = {}
    opened: list[dict[str, Any]] = []
    for key, observation in seen.items():
        before = timers.get(key, AlarmState())
        after = _advance(now, before, observation)
        if not _is_at_rest(after):
            kept[key] = after
        if key not in alerts and after.condition is not Condition.OK:
            opened.append(_opened(now, observation))
            changes.append(Change(*key, "open"))
        elif key in alerts:
            changes += _follow(now, observation, after, alerts[key])
    if opened:
        session.execute(insert(AlertRow).on_conflict_do_nothing(), opened)
    _store_timers(session, at, timers, kept)
    session.flush()
    tell(session, at, now.rules)
    return changes


def count_unresolved(session: Session) -> int:
    """Return how many alerts are open, acknowledged or stale."""
    session.flush()
    return session.scalar(select(func.count()).select_from(AlertRow).where(_UNRESOLVED)) or 0


def _is_watched(now: _Round, rule: str, scope: str) -> bool:
    known = now.rules.get(rule)
    return known is not None and known.is_enabled and scope in known.scopes


def _why_over(now: _Round, key: Key) -> str | None:
    """Return why a subject nobody observed is watched no more; None if it is only unknown."""
    rule, scope, subject = key
    if not _is_watched(now, rule, scope):
        return "the rule is off"
    return "no longer watched" if is_gone(now.session, rule, scope, subject) else None


def _unseen(key: Key, row: AlertRow | None) -> Observation:
    return Observation(
        *key, None, "" if row is None else row.summary, pool=None if row is None else row.pool
    )


def _advance(now: _Round, before: AlarmState, seen: Observation) -> AlarmState:
    rule = now.rules[seen.rule]
    value = None if seen.value is None else rule.signed(seen.value)
    after, _ = step(before, rule.timing(now.period_s), now.at.timestamp(), value, seen.certainty)
    return after


def _state(machine: dict[str, Any]) -> AlarmState:
    """Read a stored timer; one written by another release starts anew."""
    try:
        return AlarmState.from_dict(machine)
    except InvalidInput:
        return AlarmState()


def _is_at_rest(state: AlarmState) -> bool:
    return state.condition is Condition.OK and state.above_s == 0.0


def _store_timers(
    session: Session, at: datetime, before: Iterable[Key], kept: dict[Key, AlarmState]
) -> None:
    t = AlertTimerRow
    for gone in _batches(sorted(set(before) - kept.keys())):
        session.execute(delete(t).where(tuple_(t.rule, t.scope, t.subject).in_(gone)))
    rows = [
        {"rule": rule, "scope": scope, "subject": subject, "machine": state.as_dict(), "updated_at": at}
        for (rule, scope, subject), state in sorted(kept.items())
    ]
    for batch in _batches(rows):
        statement = insert(t).values(batch)
        session.execute(
            statement.on_conflict_do_update(
                index_elements=[t.rule, t.scope, t.subject],
                set_={"machine": statement.excluded.machine, "updated_at": statement.excluded.updated_at},
            )
        )


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), TIMERS_AT_ONCE):
        yield items[first : first + TIMERS_AT_ONCE]


def _follow(now: _Round, seen: Observation, state: AlarmState, row: AlertRow) -> list[Change]:
    """Bring the alert row of one subject in line with its timer."""
    if state.condition is Condition.OK:
        return [_resolve(row, now.at, "recovered")]
    rule = now.rules[seen.rule]
    wanted = "acknowledged" if row.acknowledged_at is not None else "open"
    if state.condition is Condition.STALE:
        wanted = "stale"
    changes = [] if row.state == wanted else [Change(seen.rule, seen.scope, seen.subject, wanted)]
    row.state, row.updated_at = wanted, now.at
    if seen.value is not None and rule.signed(seen.value) > rule.signed(rule.resolve_at):
        row.value, row.summary = seen.value, plain_text(seen.summary, 500) or row.summary
        row.detail = _detail(seen)
    elif seen.value is not None:
        row.value = seen.value
    return changes


def _opened(now: _Round, seen: Observation) -> dict[str, Any]:
    rule = now.rules[seen.rule]
    return {
        "rule": seen.rule,
        "scope": seen.scope,
        "subject": seen.subject,
        "state": "open",
        "severity": rule.severity_of(seen.scope).value,
        "opened_at": now.at,
        "updated_at": now.at,
        "value": seen.value,
        "threshold": rule.open_at,
        "summary": plain_text(seen.summary, 500),
        "detail": _detail(seen),
        "pool": seen.pool,
    }


def _detail(seen: Observation) -> dict[str, Any]:
    return {name: json_fit(v) for name, v in seen.detail.items()} | {"runbook": runbook_of(seen.rule)}


def runbook_of(rule: str) -> str:
    """Return the path of a rule's runbook in this repository."""
    return f"docs/runbooks/{rule}.md" if rule in RULES else "docs/runbooks/README.md"


def _resolve(row: AlertRow, at: datetime, why: str) -> Change:
    row.state, row.resolved_at, row.updated_at = "resolved", at, at
    row.detail = row.detail | {"resolved": why}
    return Change(row.rule, row.scope, row.subject, "resolved")
