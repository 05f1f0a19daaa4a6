"""The alert rules as data: what each watches, when it opens and resolves, how bad it is.

Pure. Durations are seconds, thresholds in the rule's own unit; a rule opens when its value lies strictly
beyond `open_at` for longer than `open_after_s` and resolves when it lies strictly back of `resolve_at` for
`resolve_after_s`. Operators change numbers, never the list. Prevents: a threshold hidden in code, a rule
without hysteresis that flaps, and a rule nobody wrote a runbook for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from fleet.breach import Rule
from fleet.errors import InvalidInput, NotFound

#: Unit of rules whose value is 1 or 0.
YES_NO = "yes or no"
MAX_HOLD_S = 7 * 86_400.0
MAX_THRESHOLD = 1e9


class Severity(StrEnum):
    """How soon somebody has to look."""

    CRITICAL = "critical"  # now, also at night
    WARNING = "warning"  # in working hours


class Direction(StrEnum):
    """On which side of the threshold the trouble is."""

    ABOVE = "above"
    BELOW = "below"


@dataclass(frozen=True, slots=True)
class AlertRule:
    """One rule. `open_rounds` and `resolve_rounds` are floors for the holds, in scrape periods."""

    name: str
    title: str  # a sentence's subject: "rho above target"
    unit: str
    scopes: tuple[str, ...]  # what it can be about: fleet, pool, node, tier, tenant, gateway
    severity: Severity  # of one part; a pool or the fleet is always critical where `is_sum_worse`
    open_at: float
    resolve_at: float
    open_after_s: float
    resolve_after_s: float
    open_rounds: int = 0
    resolve_rounds: int = 1
    direction: Direction = Direction.ABOVE
    is_sum_worse: bool = False
    is_enabled: bool = True

    def timing(self, period_s: float) -> Rule:
        """Return the machine's thresholds and holds for rounds `period_s` apart.

        The machine knows only "too high": for a rule that watches a floor all signs are turned, so hand it
        `signed(value)`.
        """
        return Rule(
            up=self.signed(self.open_at),
            down=self.signed(self.resolve_at),
            hold_up_s=max(self.open_after_s, self.open_rounds * period_s),
            hold_down_s=max(self.resolve_after_s, self.resolve_rounds * period_s),
            max_gap_s=3 * period_s,
            period_s=period_s,
        )

    @property
    def opens_words(self) -> str:
        """When it opens, in words: "above 0.85 ratio for more than 120 s", "yes at once"."""
        hold = "at once"
        if self.open_after_s:
            hold = f"for more than {self.open_after_s:g} s"
        elif self.open_rounds:
            hold = f"for more than {self.open_rounds} round{'s' if self.open_rounds > 1 else ''}"
        if self.unit == YES_NO:
            return f"yes {hold}"
        return f"{self.direction.value} {self.open_at:g} {self.unit} {hold}"

    @property
    def resolves_words(self) -> str:
        """When it resolves, in words."""
        hold = (
            f"for {self.resolve_after_s:g} s"
            if self.resolve_after_s
            else f"for {self.resolve_rounds} round{'s' if self.resolve_rounds != 1 else ''}"
        )
        if self.unit == YES_NO:
            return f"no {hold}"
        back = Direction.BELOW if self.direction is Direction.ABOVE else Direction.ABOVE
        return f"{back.value} {self.resolve_at:g} {hold}"

    @property
    def severity_words(self) -> str:
        """How bad it is, in words: "warning; pool and fleet critical"."""
        worse = [s for s in self.scopes if self.severity_of(s) is not self.severity]
        return self.severity.value + (f"; {' and '.join(worse)} critical" if worse else "")

    def signed(self, value: float) -> float:
        """Return `value` such that larger is worse."""
        return value if self.direction is Direction.ABOVE else -value

    def severity_of(self, scope: str) -> Severity:
        """Return how bad an alert about something of this scope is."""
        return Severity.CRITICAL if self.is_sum_worse and scope in ("pool", "fleet") else self.severity


#: What an operator may change of a rule.
CHANGEABLE = (
    "open_at",
    "resolve_at",
    "open_after_s",
    "resolve_after_s",
    "severity",
    "is_enabled",
)

RHO_HIGH = "rho_high"
SATURATION = "saturation"
SLO_BURN = "slo_burn"
KV_EXHAUSTION = "kv_exhaustion"
NODE_FROZEN = "node_frozen"
NODE_SILENT = "node_silent"
HOT_NODE = "hot_node"
STARVATION = "starvation"
UNFAIRNESS = "unfairness"
RETRY_STORM = "retry_storm"
BURST = "burst"
CAPACITY_DRIFT = "capacity_drift"
POLICY_DRIFT = "policy_drift"
BUDGET_HALF = "budget_half"
BUDGET = "budget"
BUDGET_SPENT = "budget_spent"
UNSTABLE = "unstable"
EXPORT_FAILING = "export_failing"

#: The rules about budgets, in the order in which they open.
BUDGET_RULES = (BUDGET_HALF, BUDGET, BUDGET_SPENT)
_LOAD = ("node", "pool", "fleet")
_WARNING, _CRITICAL = Severity.WARNING, Severity.CRITICAL

#: Every rule by name, with the numbers in force until an operator changes them.
RULES: dict[str, AlertRule] = {
    rule.name: rule
    for rule in (
        AlertRule(
            RHO_HIGH, "Utilization above target", "ratio", _LOAD, _WARNING, 0.85, 0.75, 120.0, 180.0, 1,
            is_sum_worse=True,
        ),
        AlertRule(
            SATURATION, "Engines saturated", YES_NO, _LOAD, _WARNING, 0.5, 0.5, 120.0, 180.0, 2,
            is_sum_worse=True,
        ),
        AlertRule(
            SLO_BURN, "Error budget burns too fast", "times the limit", ("fleet", "tier"), _CRITICAL,
            1.0, 1.0, 0.0, 60.0, 1, 2,
        ),
        AlertRule(
            KV_EXHAUSTION, "KV cache about to run out", "ratio", ("node",), _WARNING,
            0.99, 0.95, 60.0, 180.0, 3, 3,
        ),
        AlertRule(
            NODE_FROZEN, "Engine stands still", YES_NO, ("node",), _CRITICAL,
            0.5, 0.5, 0.0, 0.0, 0, 3,
        ),
        AlertRule(
            NODE_SILENT, "Node gives no metrics", YES_NO, ("node",), _WARNING,
            0.5, 0.5, 60.0, 0.0, 2, 2,
        ),
        AlertRule(
            HOT_NODE, "Node far above its pool", "times the others", ("node",), _WARNING,
            1.5, 1.25, 300.0, 300.0, 3, 3,
        ),
        AlertRule(
            STARVATION, "Longest wait near its tier's limit", "of the limit", ("tier",), _CRITICAL,
            0.9, 0.7, 30.0, 120.0, 2, 3,
        ),
        AlertRule(
            UNFAIRNESS, "A tenant far from its share", "of its share lacking", ("tier",), _WARNING,
            0.5, 0.3, 300.0, 300.0, 3, 3,
        ),
        AlertRule(
            RETRY_STORM, "Clients retry in step", "attempts a request", ("fleet", "tenant"), _WARNING,
            1.5, 1.2, 60.0, 180.0, 3, 3,
        ),
        AlertRule(
            BURST, "Arrivals far above their baseline", "times the baseline", ("fleet", "pool", "tier"),
            _WARNING, 9.0, 5.0, 0.0, 120.0, 0, 3,
        ),
        AlertRule(
            CAPACITY_DRIFT, "Capacity estimates disagree", "ratio", ("node",), _WARNING,
            0.15, 0.15, 600.0, 600.0, 3, 3,
        ),
        AlertRule(
            POLICY_DRIFT, "Gateway does not run the policy", YES_NO, ("gateway",), _CRITICAL,
            0.5, 0.5, 300.0, 30.0, 3, 2,
        ),
        AlertRule(
            BUDGET_HALF, "Half of a tenant's monthly budget spent", "ratio", ("tenant",), _WARNING,
            0.5, 0.5, 0.0, 0.0, 1, 1,
        ),
        AlertRule(
            BUDGET, "Tenant's monthly budget nearly spent", "ratio", ("tenant",), _WARNING,
            0.8, 0.8, 0.0, 0.0, 1, 1,
        ),
        AlertRule(
            BUDGET_SPENT, "Tenant's monthly budget spent", YES_NO, ("tenant",), _WARNING,
            0.5, 0.5, 0.0, 0.0, 1, 1,
        ),
        AlertRule(
            UNSTABLE, "Queue has left equilibrium", YES_NO, ("fleet", "pool", "tier"), _CRITICAL,
            0.5, 0.5, 120.0, 300.0, 2, 3,
        ),
        AlertRule(
            EXPORT_FAILING, "Scheduled export is not taken", "failed tries", ("fleet",), _WARNING,
            2.0, 1.0, 0.0, 0.0, 1, 1,
        ),
    )
}  # fmt: skip


def rule_named(name: str) -> AlertRule:
    """Return the rule as delivered. Raises NotFound naming the rules there are."""
    found = RULES.get(name)
    if found is None:
        raise NotFound(
            f"no alert rule is called {name[:80]!r}", hint=f"Write one of {', '.join(RULES)}", field="rule"
        )
    return found


def changed(rule: AlertRule, values: Mapping[str, Any]) -> AlertRule:
    """Return `rule` with an operator's values. Raises InvalidInput naming the field that cannot be.

    Thresholds are finite and keep their order (a rule resolves at or on the healthy side of where it
    opens); holds are 0 to 7 days.
    """
    unknown = sorted(set(values) - set(CHANGEABLE))
    if unknown:
        raise InvalidInput(
            f"{unknown[0][:40]!r} cannot be changed",
            hint=f"Change {', '.join(CHANGEABLE)}",
            field=unknown[0],
        )
    given: dict[str, Any] = {}
    for name, value in values.items():
        given[name] = _CHECKS[name](name, value)
    made = replace(rule, **given)
    if made.signed(made.resolve_at) > made.signed(made.open_at):
        side = "at or below" if made.direction is Direction.ABOVE else "at or above"
        raise InvalidInput(
            f"{rule.name} would open at {made.open_at:g} and resolve at {made.resolve_at:g}",
            hint=f"It must resolve {side} the value it opens at",
            field="resolve_at",
        )
    return made


def differences(rule: AlertRule) -> dict[str, Any]:
    """Return what differs from the rule as delivered, by field, JSON-ready."""
    delivered = rule_named(rule.name)
    return {
        f.name: getattr(rule, f.name)
        for f in fields(AlertRule)
        if f.name in CHANGEABLE and getattr(rule, f.name) != getattr(delivered, f.name)
    }


def _threshold(field: str, value: object) -> float:
    number = _number(field, value)
    if not abs(number) <= MAX_THRESHOLD:
        raise InvalidInput(f"{field} is {number:g}", hint="Write a number up to 1e9", field=field)
    return number


def _hold(field: str, value: object) -> float:
    number = _number(field, value)
    if not 0 <= number <= MAX_HOLD_S:
        raise InvalidInput(f"{field} is {number:g} s", hint="Write 0 to 604800 seconds", field=field)
    return number


def _number(field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidInput(
            f"{field} is not a number: {str(value)[:40]}", hint="Write a number", field=field
        )
    return float(value)


def _severity(field: str, value: object) -> Severity:
    try:
        return Severity(str(value))
    except ValueError:
        raise InvalidInput(
            f"severity {str(value)[:40]!r} does not exist", hint="Write critical or warning", field=field
        ) from None


def _flag(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{field} is not true or false", hint="Write true or false", field=field)
    return value


_CHECKS: dict[str, Any] = {
    "open_at": _threshold,
    "resolve_at": _threshold,
    "open_after_s": _hold,
    "resolve_after_s": _hold,
    "severity": _severity,
    "is_enabled": _flag,
}
