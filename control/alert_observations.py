"""What each alert rule sees of each subject in one round. Pure.

Values are in the rule's unit; None is "nobody knows", which neither raises nor clears. Nodes in
maintenance are no subject of any rule. Prevents: a rule that reads missing data as a healthy value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from control.assess import Assessment, NodeState, Verdict
from control.freshness import Freshness
from fleet.alert_rules import HOT_NODE, NODE_FROZEN, NODE_SILENT, RHO_HIGH, RULES, SATURATION
from fleet.breach import Certainty, judged
from fleet.health_reading import TARGET_RHO

Key = tuple[str, str, str]  # rule, scope, subject

_STUCK_FLAGS = frozenset({"frozen", "stalled"})
#: Below these a node is no hot node, whatever its neighbours do: with little work chance decides.
HOT_MIN_RHO = 0.5


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
    """Return what every rule sees in the verdicts of a round."""
    resting = {s.node.name for s in assessment.nodes if s.node.state == "maintenance"}
    pool_of = {s.node.name: s.node.pool for s in assessment.nodes}
    found: list[Observation] = []
    pools = {v.name: v for v in assessment.verdicts if v.scope == "pool"}
    for verdict in assessment.verdicts:
        if verdict.scope not in RULES[RHO_HIGH].scopes or (
            verdict.scope == "node" and verdict.name in resting
        ):
            continue
        pool = {"node": pool_of.get(verdict.name), "pool": verdict.name}.get(verdict.scope)
        found += [_rho(verdict, pool), _saturation(verdict, pool)]
        if verdict.scope == "node":
            found.append(_hot(verdict, pool, pools.get(pool or "")))
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


def _hot(verdict: Verdict, pool: str | None, whole: Verdict | None) -> Observation:
    """Compare a node's rho with its pool's. An idle node is not hot; without either rho nobody knows."""
    own = verdict.health.rho.value
    others = None if whole is None else whole.health.rho.value
    value: float | None = None
    if own is not None and own < HOT_MIN_RHO:
        value = 0.0
    elif own is not None and others:
        value = own / others
    shown = "unknown" if own is None or not others else f"{own:.2f}, {own / others:.1f} times its pool's"
    return Observation(
        HOT_NODE, "node", verdict.name, value, f"rho of {verdict.name} is {shown}", pool=pool,
        detail={"rho": own, "pool_rho": others},
    )  # fmt: skip


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
