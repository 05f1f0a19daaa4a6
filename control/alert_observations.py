"""What an alert rule sees of a subject in one round, and what those about rho and nodes see. Pure.

Values are in the rule's unit; None is "nobody knows", which neither raises nor clears. Nodes in
maintenance are no subject of any rule. Prevents: a rule that reads missing data as a healthy value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from control.assess import Assessment, NodeState, Verdict
from control.freshness import Freshness
from fleet.alert_rules import NODE_FROZEN, NODE_SILENT, RHO_HIGH, RULES, SATURATION
from fleet.breach import Certainty, judged
from fleet.health_reading import TARGET_RHO

Key = tuple[str, str, str]  # rule, scope, subject

_STUCK_FLAGS = frozenset({"frozen", "stalled"})


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
    pool: str | None = None

    @property
    def key(self) -> Key:
        return self.rule, self.scope, self.subject


def observe(assessment: Assessment) -> list[Observation]:
    """Return what the rules about load, silence and standing still see in a round."""
    resting = {s.node.name for s in assessment.nodes if s.node.state == "maintenance"}
    pool_of = {s.node.name: s.node.pool for s in assessment.nodes}
    found: list[Observation] = []
    for verdict in assessment.verdicts:
        if verdict.scope not in RULES[RHO_HIGH].scopes or (
            verdict.scope == "node" and verdict.name in resting
        ):
            continue
        pool = {"node": pool_of.get(verdict.name), "pool": verdict.name}.get(verdict.scope)
        found += [_rho(verdict, pool), _saturation(verdict, pool)]
    for state in assessment.nodes:
        if state.node.name not in resting:
            found += [_silent(state), _frozen(state)]
    return found


def named(scope: str, subject: str) -> str:
    """Return a subject in words: "n1", "pool h100", "the fleet", "tier batch"."""
    if scope == "fleet":
        return "the fleet"
    return subject if scope == "node" else f"{scope} {subject}"


def _rho(verdict: Verdict, pool: str | None) -> Observation:
    health = verdict.health
    rho = health.rho
    value, certainty = judged(rho.value, rho.low, rho.high, rho.grade, TARGET_RHO)
    shown = "unknown" if value is None else f"{value:.2f}"
    if certainty is Certainty.UNCONFIRMED:
        shown += " (unconfirmed)"
    return Observation(
        RHO_HIGH,
        verdict.scope,
        verdict.name,
        value,
        f"rho of {named(verdict.scope, verdict.name)} is {shown}",
        certainty,
        {
            "rho_low": rho.low,
            "rho_high": rho.high,
            "grade": rho.grade,
            "explanation": list(health.explanation),
            "certainty": certainty.value,
        },
        pool,
    )


def _saturation(verdict: Verdict, pool: str | None) -> Observation:
    """Stand in for the rho alarm where rho is unknown, or says that there is room and there is none."""
    health = verdict.health
    rho, _ = judged(health.rho.value, health.rho.low, health.rho.high, health.rho.grade, TARGET_RHO)
    is_told = rho is not None and rho > TARGET_RHO
    value = None if health.saturated is None else 1.0 if health.saturated and not is_told else 0.0
    against = "its rho is unknown" if rho is None else f"rho reads {rho:.2f}"
    return Observation(
        SATURATION,
        verdict.scope,
        verdict.name,
        value,
        f"{named(verdict.scope, verdict.name)} is saturated: requests wait and no slot is free; {against}",
        detail={"waiting": health.waiting, "rho": rho},
        pool=pool,
    )


def _silent(state: NodeState) -> Observation:
    # a source that scrapes less often than we run rounds has no news in some of them
    has_sample = state.reason is None and state.freshness is Freshness.FRESH
    why = state.reason or "not asked"
    return Observation(
        NODE_SILENT,
        "node",
        state.node.name,
        0.0 if has_sample else 1.0,
        f"{state.node.name} gives no metrics: {why}",
        detail={"reason": state.reason, "detail": state.detail[:300], "age_s": state.age_s},
        pool=state.node.pool,
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
        pool=state.node.pool,
    )
