"""Alerts: what each round means for every rule, and the one row a breach has from opening to resolution.

Owns: the rules, their timers (kept in the database, so that a restarted controller forgets nothing) and
the alert rows. Durations are seconds, values in the rule's unit. A row follows its timer's condition,
not single events, so applying a round twice changes nothing. Prevents: an alarm from one bad scrape, a
second alert for the same breach, and an alarm that turns itself off because its node fell silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from control.assess import Assessment, NodeState, Verdict
from control.freshness import Freshness
from control.sample_store import json_fit, plain_text
from control.tables import AlertRow, AlertTimerRow
from fleet.breach import AlarmState, Certainty, Condition, Rule, step
from fleet.errors import InvalidInput
from fleet.health_reading import TARGET_RHO, alarm_value

RHO_HIGH = "rho_high"
NODE_SILENT = "node_silent"
NODE_FROZEN = "node_frozen"
_STUCK_FLAGS = frozenset({"frozen", "stalled"})
_UNRESOLVED = AlertRow.state != "resolved"

Key = tuple[str, str, str]  # rule, scope, subject


@dataclass(frozen=True, slots=True)
class AlertRule:
    """One rule: its thresholds by the period of rounds, how bad it is, what to do about it."""

    name: str
    severity: str  # of nodes; pools and the fleet are always critical
    timing: Callable[[float], Rule]
    runbook: str  # heading in docs/control.md


def _rho_timing(period_s: float) -> Rule:
    """More than 120 s above 0.85 opens, 180 s below 0.75 resolves; never fewer than two rounds."""
    return Rule(
        up=TARGET_RHO,
        down=0.75,
        hold_up_s=max(120.0, period_s),
        hold_down_s=max(180.0, period_s),
        max_gap_s=3 * period_s,
        period_s=period_s,
    )


def _silent_timing(period_s: float) -> Rule:
    """More than a minute (at least three rounds) without a sample opens; two samples resolve."""
    return Rule(
        up=0.5,
        down=0.5,
        hold_up_s=max(60.0, 2 * period_s),
        hold_down_s=2 * period_s,
        max_gap_s=3 * period_s,
        period_s=period_s,
    )


def _frozen_timing(period_s: float) -> Rule:
    """The flag itself took three pages: it opens at once, and resolves after three that moved."""
    return Rule(
        up=0.5, down=0.5, hold_up_s=0.0, hold_down_s=3 * period_s, max_gap_s=3 * period_s, period_s=period_s
    )


RULES: dict[str, AlertRule] = {
    rule.name: rule
    for rule in (
        AlertRule(RHO_HIGH, "warning", _rho_timing, "rho-high"),
        AlertRule(NODE_SILENT, "warning", _silent_timing, "node-silent"),
        AlertRule(NODE_FROZEN, "critical", _frozen_timing, "node-frozen"),
    )
}


@dataclass(frozen=True, slots=True)
class Observation:
    """What one rule sees of one subject in one round. `value` None: nobody knows."""

    rule: str
    scope: str
    subject: str
    value: float | None
    summary: str
    certainty: Certainty = Certainty.CONFIRMED
    detail: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def key(self) -> Key:
        return self.rule, self.scope, self.subject


@dataclass(frozen=True, slots=True)
class Change:
    """An alert opened, went stale, came back or was resolved."""

    rule: str
    scope: str
    subject: str
    state: str


def observe(assessment: Assessment) -> list[Observation]:
    """Return what every rule sees in a round. Nodes in maintenance are no subject of any rule."""
    resting = {s.node.name for s in assessment.nodes if s.node.state == "maintenance"}
    found = [
        _rho(verdict)
        for verdict in assessment.verdicts
        if verdict.scope != "node" or verdict.name not in resting
    ]
    for state in assessment.nodes:
        if state.node.name not in resting:
            found += [_silent(state), _frozen(state)]
    return found


def _rho(verdict: Verdict) -> Observation:
    health = verdict.health
    value, certainty = alarm_value(health)
    who = verdict.name if verdict.scope == "node" else f"pool {verdict.name}"
    subject = "the fleet" if verdict.scope == "fleet" else who
    shown = "unknown" if value is None else f"{value:.2f}"
    if certainty is Certainty.UNCONFIRMED:
        shown += " (unconfirmed)"
    return Observation(
        RHO_HIGH,
        verdict.scope,
        verdict.name,
        value,
        f"rho of {subject} is {shown}; it was above {TARGET_RHO:g} for more than 2 minutes",
        certainty,
        {
            "rho_low": health.rho.low,
            "rho_high": health.rho.high,
            "grade": health.rho.grade,
            "explanation": list(health.explanation),
            "certainty": certainty.value,
        },
    )


def _silent(state: NodeState) -> Observation:
    has_sample = state.reason is None and state.age_s == 0.0
    why = state.reason or "not asked"
    return Observation(
        NODE_SILENT,
        "node",
        state.node.name,
        0.0 if has_sample else 1.0,
        f"{state.node.name} gives no metrics: {why}",
        detail={"reason": state.reason, "detail": state.detail[:300], "age_s": state.age_s},
    )


def _frozen(state: NodeState) -> Observation:
    stuck = sorted(_STUCK_FLAGS & set(state.flags))
    has_sample = state.freshness is Freshness.FRESH and state.age_s == 0.0
    value = None if not has_sample else 1.0 if stuck else 0.0
    return Observation(
        NODE_FROZEN,
        "node",
        state.node.name,
        value,
        f"{state.node.name} has work and its counters stand still ({', '.join(stuck) or 'moving'})",
        detail={"flags": list(state.flags)},
    )


def apply(
    session: Session, at: datetime, period_s: float, observations: Sequence[Observation]
) -> list[Change]:
    """Advance every timer by one round and bring the alert rows in line, in the caller's transaction.

    Subjects that are gone have their alerts resolved. Timers at rest are not stored.
    """
    timers = {
        (row.rule, row.scope, row.subject): _state(row.machine)
        for row in session.scalars(select(AlertTimerRow).execution_options(populate_existing=True))
    }
    unresolved = select(AlertRow).where(_UNRESOLVED).with_for_update()
    alerts = {
        (row.rule, row.scope, row.subject): row
        for row in session.scalars(unresolved.execution_options(populate_existing=True))
    }
    changes: list[Change] = []
    kept: dict[Key, AlarmState] = {}
    for seen in observations:
        rule = RULES[seen.rule].timing(period_s)
        before = timers.get(seen.key, AlarmState())
        after, _ = step(before, rule, at.timestamp(), seen.value, seen.certainty)
        if not _is_at_rest(after):
            kept[seen.key] = after
        changes += _follow(session, seen, after, rule, alerts.get(seen.key), at)
    watched = {seen.key for seen in observations}
    changes += [_resolve(row, at, "no longer watched") for key, row in alerts.items() if key not in watched]
    _store_timers(session, at, timers, kept)
    return changes


def count_unresolved(session: Session) -> int:
    """Return how many alerts are open, acknowledged or stale."""
    session.flush()
    return session.scalar(select(func.count()).select_from(AlertRow).where(_UNRESOLVED)) or 0


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
    for rule, scope, subject in set(before) - kept.keys():
        session.execute(delete(t).where(t.rule == rule, t.scope == scope, t.subject == subject))
    if not kept:
        return
    rows = [
        {"rule": rule, "scope": scope, "subject": subject, "machine": state.as_dict(), "updated_at": at}
        for (rule, scope, subject), state in sorted(kept.items())
    ]
    statement = insert(t).values(rows)
    session.execute(
        statement.on_conflict_do_update(
            index_elements=[t.rule, t.scope, t.subject],
            set_={"machine": statement.excluded.machine, "updated_at": statement.excluded.updated_at},
        )
    )


def _follow(
    session: Session, seen: Observation, state: AlarmState, rule: Rule, row: AlertRow | None, at: datetime
) -> list[Change]:
    """Bring the alert row of one subject in line with its timer."""
    if state.condition is Condition.OK:
        return [] if row is None else [_resolve(row, at, "recovered")]
    if row is None:
        session.execute(
            insert(AlertRow)
            .values(
                rule=seen.rule,
                scope=seen.scope,
                subject=seen.subject,
                state="open",
                severity=RULES[seen.rule].severity if seen.scope == "node" else "critical",
                opened_at=at,
                updated_at=at,
                value=seen.value,
                threshold=rule.up,
                summary=plain_text(seen.summary, 500),
                detail=_detail(seen),
            )
            .on_conflict_do_nothing()
        )
        return [Change(seen.rule, seen.scope, seen.subject, "open")]
    wanted = "acknowledged" if row.acknowledged_at is not None else "open"
    if state.condition is Condition.STALE:
        wanted = "stale"
    changes = [] if row.state == wanted else [Change(seen.rule, seen.scope, seen.subject, wanted)]
    row.state, row.updated_at = wanted, at
    if seen.value is not None and seen.value > rule.down:
        row.value, row.summary = seen.value, seen.summary[:500]
        row.detail = _detail(seen)
    elif seen.value is not None:
        row.value = seen.value
    return changes


def _detail(seen: Observation) -> dict[str, Any]:
    return {name: json_fit(v) for name, v in seen.detail.items()} | {"runbook": RULES[seen.rule].runbook}


def _resolve(row: AlertRow, at: datetime, why: str) -> Change:
    row.state, row.resolved_at, row.updated_at = "resolved", at, at
    row.detail = row.detail | {"resolved": why}
    return Change(row.rule, row.scope, row.subject, "resolved")
