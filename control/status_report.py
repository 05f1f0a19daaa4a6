"""Is the fleet healthy? One answer for `rhodeck status` and the API, with every reason why not.

Ages are seconds, rho is a ratio. Prevents: "healthy" printed from verdicts an hour old, and two places
that mean different things by the word, and "healthy" during the two minutes an overload alarm holds back.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from control import queries_rho
from control.alert_observations import named
from control.alert_rule_store import rules_in_force
from control.freshness import Freshness, stale_after_s
from control.queries_fleet import AlertView, HealthView, fleet_health, open_alerts, recent_rounds
from control.queries_gateway_traffic import shadow_refusals
from control.queries_nodes import NodeRowView, node_table
from control.queries_policy import GatewayState, Rollout, current_rollout, gateway_states, head
from control.tables import AlertTimerRow
from fleet.alert_rules import RHO_HIGH, SATURATION, STARVATION, UNSTABLE
from fleet.breach import AlarmState, Condition
from fleet.errors import InvalidInput
from fleet.messages import OverQuota

#: What `healthy` means, for help texts and documentation.
HEALTHY_MEANS = (
    "Healthy means all of: the newest scrape round is younger than three periods; at least one node is "
    "registered and every active node is fresh; every gateway is converged; the newest rollout was not "
    "stopped by what happened; no alert is unresolved "
    "(acknowledged ones count); no load is beyond an alarm's threshold, also before it opens. An unknown "
    "rho is reported and does not make the fleet unhealthy."
)

SHADOW_WINDOW = timedelta(hours=1)
#: Rules whose alarms hold back for a while, but whose breach is no health meanwhile. Nodes and gateways
#: have problems of their own above.
_PENDING_COUNTS = (RHO_HIGH, SATURATION, STARVATION, UNSTABLE)


@dataclass(frozen=True, slots=True)
class StatusReport:
    """Everything `rhodeck status` says."""

    at: datetime
    nodes: dict[str, int]  # "fresh" | "stale" | "silent" -> active, draining and resting nodes
    gateways: tuple[GatewayState, ...]
    revision: int | None
    rollout: Rollout | None  # of the newest revision
    health: HealthView | None
    alerts: tuple[AlertView, ...]
    verdicts: tuple[HealthView, ...]  # of the fleet, pools, models and tiers
    problems: tuple[str, ...]  # why it is not healthy; empty when it is
    over: dict[str, OverQuota]  # tenants that hold more than their quota allows, over all gateways
    would_refuse: dict[str, int] | None  # in the last hour, by limit in shadow; None: not known

    @property
    def is_healthy(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        health = self.health if self.health is not None and not self.health.is_stale else None
        return {
            "healthy": self.is_healthy,
            "problems": list(self.problems),
            "at": self.at.isoformat(),
            "nodes": self.nodes,
            "gateways": [
                {
                    "name": g.name,
                    "group": g.group,
                    "condition": str(g.condition),
                    "age_s": g.age_s,
                    "generation": g.observed_generation,
                }
                for g in self.gateways
            ],
            "revision": self.revision,
            "rollout": self.rollout
            and {
                "revision": self.rollout.revision,
                "state": self.rollout.state,
                "reason": self.rollout.reason,
            },
            "over_quota": {tenant: by.model_dump() for tenant, by in self.over.items()},
            "would_have_refused_last_hour": self.would_refuse,
            "rho": {
                "value": health and health.rho,
                "low": health and health.rho_low,
                "high": health and health.rho_high,
                "grade": health and health.grade,
                "method": health and health.method,
                "partial": health and health.partial,
                "at_least": health and health.detail.get("rho_heard"),
                "silent_gateways": health and health.detail.get("silent_gateways", {}),
            },
            "verdicts": [queries_rho.as_dict(view) for view in self.verdicts],
            "alerts": [
                {
                    "id": a.id,
                    "rule": a.rule,
                    "scope": a.scope,
                    "subject": a.subject,
                    "state": a.state,
                    "severity": a.severity,
                    "opened_at": a.opened_at.isoformat(),
                    "value": a.value,
                    "summary": a.summary,
                }
                for a in self.alerts
            ],
        }


def status_report(session: Session, now: datetime) -> StatusReport:
    """Return the state of everything at `now`, with the reasons it is not healthy."""
    nodes = node_table(session, now)
    gateways = tuple(gateway_states(session, now))
    alerts = tuple(open_alerts(session, now))
    revision, rollout = head(session), current_rollout(session)
    counts = Counter(node.freshness for node in nodes)
    return StatusReport(
        at=now,
        nodes={state.value: counts[state] for state in Freshness},
        gateways=gateways,
        revision=None if revision is None else revision.number,
        rollout=rollout,
        health=fleet_health(session, now),
        verdicts=tuple(queries_rho.verdicts(session, now)),
        alerts=alerts,
        over=_over(gateways),
        would_refuse=shadow_refusals(session, now - SHADOW_WINDOW, now),
        problems=tuple(
            [*_round_problems(session, now), *_node_problems(nodes), *_gateway_problems(gateways)]
            + _rollout_problems(rollout)
            + [f"alert {a.id}: {a.summary}" for a in alerts]
            + _pending_problems(session)
        ),
    )


def _over(gateways: tuple[GatewayState, ...]) -> dict[str, OverQuota]:
    """Return by how much tenants hold more than the gateways' parts of their quotas, summed."""
    found: dict[str, OverQuota] = {}
    for gateway in gateways:
        for tenant, by in gateway.over.items():
            had = found.get(tenant, OverQuota(tokens=0, requests=0))
            found[tenant] = OverQuota(tokens=had.tokens + by.tokens, requests=had.requests + by.requests)
    return dict(sorted(found.items(), key=lambda item: (-item[1].tokens, item[0])))


