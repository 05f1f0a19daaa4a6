"""Latency quantiles from merged histogram increments, each with how far it can be trusted.

Seconds. Increments of all engines, nodes and rounds are added first, the quantile is taken last, so it
is the quantile of the requests. Prevents: an average of percentiles, "p99 = 60 s" for "above the last
bucket", and a p99.9 of forty requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import BigInteger, ColumnElement, FromClause, case, column, func, select
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session

from control.tables import GatewaySampleRow, HistogramEdgesRow, NodeRow, SampleRow
from fleet.histograms import Quantile, merge, quantile
from fleet.readings import Histogram

Metric = Literal["ttft_s", "itl_s", "queue_wait_s", "e2e_s"]
METRICS: tuple[Metric, ...] = ("ttft_s", "itl_s", "queue_wait_s", "e2e_s")


@dataclass(frozen=True, slots=True)
class LatencyView:
    """Quantiles of one latency over an interval; None without observations.

    A `Quantile` says the bucket it lies in (`lo`, `hi`], `is_censored` above the last bucket, `too_few`
    with fewer than ten observations beyond it; `fleet.histograms.describe` puts it in words.
    """

    metric: Metric
    count: int
    mean_s: float | None
    p50: Quantile | None
    p95: Quantile | None
    p99: Quantile | None
    p999: Quantile | None
    edges_differ: bool  # sources had different buckets: only their common bounds are left


@dataclass(frozen=True, slots=True)
class Columns:
    """Where one latency's increments are kept: edges id, counts, sum."""

    edges: ColumnElement[Any]
    counts: ColumnElement[Any]
    sum_s: ColumnElement[Any]


def _columns(table: FromClause, prefix: str) -> Columns:
    return Columns(table.c[f"{prefix}_edges"], table.c[f"{prefix}_counts"], table.c[f"{prefix}_sum_s"])


SAMPLE_COLUMNS: dict[Metric, Columns] = {
    "ttft_s": _columns(SampleRow.__table__, "ttft"),
    "itl_s": _columns(SampleRow.__table__, "itl"),
    "queue_wait_s": _columns(SampleRow.__table__, "queue_wait"),
    "e2e_s": _columns(SampleRow.__table__, "e2e"),
}
GATEWAY_COLUMNS: dict[Metric, Columns] = {
    "ttft_s": _columns(GatewaySampleRow.__table__, "ttft"),
    "queue_wait_s": _columns(GatewaySampleRow.__table__, "queue_wait"),
}


def latency_quantiles(
    session: Session,
    *,
    since: datetime,
    until: datetime,
    node: str | None = None,
    pool: str | None = None,
) -> dict[Metric, LatencyView]:
    """Return each latency over [since, until) as the engines measured it: of a node, a pool or the fleet.

    Every metric is present; one that nobody measured has count 0 and no quantiles. What a node measured
    counts in the pool it was in then; while it rested in no pool and not in the fleet: it served tests,
    not users. Samples older than this was kept go with the node as it is now.
    """
    where = [SampleRow.at >= since, SampleRow.at < until]
    if node is not None:
        where.append(SampleRow.node == node)
    elif pool is not None:
        present = select(NodeRow.pool).where(NodeRow.name == SampleRow.node).scalar_subquery()
        where.append(func.coalesce(SampleRow.counted_in, present) == pool)
    else:
        where.append(SampleRow.counted_in.is_distinct_from(""))
    views: dict[Metric, LatencyView] = {}
    for metric, columns in SAMPLE_COLUMNS.items():
        merged = merged_increments(session, columns, where)
        views[metric] = latency_view(metric, merged.get((), []))
    return views


def merged_increments(
    session: Session,
    columns: Columns,
    where: Sequence[ColumnElement[bool]],
    by: Sequence[ColumnElement[str]] = (),
) -> dict[tuple[str, ...], list[Histogram]]:
    """Return the summed increments for each value of `by`: one histogram a set of bucket edges."""
    each = func.unnest(columns.counts).table_valued(
        column("value", BigInteger), with_ordinality="position", joins_implicitly=True
    )
    each = each.render_derived()
    bucket = (
        select(
            *(key.label(f"key{i}") for i, key in enumerate(by)),
            columns.edges.label("edges_id"),
            each.c.position.label("position"),
            func.sum(each.c.value).cast(BigInteger).label("total"),
            # every row of one (keys, edges) has each position once, so any position's sum is the sum
            case((func.count() == func.count(columns.sum_s), func.sum(columns.sum_s))).label("sum_s"),
        )
        .where(*where, columns.edges.is_not(None))
        .group_by(*by, columns.edges, each.c.position)
        .subquery()
    )
    names = [f"key{i}" for i in range(len(by))]
    keys: list[ColumnElement[Any]] = [bucket.c[name] for name in names]
    counts = (
        select(
            *keys,
            bucket.c.edges_id,
            func.array_agg(aggregate_order_by(bucket.c.total, bucket.c.position)).label("counts"),
            func.min(bucket.c.sum_s).label("sum_s"),
        )
        .group_by(*keys, bucket.c.edges_id)
        .subquery()
    )
    rows = session.execute(
        select(counts, HistogramEdgesRow.edges).join(
            HistogramEdgesRow, HistogramEdgesRow.id == counts.c.edges_id
        )
    ).mappings()
    merged: dict[tuple[str, ...], list[Histogram]] = {}
    for row in rows:
        histogram = Histogram(tuple(row["edges"]), tuple(row["counts"]), row["sum_s"])
        merged.setdefault(tuple(row[name] for name in names), []).append(histogram)
    return merged


def latency_view(metric: Metric, histograms: Sequence[Histogram]) -> LatencyView:
    """Return the quantiles of all `histograms` together. The mean needs every sum to be known."""
    merged = merge(histograms)
    if merged is None or merged.count == 0:
        return LatencyView(
            metric, 0, None, None, None, None, None, edges_differ=bool(histograms) and merged is None
        )
    return LatencyView(
        metric,
        merged.count,
        None if merged.sum is None else merged.sum / merged.count,
        quantile(merged, 0.5),
        quantile(merged, 0.95),
        quantile(merged, 0.99),
        quantile(merged, 0.999),
        edges_differ=len({h.edges for h in histograms}) > 1,
    )
