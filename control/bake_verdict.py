"""What the samples of a baking gateway say about the promises made to users.

Ratios are 0..1, times seconds. Good is a first token within the objective; queue refusals, evictions,
outages and failures are not good. Refusals a policy asks for (quotas, tiers, sizes) and clients that left
count neither way. Prevents: a rollout promoted without data, one blamed for what the other gateways
suffer too, and one taken back because it enforces the quota it was written for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import BigInteger, func, select
from sqlalchemy.orm import Session

from control.deps import Bake, Finding, Verdict
from control.freshness import stale_after_s
from control.queries_fleet import scrape_period_s
from control.queries_latency import GATEWAY_COLUMNS, merged_increments
from control.tables import GatewaySampleRow, RoundRow
from fleet.histograms import merge
from fleet.outcomes import Outcome
from fleet.percentages import percent
from fleet.slo import counted_within

MIN_REQUESTS = 20
NOT_GOOD = frozenset(
    {
        Outcome.REJECTED_QUEUE_FULL,
        Outcome.REJECTED_TOO_LATE,
        Outcome.EVICTED_WAIT,
        Outcome.EVICTED_DISPLACED,
        Outcome.NO_NODES,
        Outcome.UPSTREAM_ERROR,
        Outcome.UPSTREAM_TIMEOUT,
    }
)


@dataclass(frozen=True, slots=True)
class Attainment:
    """How many requests were judged and how many of them were good: between `low` and `high`."""

    requests: int
    good_low: int
    good_high: int


def verdict(session: Session, bake: Bake) -> Finding:
    """Return whether the baking gateway kept the objective since its bake began.

    "Cannot tell" with fewer than 20 judged requests, samples that stopped coming, an objective between
    two bucket edges, or other gateways that miss it too.
    """
    newest = session.scalar(
        select(func.max(GatewaySampleRow.at)).where(
            GatewaySampleRow.gateway == bake.gateway, GatewaySampleRow.at >= bake.since - timedelta(days=1)
        )
    )
    last_round = session.scalar(select(func.max(RoundRow.at)))
    if newest is None or last_round is None:
        return Finding(Verdict.NO_DATA, f"{bake.gateway} gave no samples")
    if (last_round - newest).total_seconds() >= stale_after_s(scrape_period_s(session)):
        return Finding(Verdict.NO_DATA, f"the last sample of {bake.gateway} is of {newest:%H:%M:%S} UTC")
    return judge(
        bake,
        attainment(session, [bake.gateway], bake.since, bake.slo.ttft_s),
        attainment(session, bake.others, bake.since, bake.slo.ttft_s),
    )


def judge(bake: Bake, own: Attainment, others: Attainment) -> Finding:
    """Return the verdict on `own`, with the other gateways as the measure of what is nobody's fault."""
    target = bake.slo.attainment_ratio
    said = f"{own.good_low} of {own.requests} requests had their first token within {bake.slo.ttft_s:g} s"
    if own.requests < MIN_REQUESTS:
        return Finding(
            Verdict.NO_DATA, f"{own.requests} requests are too few to judge; {MIN_REQUESTS} needed"
        )
    if own.good_low >= target * own.requests:
        return Finding(Verdict.HEALTHY, said)
    if own.good_high >= target * own.requests:
        return Finding(Verdict.NO_DATA, f"{own.good_low} to {own.good_high} of {own.requests} were good")
    if others.requests >= MIN_REQUESTS and others.good_high < target * others.requests:
        return Finding(Verdict.NO_DATA, f"{said}, and the other gateways miss the objective too")
    return Finding(Verdict.BREACHED, f"{said}; promised are {percent(target, 1)}")


def attainment(session: Session, gateways: Sequence[str], since: datetime, ttft_s: float) -> Attainment:
    """Return what `gateways` together did in whole rounds after `since`."""
    g = GatewaySampleRow
    # the round that was under way when the bake began is not counted
    where = [g.gateway.in_(gateways), g.at > since + timedelta(seconds=scrape_period_s(session))]
    histograms = merged_increments(session, GATEWAY_COLUMNS["ttft_s"], where).get((), [])
    merged = merge(histograms)
    low, high = (0, 0) if merged is None else counted_within(merged, ttft_s)
    each = func.jsonb_each_text(g.outcomes).table_valued("key", "value", joins_implicitly=True)
    failed = session.scalar(
        select(func.sum(each.c.value.cast(BigInteger)))
        .select_from(g, each)
        .where(*where, each.c.key.in_([outcome.value for outcome in sorted(NOT_GOOD)]))
    )
    started = 0 if merged is None else merged.count
    return Attainment(started + int(failed or 0), low, high)
