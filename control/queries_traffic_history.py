"""What tenants did over a range of any length, from rounds, minutes or hours.

Counts are requests or tokens in the range, times seconds. Prevents: a month of traffic added up from a
hundred million rows, and a rate that divides by time in which nobody counted.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from control.queries_gateway_traffic import TenantTraffic, present_load
from control.queries_history import Reading, read_rows, sum_level_of
from control.queries_latency import LatencyView, latency_view
from control.rollup_sql import added_buckets
from control.tables_rollup import GATEWAY
from fleet.outcomes import SHED
from fleet.readings import Histogram

#: How far back the present load of the gateways is looked for.
PRESENT = timedelta(minutes=5)
Flow = tuple[str, str]  # tenant, tier


@dataclass(frozen=True, slots=True)
class Traffic:
    """What tenants did in a range, and for how many seconds of it each (tenant, tier) was counted."""

    flows: tuple[TenantTraffic, ...]
    covered_s: dict[Flow, float]


def traffic_history(
    session: Session, since: datetime, until: datetime, *, has_latency: bool = True
) -> Traffic:
    """Return what every tenant did in each tier in [since, until), all gateways together.

    Without `has_latency` every wait and first token has count 0: half of the time goes into them.
    """
    read = _flows(session, since, until, {"offered", "dispatched", "prompt_tokens", "output_tokens"})
    rows = session.execute(
        text(
            "SELECT tenant, tier, sum(offered)::float8, sum(dispatched)::float8, "  # noqa: S608 # constants
            f"sum(prompt_tokens)::float8, sum(output_tokens)::float8 FROM ({read.source}) AS r "
            "GROUP BY tenant, tier ORDER BY tier, tenant"
        ),
        read.given,
    ).all()
    outcomes = _outcomes(session, since, until)
    present = present_load(session, max(since, until - PRESENT), until)
    waits = _histograms(session, since, until, "queue_wait") if has_latency else {}
    ttfts = _histograms(session, since, until, "ttft") if has_latency else {}
    flows = tuple(
        _flow((tenant, tier), counts, outcomes, present, waits, ttfts) for tenant, tier, *counts in rows
    )
    return Traffic(flows, _covered(session, since, until))


def door_ttft(session: Session, since: datetime, until: datetime) -> LatencyView:
    """Return the time to first token of [since, until) as the gateways measured it, all flows together."""
    found = _histograms(session, since, until, "ttft")
    return latency_view("ttft_s", [each for of_flow in found.values() for each in of_flow])


def _flow(
    flow: Flow,
    counts: list[float | None],
    outcomes: dict[Flow, dict[str, int]],
    present: dict[Flow, tuple[int | None, int | None, int | None]],
    waits: dict[Flow, list[Histogram]],
    ttfts: dict[Flow, list[Histogram]],
) -> TenantTraffic:
    offered, dispatched, prompt, output = (None if count is None else round(count) for count in counts)
    queued, in_flight, tokens = present.get(flow, (None, None, None))
    ended = outcomes.get(flow, {})
    return TenantTraffic(
        tenant=flow[0],
        tier=flow[1],
        offered=offered,
        dispatched=dispatched,
        refused={name: count for name, count in ended.items() if name in SHED},
        outcomes=ended,
        prompt_tokens=prompt,
        output_tokens=output,
        queued_requests=queued,
        in_flight_requests=in_flight,
        in_flight_tokens=tokens,
        queue_wait=latency_view("queue_wait_s", waits.get(flow, [])),
        ttft=latency_view("ttft_s", ttfts.get(flow, [])),
    )


def _flows(session: Session, since: datetime, until: datetime, only: set[str]) -> Reading:
    """Return rows of all gateways together, with these columns: the others would be read in vain."""
    level = sum_level_of(session, GATEWAY, since, until)
    return read_rows(
        session, GATEWAY, since, until, "gateway = ''", "true", only=only, is_total=True, level=level
    )


def _outcomes(session: Session, since: datetime, until: datetime) -> dict[Flow, dict[str, int]]:
    read = _flows(session, since, until, {"outcomes"})
    rows = session.execute(
        text(
            "SELECT tenant, tier, e.key, sum(e.value::numeric)::float8 "  # noqa: S608 # constants
            f"FROM ({read.source}) AS r, jsonb_each_text(outcomes) AS e "
            "GROUP BY tenant, tier, e.key ORDER BY e.key"
        ),
        read.given,
    )
    found: dict[Flow, dict[str, int]] = defaultdict(dict)
    for tenant, tier, outcome, count in rows:
        found[tenant, tier][outcome] = round(count)
    return found


def _histograms(
    session: Session, since: datetime, until: datetime, prefix: str
) -> dict[Flow, list[Histogram]]:
    only = {f"{prefix}_edges", f"{prefix}_counts", f"{prefix}_sum_s"}
    read = _flows(session, since, until, only)
    edges: dict[int, tuple[float, ...]] = {
        id_: tuple(bounds) for id_, bounds in session.execute(text("SELECT id, edges FROM histogram_edges"))
    }
    most = max(map(len, edges.values()), default=0) + 1
    rows = session.execute(
        text(
            f"SELECT tenant, tier, {prefix}_edges, {added_buckets(f'{prefix}_counts', most)}, "  # noqa: S608
            f"CASE WHEN count(*) = count({prefix}_sum_s) THEN sum({prefix}_sum_s) END "
            f"FROM ({read.source}) AS r WHERE {prefix}_edges IS NOT NULL "
            f"GROUP BY tenant, tier, {prefix}_edges"
        ),
        read.given,
    )
    found: dict[Flow, list[Histogram]] = defaultdict(list)
    for tenant, tier, edges_id, counts, sum_s in rows:
        found[tenant, tier].append(Histogram(edges[edges_id], tuple(counts), sum_s))
    return found


def _covered(session: Session, since: datetime, until: datetime) -> dict[Flow, float]:
    """Return for each flow how long its tokens were counted, seconds on the wall.

    Gateways count side by side: of rows of one time the longest is meant, not their sum.
    """
    read = _flows(session, since, until, {"counted_s"})
    rows = session.execute(
        text(
            "SELECT tenant, tier, sum(longest) FROM "  # noqa: S608 # constants
            f"(SELECT tenant, tier, max(counted_s) AS longest FROM ({read.source}) AS r "
            "GROUP BY tenant, tier, at) AS moment GROUP BY tenant, tier HAVING sum(longest) > 0"
        ),
        read.given,
    )
    return {(tenant, tier): counted_s for tenant, tier, counted_s in rows}
