"""Rows of gateways for one diagnosis: what all of them did for one tenant and tier in one round, added up.

Counts are requests or tokens of the round, sums of times seconds. Postgres adds, for a large fleet has tens
of thousands of rows in fifteen minutes; gateways with other bucket edges stay apart. Prevents: a page whose
process adds arrays for seconds while every other page waits, and a sum that passes over who did not say.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import RowMapping, text
from sqlalchemy.orm import Session

from control.rollup_sql import added_buckets, added_if_all

COUNTS = (
    "offered", "repeated", "dispatched", "prompt_tokens", "output_tokens", "queued_requests",
    "in_flight_requests",
)  # fmt: skip
HISTOGRAMS = ("queue_wait", "ttft")


def flow_rounds(session: Session, since: datetime, until: datetime, buckets: int) -> Sequence[RowMapping]:
    """Return rows of (since, until] by time: one for each round, tenant, tier and set of bucket edges.

    A count that one of its gateways did not give is None; `outcomes` is a list, one dictionary a gateway.
    `buckets`: the most that any histogram has.
    """
    edges = ", ".join(f"{prefix}_edges" for prefix in HISTOGRAMS)
    counts = ", ".join(f"{added_if_all(name)}::bigint AS {name}" for name in COUNTS)
    histograms = ", ".join(
        f"{added_buckets(f'{prefix}_counts', buckets)} AS {prefix}_counts, "
        f"{added_if_all(f'{prefix}_sum_s')} AS {prefix}_sum_s"
        for prefix in HISTOGRAMS
    )
    statement = (
        "SELECT at, tenant, tier, max(covered_s) AS covered_s, array_agg(outcomes) AS outcomes, "  # noqa: S608 # constants
        f"{edges}, {counts}, {histograms} FROM gateway_sample "
        "WHERE at > :since AND at <= :until AND covered_s IS NOT NULL "
        f"GROUP BY at, tenant, tier, {edges} ORDER BY at"
    )
    return session.execute(text(statement), {"since": since, "until": until}).mappings().all()
