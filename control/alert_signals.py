"""Alerts from what is not a verdict about rho: flow signals, capacity estimates, gateways, budgets.

Values are in the rules' units; None is "nobody knows". Gateways and budgets are read from the database
beside the other facts and are unknown once that reading is old. Prevents: an alert that follows what was
true when the database was last asked, and a rule whose signal nobody brings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import select
from sqlalchemy.orm import Session

from control import export_destinations, queries_policy
from control.alert_observations import Observation
from control.assess import Assessment
from control.capacity_book import CapacityBook
from control.rounds import Round
from control.tables import ExportDestinationRow, GatewayObservedRow, GatewayRow
from fleet.alert_rules import (
    BUDGET,
    BUDGET_HALF,
    BUDGET_RULES,
    BUDGET_SPENT,
    CAPACITY_DRIFT,
    EXPORT_FAILING,
    POLICY_DRIFT,
    SLO_BURN,
    STARVATION,
    UNFAIRNESS,
)
from fleet.capacity import CapacityEstimate
from fleet.errors import FleetError, InvalidPolicy
from fleet.flow_signals import UNITS, FlowRule, FlowSignal
from fleet.outcomes import TIERS
from fleet.percentages import percent
from fleet.policy import TenantPolicy, parse

_BURNS = (FlowRule.SLO_BURN_FAST, FlowRule.SLO_BURN_SLOW)
#: What was read of gateways and budgets counts for this long, seconds.
FACTS_HOLD_S = 60.0
#: A gateway nobody has tried to reach for this long: its condition is history.
TRIED_S = 60.0
BUDGETS_EVERY = timedelta(seconds=60)

Spend = Callable[[Session, datetime], Mapping[str, Decimal]]


def from_flow(signals: Sequence[FlowSignal], assessment: Assessment, round_: Round) -> list[Observation]:
    """Return the observations behind a round's flow signals.

    Both burn rates of a subject are one observation. A tier in which every gateway was heard and nobody
    asked for anything starves nobody: that is known, not missing.
    """
    pool_of = {s.node.name: s.node.pool for s in assessment.nodes}
    found = [_from_signal(signal, pool_of) for signal in signals if signal.rule not in _BURNS]
    burns: dict[tuple[str, str], list[FlowSignal]] = {}
    for signal in signals:
        if signal.rule in _BURNS:
            burns.setdefault((signal.scope, signal.subject), []).append(signal)
    found += [_burn(scope, subject, of) for (scope, subject), of in burns.items()]
    if round_.gateways and all(result.flows is not None for result in round_.gateways):
        told = {(o.rule, o.subject) for o in found}
        found += [
            Observation(rule, "tier", tier.value, 0.0, f"tier {tier.words}: nobody asked for anything")
            for rule in (STARVATION, UNFAIRNESS)
            for tier in TIERS
            if (rule, tier.value) not in told
        ]
    return found


def _from_signal(signal: FlowSignal, pool_of: Mapping[str, str]) -> Observation:
    pool = {"node": pool_of.get(signal.subject), "pool": signal.subject}.get(signal.scope)
    return Observation(
        signal.rule.value,
        signal.scope,
        signal.subject,
        signal.value,
        signal.summary,
        detail=dict(signal.detail),
        pool=pool,
    )


def _burn(scope: str, subject: str, signals: Sequence[FlowSignal]) -> Observation:
    """Return the worst burn over its own limit; unknown unless all are known or one is surely over."""
    known = [
        (signal.value / UNITS[signal.rule][2], signal) for signal in signals if signal.value is not None
    ]
    worst, worst_signal = max(known, key=lambda one: one[0], default=(None, signals[0]))
    is_all = len(known) == len(_BURNS)
    value = worst if worst is not None and (is_all or worst > 1) else None
    detail: dict[str, object] = {signal.rule.value: signal.value for signal in signals}
    return Observation(SLO_BURN, scope, subject, value, worst_signal.summary, detail=detail)


def from_capacity(book: CapacityBook, assessment: Assessment) -> list[Observation]:
    """Return how far the capacity estimates of each node's engines are apart; unknown without capacity."""
    found: list[Observation] = []
    for state in assessment.nodes:
        name = state.node.name
        if not state.node.takes_work:
            continue
        drifts = [_drift(book.estimate(key)) for key in book.engines_of(name)]
        known = [drift for drift in drifts if drift is not None]
        value = max(known) if known and len(known) == len(drifts) else None
        words = "not known" if value is None else f"{percent(value)}"
        found.append(
            Observation(
                CAPACITY_DRIFT,
                "node",
                name,
                value,
                f"capacity of {name} as seen now and by its curve differ by {words}",
                pool=state.node.pool,
            )
        )
    return found


