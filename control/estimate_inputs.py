"""What the fleet itself measured of an estimate's inputs: each with its value, band, source and date.

Rates are requests/s, durations seconds, prices US dollars a node-hour, shares ratios. What was not measured
is absent with the reason, never a default. Prevents: a cost from somebody else's node speed, and a
measurement without its date.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from sqlalchemy import exists, func, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from control import queries_policy
from control.comparison_flows import rest
from control.queries_policy import Revision
from control.tables import (
    GatewaySampleRow,
    HealthRow,
    NodeRow,
    PriceRow,
    RoundRow,
    SampleRow,
    ScrapeFailureRow,
    UsageRecordRow,
)
from fleet.burst_lengths import burst_lengths
from fleet.bursts import PART_S
from fleet.readings import Reason
from fleet.refusal_split import TIER_WEIGHTS

#: How far back is looked, and how old a node's newest capacity may be.
WINDOW = timedelta(days=7)
FRESH = timedelta(hours=1)
#: Fewer requests than this say nothing about a mean.
MIN_REQUESTS = 200
#: From registering to the first answer: a start takes at least the one and at most the other.
LEAST_START_S, MOST_START_S = 5.0, 3_600.0
#: What a node that is starting is seen as: nothing listens, nobody answers, or not yet with 200.
_STARTING = tuple(
    reason.value
    for reason in (
        Reason.REFUSED,
        Reason.TIMEOUT,
        Reason.UNREACHABLE,
        Reason.HTTP_ERROR,
        Reason.TARGET_DOWN,
    )
)
#: Tenants of a tier told apart; the others go together.
MOST_NAMED = 8
#: Less of a record than this says nothing about bursts.
MIN_JUDGED_S = 3_600.0


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
        _whose,
        _bursts,
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
    nodes = "1 node" if len(rows) == 1 else f"{len(rows)} nodes"
    source = f"measured: learnt capacity of {nodes} at the present mix{band} ({_day(now)})"
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


def _whose(session: Session, now: datetime) -> list[Measured | Unmeasured]:
    """Shares of tiers, tenants' shares of them, and the weights of the policy in force."""
    g = GatewaySampleRow
    rows = session.execute(
        select(g.tier, g.tenant, func.sum(g.offered), func.min(g.at))
        .where(g.at >= now - WINDOW, g.at <= now, g.tier.in_(list(TIER_WEIGHTS)))
        .group_by(g.tier, g.tenant)
    )
    counts: dict[str, dict[str, float]] = {tier: {} for tier in TIER_WEIGHTS}
    since = now
    for tier, tenant, count, first_at in rows:
        since = min(since, first_at)
        if count:
            counts[tier][tenant] = float(count)
    head = queries_policy.head(session)
    found: list[Measured | Unmeasured] = [_weights(head)]
    total = sum(count for tenants in counts.values() for count in tenants.values())
    if total < MIN_REQUESTS:
        why = f"{total:.0f} requests recorded at the gateways; {MIN_REQUESTS} are needed"
        return [Unmeasured("tiers", why), Unmeasured("tenants", why), *found]
    source = f"measured: {total:,.0f} requests at the gateways since {since:%Y-%m-%d %H:%M} ({_day(now)})"
    tiers = {tier: sum(tenants.values()) / total for tier, tenants in counts.items()}
    own: dict[str, Any] = {} if head is None else head.document.get("tenants", {})
    shares = {tier: _shares(tenants, own) for tier, tenants in counts.items() if tenants}
    return [Measured("tiers", tiers, source), Measured("tenants", shares, source), *found]


def _weights(head: Revision | None) -> Measured | Unmeasured:
    if head is None:
        return Unmeasured("weights", "no policy is published yet")
    weights = {tier: float(head.document["tiers"][tier]["weight"]) for tier in TIER_WEIGHTS}
    return Measured("weights", weights, f"policy revision {head.number} ({_day(head.created_at)})")


