"""What tenants spent by day: the month's lines spread over its days by what was used on each.

USD as `Decimal`; a tenant's days of a month sum to its lines of that month, to the cent. Prevents: a
daily figure that is computed in another way than the month it belongs to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

from sqlalchemy import DateTime, cast, func, literal, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session

from control.month_inputs import rule_of
from control.tables import UsageQuarterRow
from fleet.allocation import Rule
from fleet.months import Month
from fleet.spend import MonthSpend, SpendLine, whole_cents

Place = tuple[str, str, str, str]  # tenant, tier, model, pool
ZERO = Decimal(0)


def tenant_days(
    session: Session, spend: MonthSpend, tenants: Collection[str], *, zone: ZoneInfo
) -> dict[str, dict[date, Decimal]]:
    """Return each tenant's spend by day of the month's lines, adjustments left out.

    Days without use are absent. A line whose use is on no day stands on the month's first. With the rule
    `kv_token_seconds` a line is spread by engine-seconds.
    """
    lines = [line for line in spend.lines if line.tenant in tenants and line.kind != "adjustment"]
    weights = _weights(session, spend.month, {line.tenant for line in lines}, zone)
    found: dict[str, dict[date, Decimal]] = {tenant: {} for tenant in tenants}
    by_tenant: dict[str, list[SpendLine]] = defaultdict(list)
    for line in lines:
        by_tenant[line.tenant].append(line)
    for tenant, own in by_tenant.items():
        found[tenant] = _spread(own, weights, spend.month.start.astimezone(zone).date())
    return found


def _spread(
    lines: Sequence[SpendLine], weights: Mapping[Place, Mapping[date, Decimal]], first: date
) -> dict[date, Decimal]:
    exact: dict[date, Decimal] = defaultdict(Decimal)
    for line in lines:
        days = weights.get((line.tenant, line.tier, line.model, line.pool)) or _all_of(line.tenant, weights)
        whole = sum(days.values(), ZERO)
        if not whole:
            exact[first] += line.amount_usd
            continue
        for day, weight in days.items():
            exact[day] += line.amount_usd * weight / whole
    total = sum((line.amount_usd for line in lines), Decimal("0.00"))
    running, given = ZERO, Decimal("0.00")
    made: dict[date, Decimal] = {}
    for day in sorted(exact):
        running += exact[day]
        made[day] = whole_cents(running) - given
        given += made[day]
    if made and given != total:
        made[max(made)] += total - given
    return made


def _all_of(tenant: str, weights: Mapping[Place, Mapping[date, Decimal]]) -> dict[date, Decimal]:
    sums: dict[date, Decimal] = defaultdict(Decimal)
    for place, days in weights.items():
        if place[0] == tenant:
            for day, weight in days.items():
                sums[day] += weight
    return dict(sums)


def _weights(
    session: Session, month: Month, tenants: Collection[str], zone: ZoneInfo
) -> dict[Place, dict[date, Decimal]]:
    """Return what each tenant, tier, model and pool used on each day, by the month's rule."""
    days = _days(month, zone)
    midnights = [datetime(d.year, d.month, d.day, tzinfo=zone).astimezone(UTC) for d in days]
    q = UsageQuarterRow
    place = func.width_bucket(q.quarter, cast(literal(midnights), ARRAY(DateTime(timezone=True))))
    rows = session.execute(
        select(
            q.tenant,
            q.tier,
            q.model,
            q.pool,
            place,
            func.sum(q.prompt_tokens),
            func.sum(q.output_tokens),
            func.sum(q.engine_s),
        )
        .where(q.quarter >= month.start, q.quarter < month.end, q.tenant.in_(tenants))
        .group_by(q.tenant, q.tier, q.model, q.pool, place)
    )
    rule = rule_of(session, month.name)
    found: dict[Place, dict[date, Decimal]] = defaultdict(dict)
    for tenant, tier, model, pool, number, prompt, output, engine_s in rows:
        found[tenant, tier, model, pool][days[number - 1]] = _weight(rule, prompt, output, engine_s)
    return dict(found)


def _weight(rule: Rule, prompt: int, output: int, engine_s: Decimal) -> Decimal:
    return prompt + output * rule.output_weight if rule.basis == "tokens" else engine_s


def _days(month: Month, zone: ZoneInfo) -> list[date]:
    first = month.start.astimezone(zone).date()
    last = (month.end - timedelta(seconds=1)).astimezone(zone).date()
    return [first + timedelta(days=n) for n in range((last - first).days + 1)]
