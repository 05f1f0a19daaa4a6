"""What pages, API and CLI may ask about traffic at the gateways: per tenant and tier, as counted there.

Counts are requests or tokens in the interval, latencies seconds. A gateway that was not reached leaves
a hole, not a zero. Prevents: refused requests missing from demand, and a tenant that vanishes from a
table because its gateway restarted.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import BigInteger, Double, Interval, case, cast, func, literal, select
from sqlalchemy.orm import Session

from control.queries_fleet import aligned, bucket_length, bucket_starts, scrape_period_s
from control.queries_latency import GATEWAY_COLUMNS, LatencyView, latency_view, merged_increments
from control.tables import GatewaySampleRow
from fleet.outcomes import SHED


@dataclass(frozen=True, slots=True)
class TenantTraffic:
    """One tenant in one tier over an interval, all gateways together."""

    tenant: str
    tier: str
    offered: int | None  # at the door, refused included
    dispatched: int | None  # sent to an engine
    refused: dict[str, int]  # outcome -> requests shed before or from the queue
    outcomes: dict[str, int]  # every outcome -> requests
    prompt_tokens: int | None
    output_tokens: int | None
    queued_requests: int | None  # newest value, summed over gateways
    in_flight_requests: int | None
    in_flight_tokens: int | None
    queue_wait: LatencyView
    ttft: LatencyView

    @property
    def refused_total(self) -> int:
        return sum(self.refused.values())


@dataclass(frozen=True, slots=True)
class TrafficPoint:
    """One tenant and tier in one bucket. None where no gateway was read."""

    at: datetime  # start of the bucket
    tenant: str
    tier: str
    offered: int | None
    admitted: int | None  # dispatched to an engine
    refused: int | None
    output_tokens: int | None
    queued_requests: float | None  # mean


def traffic_by_tenant(session: Session, since: datetime, until: datetime) -> list[TenantTraffic]:
    """Return what every tenant did in each tier in [since, until), by tier and tenant."""
    g = GatewaySampleRow
    where = [g.at >= since, g.at < until]
    totals = session.execute(
        select(
            g.tenant,
            g.tier,
            func.sum(g.offered),
            func.sum(g.dispatched),
            func.sum(g.prompt_tokens),
            func.sum(g.output_tokens),
        )
        .where(*where)
        .group_by(g.tenant, g.tier)
        .order_by(g.tier, g.tenant)
    )
    outcomes = _outcomes(session, since, until)
    present = present_load(session, since, until)
    by = (g.__table__.c.tenant, g.__table__.c.tier)
    waits = merged_increments(session, GATEWAY_COLUMNS["queue_wait_s"], where, by)
    ttfts = merged_increments(session, GATEWAY_COLUMNS["ttft_s"], where, by)
    found: list[TenantTraffic] = []
    for tenant, tier, offered, dispatched, prompt, output in totals:
        ended = outcomes.get((tenant, tier), {})
        queued, in_flight, tokens = present.get((tenant, tier), (None, None, None))
        found.append(
            TenantTraffic(
                tenant=tenant,
                tier=tier,
                offered=_whole(offered),
                dispatched=_whole(dispatched),
                refused={name: count for name, count in ended.items() if name in SHED},
                outcomes=ended,
                prompt_tokens=_whole(prompt),
                output_tokens=_whole(output),
                queued_requests=queued,
                in_flight_requests=in_flight,
                in_flight_tokens=tokens,
                queue_wait=latency_view("queue_wait_s", waits.get((tenant, tier), [])),
                ttft=latency_view("ttft_s", ttfts.get((tenant, tier), [])),
            )
        )
    return found


def gateway_ttft(session: Session, since: datetime, until: datetime) -> LatencyView:
    """Return the time to first token of [since, until) as the gateways measured it, all flows together."""
    g = GatewaySampleRow
    found = merged_increments(session, GATEWAY_COLUMNS["ttft_s"], [g.at >= since, g.at < until])
    return latency_view("ttft_s", found.get((), []))


def _whole(value: object) -> int | None:
    """Postgres sums bigints as numeric."""
    return None if value is None else int(str(value))


def shadow_refusals(session: Session, since: datetime, until: datetime) -> dict[str, int] | None:
    """Return requests that limits in shadow let through in [since, until), by limiter, most first.

    None if no gateway was read in that time that counts them: unknown, not none.
    """
    g = GatewaySampleRow
    where = (g.at >= since, g.at < until, g.would_refuse.is_not(None))
    if session.scalar(select(g.at).where(*where).limit(1)) is None:
        return None
    each = func.jsonb_each_text(g.would_refuse).table_valued("key", "value", joins_implicitly=True)
    count = func.sum(cast(each.c.value, BigInteger))
    rows = session.execute(select(each.c.key, count).select_from(g).where(*where).group_by(each.c.key))
    return dict(sorted(((name, int(total)) for name, total in rows), key=lambda row: (-row[1], row[0])))


def _outcomes(session: Session, since: datetime, until: datetime) -> dict[tuple[str, str], dict[str, int]]:
    g = GatewaySampleRow
    each = func.jsonb_each_text(g.outcomes).table_valued("key", "value", joins_implicitly=True)
    rows = session.execute(
        select(g.tenant, g.tier, each.c.key, func.sum(cast(each.c.value, BigInteger)))
        .where(g.at >= since, g.at < until)
        .group_by(g.tenant, g.tier, each.c.key)
        .order_by(each.c.key)
    )
    found: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for tenant, tier, outcome, count in rows:
        found[tenant, tier][outcome] = int(count)
    return found


def present_load(
    session: Session, since: datetime, until: datetime
) -> dict[tuple[str, str], tuple[int | None, int | None, int | None]]:
    """Return (queued, in flight, in-flight tokens) by tenant and tier: each gateway's newest, summed."""
    g = GatewaySampleRow
    newest = (
        select(g.gateway, func.max(g.at).label("at"))
        .where(g.at >= since, g.at < until)
        .group_by(g.gateway)
        .subquery()
    )
    rows = session.execute(
        select(
            g.tenant,
            g.tier,
            func.sum(g.queued_requests),
            func.sum(g.in_flight_requests),
            func.sum(g.in_flight_tokens),
        )
        .join(newest, (g.gateway == newest.c.gateway) & (g.at == newest.c.at))
        .where(g.at >= since, g.at < until)
        .group_by(g.tenant, g.tier)
    )
    return {
        (tenant, tier): (_whole(queued), _whole(in_flight), _whole(tokens))
        for tenant, tier, queued, in_flight, tokens in rows
    }