def _shares(counts: Mapping[str, float], own: Mapping[str, Any]) -> dict[str, list[float]]:
    """Tenants' shares of a tier and weights: those with most requests by name, the others together."""
    total = sum(counts.values())

    def weight(tenant: str) -> float:
        return float(own.get(tenant, {}).get("weight", 1))

    order = sorted(counts, key=lambda tenant: (-counts[tenant], tenant))
    named, others = order[:MOST_NAMED], order[MOST_NAMED:]
    if len(others) == 1:
        named, others = order, []
    found = {tenant: [counts[tenant] / total, weight(tenant)] for tenant in named}
    if others:
        share = sum(counts[tenant] for tenant in others) / total
        found[rest(len(others))] = [share, sum(weight(tenant) for tenant in others)]
    return found


def _bursts(session: Session, now: datetime) -> list[Measured | Unmeasured]:
    """How long the arrivals at the gateways stood at twice the usual or more, from counts by 30 s."""
    g = GatewaySampleRow
    part = func.floor(func.extract("epoch", g.at) / PART_S)
    rows = session.execute(
        select(part, func.sum(g.offered))
        .where(g.at >= now - WINDOW, g.at <= now, g.covered_s > 0, g.covered_s <= PART_S)
        .group_by(part)
    )
    counts = {int(place): float(count) for place, count in rows if count is not None}
    places = range(min(counts), max(counts) + 1) if counts else range(0)
    found = burst_lengths([counts.get(place) for place in places])
    if found.judged_s < MIN_JUDGED_S:
        why = f"{found.judged_s / 60:.0f} minutes of recorded arrivals; {MIN_JUDGED_S / 60:.0f} are needed"
        return [Unmeasured("burst_s", why)]
    hours = f"{found.judged_s / 3600:.1f} h of recorded arrivals"
    if not found.lengths_s:
        return [Unmeasured("burst_s", f"no burst (90 s at twice the usual rate) in {hours}")]
    low, high = found.lengths_s[0], found.lengths_s[-1]
    cut = f", {found.cut} more cut by gaps" if found.cut else ""
    source = (
        f"measured: median of {len(found.lengths_s)} bursts (90 s at twice the usual rate or more) in "
        f"{hours}, {low:.0f} to {high:.0f} s{cut} ({_day(now)})"
    )
    return [Measured("burst_s", float(median(found.lengths_s)), source, low, high)]


def _cold_start(session: Session, now: datetime) -> list[Measured | Unmeasured]:
    """From registering a node to its first good page, where it was seen not to answer in between.

    A node that answered when it was first asked ran already: how long it took to start is not known.
    """
    n, s, f = NodeRow, SampleRow, ScrapeFailureRow
    kept_since = session.scalar(select(func.min(RoundRow.at)))  # older looks are no longer known
    since = max(now - WINDOW, kept_since or now - WINDOW)
    firsts = (
        select(s.node, func.min(s.at).label("first_at"))
        .where(s.at >= since, s.at <= now)
        .group_by(s.node)
        .subquery()
    )
    was_away = exists().where(
        f.node == n.name, f.reason.in_(_STARTING), f.at >= n.created_at, f.at < firsts.c.first_at
    )
    rows = session.execute(
        select(n.created_at, firsts.c.first_at, was_away)
        .join(firsts, firsts.c.node == n.name)
        .where(n.created_at >= since)
    ).all()
    took_s = sorted((first_at - created_at).total_seconds() for created_at, first_at, away in rows if away)
    took_s = [seconds for seconds in took_s if LEAST_START_S <= seconds <= MOST_START_S]
    if not took_s:
        ran = sum(not away for _, _, away in rows)
        more = f"; {ran} answered when first asked" if ran else ""
        return [
            Unmeasured("cold_start_s", f"not seen: no node was seen starting since {_day(since)}{more}")
        ]
    source = (
        f"measured: median of {len(took_s)} starts since {_day(since)}, registered to first answer, "
        f"{took_s[0]:.0f} to {took_s[-1]:.0f} s ({_day(now)})"
    )
    return [Measured("cold_start_s", float(median(took_s)), source, took_s[0], took_s[-1])]


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