def _drift(estimate: CapacityEstimate) -> float | None:
    """Return |plateau / curve - 1|; 0 where it is within bounds or there is only one estimate."""
    if estimate.requests_per_s is None:
        return None
    return 0.0 if estimate.drift is None else abs(estimate.drift)


@dataclass(slots=True)
class AlertFacts:
    """What the database says about gateways and budgets, and when it was asked."""

    _gateways: list[Observation] = field(default_factory=list[Observation])
    _budgets: list[Observation] = field(default_factory=list[Observation])
    _exports: list[Observation] = field(default_factory=list[Observation])
    _read_at: datetime | None = None
    _budgets_at: datetime | None = None

    def load(self, session: Session, now: datetime, spend: Spend) -> None:
        """Read the gateways' conditions, and once a minute what tenants have spent."""
        self._gateways = gateway_observations(session, now)
        self._exports = export_observations(session)
        if self._budgets_at is None or not now - BUDGETS_EVERY < self._budgets_at <= now:
            self._budgets = budget_observations(session, now, spend)
            self._budgets_at = now
        self._read_at = now

    def observations(self, at: datetime) -> list[Observation]:
        """Return what they mean for a round at `at`; unknown when they were read too long before it."""
        found = [*self._gateways, *self._budgets, *self._exports]
        is_old = self._read_at is None or (at - self._read_at).total_seconds() > FACTS_HOLD_S
        if not is_old:
            return found
        return [Observation(o.rule, o.scope, o.subject, None, o.summary) for o in found]


def gateway_observations(session: Session, now: datetime) -> list[Observation]:
    """Return whether each gateway runs what it should; unknown where nobody has asked it lately."""
    g, o = GatewayRow, GatewayObservedRow
    rows = session.execute(
        select(g.name, o.condition, o.message, o.tried_at)
        .join(o, o.gateway == g.name, isouter=True)
        .where(g.state != "removed")
        .order_by(g.name)
    )
    found: list[Observation] = []
    for name, condition, message, tried_at in rows:
        is_asked = tried_at is not None and (now - tried_at).total_seconds() <= TRIED_S
        value = None if not is_asked or condition == "unknown" else float(condition != "converged")
        said = f"gateway {name} is {condition or 'unknown'}" + (f": {message}" if message else "")
        found.append(
            Observation(POLICY_DRIFT, "gateway", name, value, said, detail={"condition": condition})
        )
    return found


def export_observations(session: Session) -> list[Observation]:
    """Return how often the scheduled export that fails most has failed; none where none was set up."""
    if session.scalar(select(ExportDestinationRow.name).limit(1)) is None:
        return []
    found = export_destinations.standing(session)
    said = f"{found.tries} tries failed: {found.worst}" if found.failing else "scheduled exports are taken"
    detail: dict[str, object] = {"failing": found.failing, "pending": found.pending}
    return [Observation(EXPORT_FAILING, "fleet", "", float(found.tries), said, detail=detail)]


def budget_observations(session: Session, now: datetime, spend: Spend) -> list[Observation]:
    """Return the share of its month's budget each tenant with one has spent, and whether all of it is."""
    head = queries_policy.head(session)
    if head is None:
        return []
    try:
        policy = parse(head.document)
    except InvalidPolicy:  # it came past the commands; the controller does not send it either
        return []
    limits = {name: t.monthly_budget_usd for name, t in policy.tenants.items() if t.monthly_budget_usd}
    if not limits:
        return []
    try:
        spent = spend(session, now)
    except FleetError as problem:
        words = f"this month's spend is not known: {problem.message}"
        return [Observation(rule, "tenant", name, None, words) for name in limits for rule in BUDGET_RULES]
    return [
        observation
        for name, limit in limits.items()
        for observation in _budget(policy.tenants[name], name, spent.get(name, Decimal(0)), limit)
    ]


def _budget(policy: TenantPolicy, tenant: str, spent: Decimal, limit: Decimal) -> list[Observation]:
    words = f"{tenant} has spent ${spent:,.2f} of ${limit:,.2f} this month"
    detail: dict[str, object] = {
        "spent_usd": str(spent),
        "budget_usd": str(limit),
        "over_budget": policy.over_budget.value,
    }
    ratio = float(spent / limit)
    found = [
        Observation(rule, "tenant", tenant, ratio, words, detail=detail) for rule in (BUDGET_HALF, BUDGET)
    ]
    then = f"{words}; the policy says to {policy.over_budget.value}"
    is_spent = float(spent >= limit)  # as the controller judges it
    return [*found, Observation(BUDGET_SPENT, "tenant", tenant, is_spent, then, detail=detail)]
