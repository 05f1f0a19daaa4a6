"""The alert rules in force: those delivered, with what operators changed laid over them.

Changes join the caller's transaction and leave an audit row with the numbers before and after. Prevents:
a rule that no longer fits its own release stopping all alerts, and a threshold nobody can be asked about.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from control import audit
from control.roles import Actor, Permission, require
from control.tables import AlertRuleRow
from fleet.alert_rules import RULES, AlertRule, changed, differences, rule_named
from fleet.errors import InvalidInput

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RuleView:
    """A rule in force, what of it differs from the delivered one, and who said so."""

    rule: AlertRule
    changes: dict[str, Any]
    updated_at: datetime | None
    updated_by: str | None


def rules_in_force(session: Session) -> dict[str, AlertRule]:
    """Return every rule by name, disabled ones included."""
    return {view.rule.name: view.rule for view in rule_views(session)}


def rule_views(session: Session) -> list[RuleView]:
    """Return every rule in the order they are delivered in.

    A stored change that this release does not understand is left out and logged: the rule then stands as
    delivered, which is safer than no rule.
    """
    rows = {row.name: row for row in session.scalars(select(AlertRuleRow))}
    views: list[RuleView] = []
    for name, rule in RULES.items():
        row = rows.get(name)
        if row is None:
            views.append(RuleView(rule, {}, None, None))
            continue
        try:
            made = changed(rule, row.changes)
        except InvalidInput as problem:
            log.warning("stored rule refused", extra={"rule": name, "reason": problem.message})
            made = rule
        views.append(RuleView(made, differences(made), row.updated_at, row.updated_by))
    return views


def change_rule(
    session: Session,
    actor: Actor,
    *,
    name: str,
    values: Mapping[str, Any],
    now: datetime,
    note: str = "",
) -> AlertRule:
    """Set fields of a rule and return it; fields not named keep what they had.

    Raises NotFound for an unknown rule, InvalidInput naming the field that cannot be, Forbidden.
    """
    require(actor, Permission.MANAGE_ALERTS)
    delivered = rule_named(name)
    row = session.get(AlertRuleRow, name, with_for_update=True)
    before = dict(row.changes) if row is not None else {}
    if not values:
        raise InvalidInput("nothing to change was given", hint="Name a field and its value", field="values")
    made = changed(delivered, before | dict(values))
    after = differences(made)
    if row is None:
        row = AlertRuleRow(name=name, changes=after, updated_at=now, updated_by=actor.name)
        session.add(row)
    row.changes, row.updated_at, row.updated_by = after, now, actor.name
    audit.append(
        session, actor, "alert_rule.change", f"rule {name}", note, {"from": before, "to": after}, now
    )
    return made


def reset_rule(session: Session, actor: Actor, *, name: str, now: datetime, note: str = "") -> AlertRule:
    """Make a rule as it is delivered again, and return it. Nothing happens if it is."""
    require(actor, Permission.MANAGE_ALERTS)
    delivered = rule_named(name)
    row = session.get(AlertRuleRow, name, with_for_update=True)
    if row is not None:
        before = dict(row.changes)
        session.delete(row)
        audit.append(
            session, actor, "alert_rule.reset", f"rule {name}", note, {"from": before, "to": {}}, now
        )
    return delivered
