"""Tenants' budgets of the running month: what is spent, where it leads, and what each gateway does then.

Spend is the very figure the controller holds against the budgets; what gateways do is what they said
themselves. USD as `Decimal`. Prevents: a page that reports another spend than the one a tenant is refused
for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from pydantic import ValidationError
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control import queries_policy
from control.alert_rule_store import rules_in_force
from control.queries_spend import SETTLED_AFTER, first_observed, month_spend
from control.tables import GatewayObservedRow, GatewayRow, NodeQuarterRow
from control.tenant_days import tenant_days
from fleet.alert_rules import BUDGET_RULES, YES_NO
from fleet.budgets import (
    STANDINGS,
    BudgetState,
    Enforcement,
    GatewayWord,
    Standing,
    enforcement,
    judge,
)
from fleet.errors import InvalidPolicy, NotMeasured
from fleet.limiters import Mode
from fleet.messages import GatewayStatus
from fleet.months import Month, month_at
from fleet.policy import OverBudget, Policy, parse
from fleet.spend_forecast import COVERAGE, WINDOW_DAYS, Forecast, forecast

NO_USD = Decimal("0.00")
Days = Mapping[date, Decimal]


@dataclass(frozen=True, slots=True)
class TenantBudget:
    """One tenant's budget, how it stands, and what each gateway does about it."""

    state: BudgetState
    action: OverBudget
    mode: Mode  # of `limiters.monthly_budget` in the newest policy
    days: Days  # this month's spend by day so far
    gateways: tuple[Enforcement, ...]


@dataclass(frozen=True, slots=True)
class BudgetReport:
    """Every tenant with a budget, worst first."""

    month: Month
    budgets: tuple[TenantBudget, ...]
    unbudgeted: tuple[tuple[str, Decimal], ...]  # tenants that spend without a budget, largest first
    thresholds: tuple[float, ...]  # ratios at which an alert opens
    counted_to: datetime | None  # node time is counted up to here
    heard_at: datetime | None  # the gateway heard longest ago; None: one was never heard
    revision: int | None


def budget_report(session: Session, *, zone: ZoneInfo, now: datetime) -> BudgetReport:
    """Return the running month's budgets. `zone` is the declared one.

    Raises Conflict as `month_spend` does, InvalidPolicy if this release cannot read the newest policy.
    """
    month = month_at(now, zone)
    head = queries_policy.head(session)
    policy = None if head is None else parse(head.document)
    limits = {} if policy is None else _limits(policy)
    spend = month_spend(session, month.name, zone=zone, now=now)
    spent: dict[str, Decimal] = {}
    for line in spend.lines:  # without adjustments: a budget is for this month's use
        if line.tenant and line.kind != "adjustment":
            spent[line.tenant] = spent.get(line.tenant, NO_USD) + line.amount_usd
    days = {month.name: tenant_days(session, spend, limits, zone=zone)}
    days |= _earlier(session, month, limits, zone, now)
    words = _Words.of(session, now)
    observed = first_observed(session)
    found: list[TenantBudget] = []
    for tenant, limit in limits.items():
        own = {day: usd for part in days.values() for day, usd in part.get(tenant, {}).items()}
        usd = spent.get(tenant, NO_USD)
        ahead, why = _forecast(own, usd, month, zone, now, observed)
        this_month = days[month.name][tenant]
        state = judge(tenant, limit, usd, this_month, ahead, why)
        is_spent = state.standing is Standing.OVER
        if policy is not None:
            found.append(
                TenantBudget(
                    state,
                    policy.tenants[tenant].over_budget,
                    policy.limiters.monthly_budget,
                    this_month,
                    tuple(enforcement(tenant, word, is_spent=is_spent) for word in words.about(tenant)),
                )
            )
    found.sort(key=_worst_first)
    others = sorted(((t, usd) for t, usd in spent.items() if t not in limits), key=lambda x: (-x[1], x[0]))
    return BudgetReport(
        month,
        tuple(found),
        tuple(others),
        thresholds(session),
        session.scalar(select(func.max(NodeQuarterRow.last_seen_at))),
        words.oldest,
        None if head is None else head.number,
    )


def thresholds(session: Session) -> tuple[float, ...]:
    """Return the ratios at which the enabled budget rules open, smallest first."""
    rules = rules_in_force(session)
    kept = [rules[name] for name in BUDGET_RULES if rules[name].is_enabled]
    return tuple(sorted(1.0 if rule.unit == YES_NO else rule.open_at for rule in kept))


def _limits(policy: Policy) -> dict[str, Decimal]:
    return {
        name: tenant.monthly_budget_usd
        for name, tenant in sorted(policy.tenants.items())
        if tenant.monthly_budget_usd is not None
    }


def _worst_first(budget: TenantBudget) -> tuple[int, float, str]:
    ratio = budget.state.ratio
    return STANDINGS.index(budget.state.standing), -(1e9 if ratio is None else ratio), budget.state.tenant


def _earlier(
    session: Session, month: Month, tenants: Collection[str], zone: ZoneInfo, now: datetime
) -> dict[str, dict[str, dict[date, Decimal]]]:
    """Return tenants' days of the months before, as far as a forecast looks back."""
    first, since = first_observed(session), now - timedelta(days=WINDOW_DAYS + 1)
    found: dict[str, dict[str, dict[date, Decimal]]] = {}
    at = month
    while tenants and first is not None and max(first, since) < at.start:
        at = month_at(at.start - timedelta(seconds=1), zone)
        spend = month_spend(session, at.name, zone=zone, now=now)
        found[at.name] = tenant_days(session, spend, tenants, zone=zone)
    return found


