"""What a month cost: node time at its prices, allocated to tenant, tier and model.

Money is `Decimal` USD. A month is one of the declared time zone (`RHODECK_FINANCE_TIMEZONE`). Prevents:
totals by day, tenant and month that disagree because they were computed apart: there is one way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control.prices import in_force, prices
from control.tables import NodeQuarterRow, PoolRow, UsageQuarterRow
from fleet.months import Month, month_at, month_of
from fleet.spend import MonthSpend, NodeTime, Use, allocate, subtotals

SETTLED_AFTER = timedelta(hours=1)  # gateways deliver usage within seconds; later data is rare


@dataclass(frozen=True, slots=True)
class MonthName:
    """A month that has data, newest first in lists."""

    name: str
    is_current: bool


def month_spend(session: Session, name: str, *, zone: ZoneInfo, now: datetime) -> MonthSpend:
    """Return the spend of month `name` ("2026-11") in `zone`. Raises InvalidInput for another name."""
    month = month_of(name, zone)
    return allocate(
        month,
        _node_time(session, month),
        _use(session, month),
        {pool: slots for pool, slots in session.execute(select(PoolRow.name, PoolRow.max_num_seqs))},
        is_estimated=now < month.end + SETTLED_AFTER,
    )


def months_with_data(session: Session, *, zone: ZoneInfo, now: datetime) -> list[MonthName]:
    """Return the months from the first observed node time to now, newest first; the current one always."""
    first = session.scalar(select(func.min(NodeQuarterRow.quarter)))
    current = month_at(now, zone)
    names = [MonthName(current.name, True)]
    at = current
    while first is not None and first < at.start:
        at = month_at(at.start - timedelta(seconds=1), zone)
        names.append(MonthName(at.name, False))
    return names


def spend_by_tenant(session: Session, now: datetime, *, zone: ZoneInfo) -> Mapping[str, Decimal]:
    """Return this month's spend so far by tenant, USD. Tenants without use are absent."""
    spend = month_spend(session, month_at(now, zone).name, zone=zone, now=now)
    return {tenant: amount for (tenant,), amount in subtotals(spend.lines, "tenant").items() if tenant}


def _node_time(session: Session, month: Month) -> list[NodeTime]:
    known = prices(session)
    n = NodeQuarterRow
    rows = session.execute(
        select(n.pool, n.price_class, n.quarter, func.sum(n.up_s))
        .where(n.quarter >= month.start, n.quarter < month.end)
        .group_by(n.pool, n.price_class, n.quarter)
    )
    sums: dict[tuple[str, str, Decimal | None], Decimal] = defaultdict(Decimal)
    for pool, price_class, quarter, up_s in rows:
        sums[pool, price_class, in_force(known, price_class, pool, quarter)] += up_s
    return [NodeTime(pool, price_class, up_s, price) for (pool, price_class, price), up_s in sums.items()]


def _use(session: Session, month: Month) -> list[Use]:
    q = UsageQuarterRow
    rows = session.execute(
        select(
            q.tenant,
            q.tier,
            q.model,
            q.pool,
            func.sum(q.requests),
            func.sum(q.prompt_tokens),
            func.sum(q.output_tokens),
            func.sum(q.engine_s),
        )
        .where(q.quarter >= month.start, q.quarter < month.end)
        .group_by(q.tenant, q.tier, q.model, q.pool)
    )
    return [
        Use(tenant, tier, model, pool, int(requests), int(prompt), int(output), engine_s)
        for tenant, tier, model, pool, requests, prompt, output, engine_s in rows
    ]
