"""The fleet's own recent traffic, ready to be replayed through a policy, and the nodes it ran on.

Served requests come from the usage records, with their own sizes and times in the engine. Refused ones were
only counted, by tenant and tier: each is put into its round with the size of a served request of the same
tenant. Times are seconds from the start of the range. Prevents: a policy judged by the requests that the
last policy let through.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control.tables import GatewaySampleRow, NodeRow, PoolRow, SampleRow, UsageRecordRow
from fleet.errors import InvalidInput
from fleet.gate_replay import Arrival
from fleet.messages import PRICE_CLASSES, PriceClass
from fleet.offers import Request
from fleet.outcomes import SHED, Tier
from fleet.replay_servers import ReplayNode

MAX_REQUESTS = 500_000
#: A request that arrived in the range may have ended so much later.
LONGEST = timedelta(minutes=10)
#: A node that has not said its KV capacity for longer is left out.
CAPACITY_WITHIN = timedelta(hours=1)
_SHED = frozenset(outcome.value for outcome in SHED)


@dataclass(frozen=True, slots=True)
class RecordedTraffic:
    """Requests of a range of time, in order, and how many of them were refused then."""

    arrivals: tuple[Arrival, ...]
    served: int
    refused: dict[tuple[str, str], int]  # (tenant, tier) -> refused then, sizes taken from served ones
    unplaced: int  # refused then, of tenants and tiers without any served request: not replayed


def recorded_traffic(session: Session, since: datetime, until: datetime, seed: int = 1) -> RecordedTraffic:
    """Return the requests that came to the gateways in [since, until).

    Raises InvalidInput where nothing was recorded, or over half a million requests.
    """
    u = UsageRecordRow
    columns = (u.request_id, u.tenant, u.tier, u.model, u.endpoint, u.prompt_tokens, u.output_tokens)
    rows = session.execute(
        select(*columns, u.reserved_tokens, u.queued_s, u.engine_s, u.finished_at)
        .where(u.finished_at >= since, u.finished_at < until + LONGEST)
        .order_by(u.finished_at)
        .limit(MAX_REQUESTS + 1)
    ).all()
    if len(rows) > MAX_REQUESTS:
        raise InvalidInput(
            f"over {MAX_REQUESTS:,} requests were recorded", field="--minutes", hint="Give a shorter range"
        )
    served = [_arrival(row, since) for row in rows]
    span_s = (until - since).total_seconds()
    served = [one for one in served if 0 <= one.at_s < span_s]
    if not served:
        raise InvalidInput(
            f"no request was served between {since:%H:%M} and {until:%H:%M} UTC",
            field="--minutes",
            hint="Give a longer range, or replay a file with --trace",
        )
    refused, refused_counts, unplaced = _refused(session, since, until, served, random.Random(seed))
    everything = sorted([*served, *refused], key=_when)
    return RecordedTraffic(tuple(everything), len(served), refused_counts, unplaced)


def _when(arrival: Arrival) -> float:
    return arrival.at_s


def _arrival(row: Any, since: datetime) -> Arrival:
    before_s = float(row.queued_s) + float(row.engine_s)
    request = Request(
        request_id=row.request_id,
        tenant=row.tenant,
        tier=Tier(row.tier),
        model=row.model,
        endpoint=row.endpoint,
        prompt_tokens=row.prompt_tokens,
        max_tokens=max(0, row.reserved_tokens - row.prompt_tokens),  # what was booked for it then
    )
    at_s = (row.finished_at - since).total_seconds() - before_s
    return Arrival(at_s, request, max(1, row.output_tokens), float(row.engine_s))


def _refused(
    session: Session, since: datetime, until: datetime, served: Sequence[Arrival], rng: random.Random
) -> tuple[list[Arrival], dict[tuple[str, str], int], int]:
    """Return refused requests as arrivals, how many by tenant and tier, and how many had no twin."""
    twins: defaultdict[tuple[str, str], list[Arrival]] = defaultdict(list)
    for one in served:
        twins[one.request.tenant, str(one.request.tier)].append(one)
    g = GatewaySampleRow
    rows = session.execute(
        select(g.at, g.tenant, g.tier, g.covered_s, g.outcomes).where(g.at >= since, g.at < until)
    )
    found: list[Arrival] = []
    counts: defaultdict[tuple[str, str], int] = defaultdict(int)
    unplaced = 0
    for at, tenant, tier, covered_s, outcomes in rows:
        shed = sum(int(n) for outcome, n in outcomes.items() if outcome in _SHED)
        if not shed:
            continue
        candidates = twins.get((tenant, tier))
        if candidates is None:
            unplaced += shed
            continue
        if len(served) + len(found) + shed > MAX_REQUESTS:
            raise InvalidInput(
                f"over {MAX_REQUESTS:,} requests came", field="--minutes", hint="Give a shorter range"
            )
        counts[tenant, tier] += shed
        end_s = (at - since).total_seconds()
        for _ in range(shed):
            twin = rng.choice(candidates)
            at_s = max(0.0, end_s - rng.random() * (covered_s or 0.0))
            request = twin.request.asked_as(f"refused-{len(found)}", tenant, twin.request.tier)
            found.append(replace(twin, at_s=at_s, request=request))
    return found, dict(counts), unplaced


def replay_nodes(session: Session, now: datetime) -> list[ReplayNode]:
    """Return the nodes that take work, with the KV capacity each said last, all engines together.

    Raises InvalidInput when no node's capacity is known.
    """
    newest = (
        select(SampleRow.node, SampleRow.engine, func.max(SampleRow.at).label("at"))
        .where(SampleRow.at > now - CAPACITY_WITHIN, SampleRow.kv_capacity_tokens.is_not(None))
        .group_by(SampleRow.node, SampleRow.engine)
        .subquery()
    )
    said = session.execute(
        select(SampleRow.node, func.sum(SampleRow.kv_capacity_tokens), func.count())
        .join(
            newest,
            (SampleRow.node == newest.c.node)
            & (SampleRow.engine == newest.c.engine)
            & (SampleRow.at == newest.c.at),
        )
        .where(SampleRow.at > now - CAPACITY_WITHIN)
        .group_by(SampleRow.node)
    )
    capacities = {node: (int(tokens or 0), int(engines)) for node, tokens, engines in said}
    classes: dict[str, PriceClass] = {name: name for name in PRICE_CLASSES}
    rows = session.execute(
        select(NodeRow.name, NodeRow.price_class, PoolRow.models, PoolRow.max_num_seqs)
        .join(PoolRow, PoolRow.name == NodeRow.pool)
        .where(NodeRow.state == "active")
        .order_by(NodeRow.name)
    )
    found: list[ReplayNode] = []
    for name, price_class, models, slots in rows:
        if name not in capacities:
            continue
        tokens, engines = capacities[name]
        found.append(
            ReplayNode(
                name,
                models=tuple(models),
                kv_capacity_tokens=tokens,
                max_num_seqs=None if slots is None else slots * engines,
                price_class=classes.get(price_class, "on_demand"),
            )
        )
    if not found:
        raise InvalidInput(
            "no active node has said its KV capacity in the last hour",
            field="nodes",
            hint="`rhodeck nodes list` shows their states; the scraper must run",
        )
    return found
