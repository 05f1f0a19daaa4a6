"""What the fleet itself measured of an estimate's inputs: each with its value, band, source and date.

Rates are requests/s, durations seconds, prices US dollars a node-hour, shares ratios. What was not measured
is absent with the reason, never a default. Prevents: a cost from somebody else's node speed, and a
measurement without its date.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from control.tables import GatewaySampleRow, HealthRow, NodeRow, PriceRow, SampleRow, UsageRecordRow
from fleet.refusal_split import TIER_WEIGHTS

#: How far back is looked, and how old a node's newest capacity may be.
WINDOW = timedelta(days=7)
FRESH = timedelta(hours=1)
#: Fewer requests than this say nothing about a mean.
MIN_REQUESTS = 200
#: From registering to the first answer: a start takes at least the one and at most the other.
LEAST_START_S, MOST_START_S = 5.0, 3_600.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One input as measured. `name` is the document's key; `low` and `high` where a band is known."""

    name: str
    value: Any
    source: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """One input nobody measured, and why."""

    name: str
    reason: str


def measured_inputs(session: Session, now: datetime) -> list[Measured | Unmeasured]:
    """Return every input that can be measured, as measured up to `now`, or why it is not."""
    parts: list[Callable[[Session, datetime], list[Measured | Unmeasured]]] = [
        _service_rate,
        _tokens,
        _tiers,
        _cold_start,
        _prices,
    ]
    return [one for part in parts for one in part(session, now)]


def _day(at: datetime) -> str:
    return f"{at:%Y-%m-%d}"


def _service_rate(session: Session, now: datetime) -> list[Measured | Unmeasured]:
    """The mean of the nodes' newest capacity verdicts, each at most an hour old."""
    h = HealthRow
    rows = session.execute(
        select(h.name, h.service_rate, h.service_rate_low, h.service_rate_high)
        .where(h.scope == "node", h.at >= now - FRESH, h.at <= now, h.service_rate > 0)
        .ext(distinct_on(h.name))
        .order_by(h.name, h.at.desc())
    ).all()
    if not rows:
        return [Unmeasured("mu", "no node's capacity was learnt in the last hour")]

    def mean(values: list[float]) -> float | None:
        return sum(values) / len(values) if len(values) == len(rows) else None

    low = mean([row.service_rate_low for row in rows if row.service_rate_low is not None])
    high = mean([row.service_rate_high for row in rows if row.service_rate_high is not None])
    value = sum(row.service_rate for row in rows) / len(rows)
    band = "" if low is None or high is None else f", band {low:.3g} to {high:.3g}"
    source = f"measured: learnt capacity of {len(rows)} nodes at the present mix{band} ({_day(now)})"
    return [Measured("mu", value, source, low, high)]


def _tokens(session: Session, now: datetime) -> list[Measured | Unmeasured]:
    u = UsageRecordRow
    count, prompt, output = session.execute(
        select(func.count(), func.avg(u.prompt_tokens), func.avg(u.output_tokens)).where(
            u.finished_at >= now - WINDOW, u.finished_at <= now, u.output_tokens > 0
        )
    ).one()
    if count < MIN_REQUESTS:
        why = f"{count} finished requests in 7 days; {MIN_REQUESTS} are needed"
        return [Unmeasured("tokens_in", why), Unmeasured("tokens_out", why)]
    source = f"measured: mean of {count:,} finished requests of 7 days ({_day(now)})"
    return [Measured("tokens_in", float(prompt), source), Measured("tokens_out", float(output), source)]


def _tiers(session: Session, now: datetime) -> list[Measured | Unmeasured]:
    g = GatewaySampleRow
    rows = session.execute(
        select(g.tier, func.sum(g.offered)).where(g.at >= now - WINDOW, g.at <= now).group_by(g.tier)
    )
    offered = {tier: float(count) for tier, count in rows if tier in TIER_WEIGHTS and count}
    total = sum(offered.values())
    if total < MIN_REQUESTS:
        return [Unmeasured("tiers", f"{total:.0f} requests at the gateways in 7 days")]
    shares = {tier: offered.get(tier, 0.0) / total for tier in TIER_WEIGHTS}
    return [
        Measured(
            "tiers", shares, f"measured: {total:,.0f} requests at the gateways of 7 days ({_day(now)})"
        )
    ]


def _cold_start(session: Session, now: datetime) -> list[Measured | Unmeasured]:
    """From registering a node to its first good page: what provisioning, pulling and loading took."""
    n, s = NodeRow, SampleRow
    since = now - WINDOW
    firsts = (
        select(s.node, func.min(s.at).label("first_at")).where(s.at >= since).group_by(s.node).subquery()
    )
    rows = session.execute(
        select(n.created_at, firsts.c.first_at)
        .join(firsts, firsts.c.node == n.name)
        .where(n.created_at >= since)
    )
    took_s = sorted((first_at - created_at).total_seconds() for created_at, first_at in rows)
    took_s = [seconds for seconds in took_s if LEAST_START_S <= seconds <= MOST_START_S]
    if not took_s:
        return [Unmeasured("cold_start_s", "no node was seen starting in 7 days")]
    middle = took_s[len(took_s) // 2]
    source = (
        f"measured: {len(took_s)} starts of 7 days, registered to first answer, "
        f"{took_s[0]:.0f} to {took_s[-1]:.0f} s ({_day(now)})"
    )
    return [Measured("cold_start_s", middle, source, took_s[0], took_s[-1])]


def _prices(session: Session, now: datetime) -> list[Measured | Unmeasured]:
    """The price list's prices in force for every pool; a pool's own price is not a fleet's."""
    p = PriceRow
    found: list[Measured | Unmeasured] = []
    for name, price_class in (
        ("price", "on_demand"),
        ("reserved_price", "reserved"),
        ("spot_price", "spot"),
    ):
        row = session.execute(
            select(p.usd_per_node_hour, p.effective_from, p.source)
            .where(p.price_class == price_class, p.pool.is_(None), p.effective_from <= now)
            .order_by(p.effective_from.desc(), p.id.desc())
            .limit(1)
        ).first()
        if row is None:
            words = price_class.replace("_", " ")
            found.append(Unmeasured(name, f"the price list has no {words} price for all pools"))
        else:
            said = "".join(c if c.isprintable() else " " for c in row.source)[:120]
            source = f"price list: {said} (in force from {_day(row.effective_from)})"
            found.append(Measured(name, float(row.usd_per_node_hour), source))
    return found