def traffic_timeline(
    session: Session,
    since: datetime,
    until: datetime,
    *,
    max_points: int = 360,
    tenant: str | None = None,
    tier: str | None = None,
) -> list[TrafficPoint]:
    """Return admitted and refused requests of [since, until) per tenant and tier in equal buckets.

    A bucket is a whole number of rounds, at most `max_points` a series; oldest first within a series.
    A series has a point for every bucket, with None where nothing was read. `refused` is what was shed.
    """
    g, period_s = GatewaySampleRow, scrape_period_s(session)
    since = aligned(since, period_s)
    bucket = bucket_length(since, until, period_s, max_points)
    start = func.date_bin(literal(bucket, Interval), g.at, literal(since)).label("start")
    where = [g.at >= since, g.at < until]
    if tenant is not None:
        where.append(g.tenant == tenant)
    if tier is not None:
        where.append(g.tier == tier)
    each = func.jsonb_each_text(g.outcomes).table_valued("key", "value")
    shed = (
        select(func.coalesce(func.sum(cast(each.c.value, BigInteger)), 0))
        .select_from(each)
        .where(each.c.key.in_([outcome.value for outcome in sorted(SHED)]))
        .scalar_subquery()
    )
    rows = session.execute(
        select(
            g.tenant,
            g.tier,
            start,
            func.sum(g.offered),
            func.sum(g.dispatched),
            func.sum(case((g.covered_s.is_not(None), shed))),
            func.sum(g.output_tokens),
            cast(func.avg(g.queued_requests), Double[float]()),
        )
        .where(*where)
        .group_by(g.tenant, g.tier, start)
    )
    found: dict[tuple[str, str], dict[datetime, TrafficPoint]] = defaultdict(dict)
    for name, level, at, offered, admitted, refused, output, queued in rows:
        found[name, level][at] = TrafficPoint(
            at, name, level, _whole(offered), _whole(admitted), _whole(refused), _whole(output), queued
        )
    starts = bucket_starts(since, until, bucket)
    return [
        points.get(at, TrafficPoint(at, name, level, None, None, None, None, None))
        for (name, level), points in sorted(found.items())
        for at in starts
    ]