def _round_problems(session: Session, now: datetime) -> list[str]:
    rounds = recent_rounds(session, limit=1)
    if not rounds:
        return ["no scrape round yet: is `rhodeck control` running?"]
    age_s = (now - rounds[0].at).total_seconds()
    if age_s < stale_after_s(rounds[0].period_s):
        return []
    return [f"the last scrape round is {age_s:.0f} s old: is `rhodeck control` running?"]


def _node_problems(nodes: list[NodeRowView]) -> list[str]:
    if not nodes:
        return ["no node is registered"]
    problems: list[str] = []
    for node in nodes:
        if node.state == "active" and node.freshness is not Freshness.FRESH:
            seen = "never seen" if node.age_s is None else f"last seen {node.age_s:.0f} s ago"
            why = f", {node.last_failure_reason}" if node.last_failure_reason else ""
            problems.append(f"node {node.name} is {node.freshness.value}: {seen}{why}")
    return problems


def _gateway_problems(gateways: tuple[GatewayState, ...]) -> list[str]:
    return [
        f"gateway {g.name} is {g.condition}" + (f": {g.message}" if g.message else "")
        for g in gateways
        if str(g.condition) != "converged"
    ]


def _rollout_problems(rollout: Rollout | None) -> list[str]:
    """Return that a rollout was stopped, and why. One that a person stopped is no problem."""
    if rollout is None or rollout.state not in ("aborted", "paused"):
        return []
    if " by " in rollout.reason.partition(":")[0]:  # "aborted by ada: ..."
        return []
    return [f"the rollout of revision {rollout.revision} is {rollout.state}: {rollout.reason}"]


def _pending_problems(session: Session) -> list[str]:
    """Return what lies beyond its threshold while its alarm still waits whether it lasts."""
    t, rules = AlertTimerRow, rules_in_force(session)
    rows = session.scalars(
        select(t).where(t.rule.in_(_PENDING_COUNTS)).order_by(t.rule, t.scope, t.subject)
    )
    problems: list[str] = []
    for row in rows:
        rule = rules[row.rule]
        try:
            state = AlarmState.from_dict(row.machine)
        except InvalidInput:  # another release's: the next round writes it anew
            continue
        if rule.is_enabled and state.condition is Condition.OK and state.above_s > 0:
            whose = named(row.scope, row.subject)
            problems.append(
                f"{whose}: {rule.title.lower()} for {state.above_s:.0f} s; "
                f"the alarm opens after {rule.open_after_s:g} s"
            )
    return problems
