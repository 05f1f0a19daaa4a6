"""What pages, API and CLI may ask about single nodes.

Counts are of all engines of a node together; ages are seconds at the caller's `now`, ratios 0..1, rates
per second. `None` means the node did not say. Prevents: a silent node that looks idle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from control.freshness import Freshness, age_s, freshness, news_period_s, silent_after_s
from control.queries_fleet import HealthView, node_health, scrape_period_s
from control.queries_promsource import node_sources
from control.tables import CapacityEstimateRow, NodeRow, SampleRow, ScrapeFailureRow
from fleet.errors import NotFound

#: How far back the newest sample of a node is looked for.
LOOK_BACK = timedelta(days=2)
#: Decoding gaps a window needs before its (batch, gap) point means anything.
MIN_SCATTER_EVENTS = 200


@dataclass(frozen=True, slots=True)
class NodeRowView:
    """One line of the fleet table."""

    name: str
    pool: str
    base_url: str
    price_class: str
    state: str  # desired: "active" | "draining" | "maintenance"
    freshness: Freshness
    seen_at: datetime | None  # newest sample
    age_s: float | None
    models: tuple[str, ...]
    engines: int
    rho: float | None
    rho_low: float | None
    rho_high: float | None
    grade: str | None
    binding: str | None
    saturated: bool | None
    arrival_rate: float | None
    throughput: float | None  # X, finished requests/s
    service_rate: float | None  # mu, requests/s
    running: int | None  # last known; read it with `freshness`
    waiting: int | None
    kv_used_ratio: float | None  # of all engines, by capacity
    kv_used_tokens: int | None
    kv_capacity_tokens: int | None
    flags: tuple[str, ...]  # data-quality remarks of the newest sample: "frozen", "restart", ...
    last_failure_at: datetime | None
    last_failure_reason: str | None
    last_failure_detail: str | None
    source: str = "direct"  # "prometheus:NAME" where samples are read from a server


@dataclass(frozen=True, slots=True)
class NodePoint:
    """One round of one node. Rates are over the time really covered."""

    at: datetime
    covered_s: float | None
    running: int | None
    waiting: int | None
    kv_used_ratio: float | None
    arrivals_rate: float | None
    completed_rate: float | None
    prompt_tokens_rate: float | None
    output_tokens_rate: float | None
    preemptions: int | None
    restarted: bool
    failure: str | None = None  # reason; then everything else is None


@dataclass(frozen=True, slots=True)
class CapacityView:
    """The newest capacity estimate of one engine, and why."""

    engine: str
    at: datetime
    age_s: float
    service_rate: float | None
    service_rate_low: float | None
    service_rate_high: float | None
    grade: str
    method: str
    binding: str | None
    reach_ratio: float | None  # largest batch seen / operating batch
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """Mean inter-token latency against mean number of decoding requests, one window of one engine."""

    engine: str
    batch: float
    itl_s: float


@dataclass(frozen=True, slots=True)
class NodeDetail:
    """Everything the node page shows."""

    row: NodeRowView
    health: HealthView | None
    points: tuple[NodePoint, ...]  # oldest first; a round without a sample is there with its reason
    capacity: tuple[CapacityView, ...]
    scatter: tuple[BatchPoint, ...]


def node_names(session: Session) -> list[str]:
    """Return the names of nodes that are not removed, in their order."""
    return list(
        session.scalars(select(NodeRow.name).where(NodeRow.state != "removed").order_by(NodeRow.name))
    )


def node_table(session: Session, now: datetime) -> list[NodeRowView]:
    """Return every node that is not removed, by name, with its newest facts and their age.

    A node whose last sample is two days old or more has no last values any more.
    """
    nodes = list(session.scalars(select(NodeRow).where(NodeRow.state != "removed").order_by(NodeRow.name)))
    return _rows(session, nodes, now)


def _rows(session: Session, nodes: Sequence[NodeRow], now: datetime) -> list[NodeRowView]:
    period_s = scrape_period_s(session)
    names = [node.name for node in nodes]
    samples = _newest_samples(session, names, now, period_s)
    failures = _newest_failures(session, names, now)
    only = names[0] if len(names) == 1 else None
    verdicts = {view.name: view for view in node_health(session, now, name=only)}
    read_from = node_sources(session)
    rows = [
        _row(
            node,
            samples.get(node.name, []),
            failures.get(node.name),
            verdicts.get(node.name),
            now,
            _news_period_s(period_s, samples.get(node.name, []), is_sourced=node.name in read_from),
        )
        for node in nodes
    ]
    return [
        replace(row, source=f"prometheus:{read_from[row.name].source}") if row.name in read_from else row
        for row in rows
    ]


def _news_period_s(period_s: float, samples: Sequence[SampleRow], *, is_sourced: bool) -> float:
    """Return how often there is news of a node: of one that another server scrapes, as its last window."""
    covered = [s.covered_s for s in samples if s.covered_s is not None]
    return news_period_s(period_s, max(covered, default=None) if is_sourced else None)


def _newest_samples(
    session: Session, names: Sequence[str], now: datetime, period_s: float
) -> dict[str, list[SampleRow]]:
    """Return the samples of each node's newest round, one an engine. Looks far back only for the lost."""
    found: dict[str, list[SampleRow]] = {}
    for back in (timedelta(seconds=silent_after_s(period_s)), LOOK_BACK):
        lost = [name for name in names if name not in found]
        if not lost:
            break
        newest = (
            select(SampleRow.node, func.max(SampleRow.at).label("at"))
            .where(SampleRow.node.in_(lost), SampleRow.at > now - back)
            .group_by(SampleRow.node)
            .subquery()
        )
        query = (
            select(SampleRow)
            .join(newest, (SampleRow.node == newest.c.node) & (SampleRow.at == newest.c.at))
            .where(SampleRow.at > now - back)
            .order_by(SampleRow.engine)
        )
        for sample in session.scalars(query):
            found.setdefault(sample.node, []).append(sample)
    return found