def _forecast(
    days: Days, spent: Decimal, month: Month, zone: ZoneInfo, now: datetime, observed: datetime | None
) -> tuple[Forecast | None, str]:
    """Return the forecast, or why there is none. Complete days begin with the tenant's first use.

    `observed`: when the fleet's record begins; its first day was not whole.
    """
    today = now.astimezone(zone).date()
    last = (now - SETTLED_AFTER).astimezone(zone).date() - timedelta(days=1)
    used = [day for day, usd in days.items() if usd and day <= last]
    first = max(min(used), last - timedelta(days=WINDOW_DAYS - 1)) if used else None
    if first is not None and observed is not None and observed.astimezone(zone).date() == first:
        first += timedelta(days=1)
    history = (
        []
        if first is None
        else [float(days.get(first + timedelta(days=n), 0)) for n in range((last - first).days + 1)]
    )
    try:
        return (
            forecast(
                history,
                last,
                spent=float(spent),
                today=today,
                today_left=part_left(today, zone, now),
                month_end=(month.end - timedelta(seconds=1)).astimezone(zone).date(),
            ),
            "",
        )
    except NotMeasured as why:
        return None, why.message


def part_left(today: date, zone: ZoneInfo, now: datetime) -> float:
    """Return the part of `today`, of 23 to 25 hours in `zone`, that is still to come (0..1)."""
    start, end = _midnight(today, zone), _midnight(today + timedelta(days=1), zone)
    return (end - now) / (end - start)


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    """Return the instant in UTC: times of one zone are subtracted by their clocks, not by what passed."""
    return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class _Words:
    """What every active gateway last said, with the policy it runs."""

    rows: Sequence[tuple[str, datetime | None, GatewayStatus | None]]
    policies: Mapping[int, Policy]
    now: datetime

    @staticmethod
    def of(session: Session, now: datetime) -> _Words:
        g, o = GatewayRow, GatewayObservedRow
        rows = [
            (name, seen_at, _status(status))
            for name, seen_at, status in session.execute(
                select(g.name, o.seen_at, o.status)
                .outerjoin(o, o.gateway == g.name)
                .where(g.state == "active")
                .order_by(g.name)
            )
        ]
        policies: dict[int, Policy] = {}
        for number in {s.revision for _, _, s in rows if s is not None and s.revision is not None}:
            found = queries_policy.revision(session, number)
            try:
                if found is not None:
                    policies[number] = parse(found.document)
            except InvalidPolicy:  # of another release: what it means here nobody knows
                continue
        return _Words(rows, policies, now)

    @property
    def oldest(self) -> datetime | None:
        """Return when the gateway heard longest ago was heard."""
        times = [seen_at for _, seen_at, _ in self.rows]
        known = [at for at in times if at is not None]
        return min(known) if known and len(known) == len(times) else None

    def about(self, tenant: str) -> list[GatewayWord]:
        """Return what each gateway said that bears on `tenant`."""
        return [self._word(tenant, *row) for row in self.rows]

    def _word(
        self, tenant: str, gateway: str, seen_at: datetime | None, status: GatewayStatus | None
    ) -> GatewayWord:
        age_s = None if seen_at is None else max(0.0, (self.now - seen_at).total_seconds())
        revision = None if status is None else status.revision
        policy = None if revision is None else self.policies.get(revision)
        held = None if policy is None else policy.tenants.get(tenant)
        share = None if status is None else status.shares.get(tenant)
        return GatewayWord(
            gateway,
            age_s,
            age_s is not None and age_s <= queries_policy.SILENT_S and policy is not None,
            revision,
            None if held is None or held.monthly_budget_usd is None else held.over_budget,
            Mode.ENFORCE if policy is None else policy.limiters.monthly_budget,
            () if status is None else status.unsupported,
            None if share is None else share.over_budget,
        )


def _status(stored: dict[str, Any] | None) -> GatewayStatus | None:
    try:
        return None if stored is None else GatewayStatus.model_validate(stored)
    except ValidationError:  # stored by another release: nothing of it can be read
        return None


def as_json(report: BudgetReport) -> dict[str, Any]:
    """Return the report for JSON; amounts as text."""
    return {
        "month": report.month.name,
        "time_zone": report.month.zone,
        "counted_to": report.counted_to and report.counted_to.isoformat(),
        "thresholds": list(report.thresholds),
        "policy_revision": report.revision,
        "budgets": [_budget_json(budget, report) for budget in report.budgets],
        "without_budget": [{"tenant": t, "spent_usd": f"{usd:.2f}"} for t, usd in report.unbudgeted],
    }


def _budget_json(budget: TenantBudget, report: BudgetReport) -> dict[str, Any]:
    state, ahead = budget.state, budget.state.forecast
    crossing = state.crossing
    return {
        "tenant": state.tenant,
        "budget_usd": f"{state.limit_usd:.2f}",
        "spent_usd": None if report.counted_to is None else f"{state.spent_usd:.2f}",
        "ratio": None if report.counted_to is None else state.ratio,
        "standing": state.standing.value,
        "forecast": ahead
        and {
            "end_usd": round(ahead.end.usd, 2),
            "low_usd": round(ahead.end.low, 2),
            "high_usd": round(ahead.end.high, 2),
            "coverage": COVERAGE,
            "complete_days": ahead.days_used,
        },
        "no_forecast_because": state.why_unknown or None,
        "reached_on": {
            name: day and day.isoformat()
            for name, day in (
                ("middle", crossing.day),
                ("earliest", crossing.earliest),
                ("latest", crossing.latest),
            )
        },
        "over_budget": budget.action.value,
        "limiter": budget.mode.value,
        "gateways": [
            {"gateway": each.gateway, "does": each.doing.value, "why": each.words}
            for each in budget.gateways
        ],
    }