def _newest_failures(session: Session, names: Sequence[str], now: datetime) -> dict[str, ScrapeFailureRow]:
    f = ScrapeFailureRow
    query = (
        select(f)
        .where(f.node.in_(names), f.at > now - timedelta(hours=1))
        .ext(distinct_on(f.node))
        .order_by(f.node, f.at.desc())
    )
    return {row.node: row for row in session.scalars(query)}


def _row(
    node: NodeRow,
    samples: Sequence[SampleRow],
    failure: ScrapeFailureRow | None,
    verdict: HealthView | None,
    now: datetime,
    period_s: float,
) -> NodeRowView:
    seen_at = samples[0].at if samples else None
    age = age_s(seen_at, now)
    fresh = freshness(age, period_s)
    current = verdict if verdict is not None and fresh is Freshness.FRESH and not verdict.is_stale else None
    used, capacity, ratio = _kv(samples)
    return NodeRowView(
        name=node.name,
        pool=node.pool,
        base_url=node.base_url,
        price_class=node.price_class,
        state=node.state,
        freshness=fresh,
        seen_at=seen_at,
        age_s=age,
        models=tuple(sorted({s.model for s in samples if s.model is not None})),
        engines=len(samples),
        rho=current and current.rho,
        rho_low=current and current.rho_low,
        rho_high=current and current.rho_high,
        grade=current and current.grade,
        binding=current and current.binding,
        saturated=current and current.saturated,
        arrival_rate=current and current.arrival_rate,
        throughput=current and current.throughput,
        service_rate=current and current.service_rate,
        running=_sum([s.running for s in samples]),
        waiting=_sum([s.waiting for s in samples]),
        kv_used_ratio=ratio,
        kv_used_tokens=used,
        kv_capacity_tokens=capacity,
        flags=tuple(sorted({flag for s in samples for flag in s.flags})),
        last_failure_at=failure and failure.at,
        last_failure_reason=failure and failure.reason,
        last_failure_detail=failure and failure.detail,
    )


def _sum(values: Sequence[int | None]) -> int | None:
    """Return the sum, or None as soon as one part is unknown (or there is none)."""
    known = [v for v in values if v is not None]
    return sum(known) if known and len(known) == len(values) else None


def _kv(samples: Sequence[SampleRow]) -> tuple[int | None, int | None, float | None]:
    """Return (used tokens, capacity tokens, used ratio) of a node; unknown parts make the sum unknown."""
    ratios = [s.kv_used_ratio for s in samples if s.kv_used_ratio is not None]
    if not samples or len(ratios) < len(samples):
        return None, _sum([s.kv_capacity_tokens for s in samples]), None
    capacity = _sum([s.kv_capacity_tokens for s in samples])
    if not capacity:
        return None, None, sum(ratios) / len(ratios)
    used = sum((s.kv_used_ratio or 0.0) * (s.kv_capacity_tokens or 0) for s in samples)
    return round(used), capacity, used / capacity


def node_detail(
    session: Session, name: str, now: datetime, *, window: timedelta = timedelta(hours=1)
) -> NodeDetail:
    """Return one node's page: its row, the rounds of `window`, capacity with its reasons, scatter points.

    Raises NotFound for a name never registered. Removed nodes keep their page.
    """
    node = session.get(NodeRow, name)
    if node is None:
        raise NotFound(
            f"no node is called {name!r}", hint="List them with `rhodeck nodes list`", field="name"
        )
    since = now - window
    samples = list(
        session.scalars(
            select(SampleRow)
            .where(SampleRow.node == name, SampleRow.at >= since, SampleRow.at <= now)
            .order_by(SampleRow.at, SampleRow.engine)
        )
    )
    return NodeDetail(
        row=_rows(session, [node], now)[0],
        health=next(iter(node_health(session, now, name=name)), None),
        points=_points(session, name, samples, since, now),
        capacity=_capacity(session, name, now),
        scatter=_scatter(samples),
    )


def _points(
    session: Session, name: str, samples: Sequence[SampleRow], since: datetime, now: datetime
) -> tuple[NodePoint, ...]:
    f = ScrapeFailureRow
    failures = session.execute(select(f.at, f.reason).where(f.node == name, f.at >= since, f.at <= now))
    rounds: dict[datetime, list[SampleRow]] = defaultdict(list)
    for sample in samples:
        rounds[sample.at].append(sample)
    points = [_point(at, engines) for at, engines in rounds.items()]
    points += [_no_point(at, reason) for at, reason in failures if at not in rounds]
    return tuple(sorted(points, key=lambda point: point.at))


def _point(at: datetime, engines: Sequence[SampleRow]) -> NodePoint:
    return NodePoint(
        at=at,
        covered_s=min((s.covered_s for s in engines if s.covered_s is not None), default=None),
        running=_sum([s.running for s in engines]),
        waiting=_sum([s.waiting for s in engines]),
        kv_used_ratio=_kv(engines)[2],
        arrivals_rate=_rate(engines, [s.arrivals for s in engines]),
        completed_rate=_rate(engines, [s.completed for s in engines]),
        prompt_tokens_rate=_rate(engines, [s.prompt_tokens for s in engines]),
        output_tokens_rate=_rate(engines, [s.generation_tokens for s in engines]),
        preemptions=_sum([s.preemptions for s in engines]),
        restarted=any(s.restarted for s in engines),
    )


def _no_point(at: datetime, reason: str) -> NodePoint:
    return NodePoint(
        at, None, None, None, None, None, None, None, None, None, restarted=False, failure=reason
    )


def _rate(engines: Sequence[SampleRow], increments: Sequence[int | None]) -> float | None:
    """Return the sum of each engine's increment over its own covered time; None if any is unknown."""
    total = 0.0
    for sample, increment in zip(engines, increments, strict=True):
        if increment is None or not sample.covered_s:
            return None
        total += increment / sample.covered_s
    return total


def _capacity(session: Session, name: str, now: datetime) -> tuple[CapacityView, ...]:
    c = CapacityEstimateRow
    return tuple(
        CapacityView(
            engine=row.engine,
            at=row.at,
            age_s=age_s(row.at, now) or 0.0,
            service_rate=row.service_rate,
            service_rate_low=row.service_rate_low,
            service_rate_high=row.service_rate_high,
            grade=row.grade,
            method=row.method,
            binding=row.binding,
            reach_ratio=row.reach_ratio,
            detail=row.detail,
        )
        for row in session.scalars(select(c).where(c.node == name).order_by(c.engine))
    )


def _scatter(samples: Sequence[SampleRow]) -> tuple[BatchPoint, ...]:
    """Return (b, ITL) of windows with enough decoding: b = d(itl_sum)/dt, ITL = d(itl_sum)/d(itl_count)."""
    points: list[BatchPoint] = []
    for s in samples:
        events = sum(s.itl_counts or ())
        if s.covered_s and s.itl_sum_s is not None and events >= MIN_SCATTER_EVENTS and not s.restarted:
            points.append(BatchPoint(s.engine, s.itl_sum_s / s.covered_s, s.itl_sum_s / events))
    return tuple(points)
