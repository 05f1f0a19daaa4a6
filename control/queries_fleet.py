"""What pages, API and CLI may ask about health, alerts and scraping.

Every query takes a Session and returns frozen values; ages are seconds at the caller's `now`, ratios
0..1, rates per second. `None` means nobody knows. Prevents: an old verdict shown as the present one,
and a hole in the data drawn as a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Float, Interval, cast, func, literal, select
from sqlalchemy.orm import Session

from control.alert_silences import Silence, active_silences, silencing
from control.freshness import DEFAULT_PERIOD_S, age_s, stale_after_s
from control.tables import AlertRow, HealthRow, RoundRow, ScrapeFailureRow

Scope = Literal["fleet", "pool", "node", "engine", "model", "tier"]


@dataclass(frozen=True, slots=True)
class HealthView:
    """The newest verdict about one subject, with its age."""

    scope: str
    name: str  # "" for the fleet
    at: datetime
    age_s: float
    is_stale: bool  # older than three rounds: the controller is down or behind
    rho: float | None  # lambda / mu; may exceed 1
    rho_low: float | None
    rho_high: float | None
    grade: str | None  # A..D
    method: str | None
    binding: str | None  # the constraint that sets mu: "compute", "slots", "kv", ...
    service_rate: float | None  # mu, requests/s at the present mix
    service_rate_low: float | None
    service_rate_high: float | None
    output_tokens_rate: float | None  # mu in output tokens/s
    arrival_rate: float | None  # lambda, refused included where a gateway counts
    throughput: float | None  # X, finished requests/s
    flow_balance: float | None  # lambda / X; 1 at any stable load, never a verdict
    flow_balance_z: float | None
    saturated: bool | None
    headroom_rps: float | None
    running: int | None
    waiting: int | None
    kv_used_ratio: float | None
    partial: bool  # some nodes are not in the sums
    missing_nodes: tuple[str, ...]  # stale or silent nodes that left the sums
    detail: dict[str, Any] = field(default_factory=dict[str, Any])  # the formula with its values


@dataclass(frozen=True, slots=True)
class HealthPoint:
    """One bucket of a timeline. All None where there was no verdict: draw a gap."""

    at: datetime  # start of the bucket
    rho: float | None = None  # mean
    rho_low: float | None = None  # lowest
    rho_high: float | None = None  # highest
    arrival_rate: float | None = None
    throughput: float | None = None
    service_rate: float | None = None
    running: float | None = None
    waiting: float | None = None  # highest
    kv_used_ratio: float | None = None  # highest
    partial: bool = False


@dataclass(frozen=True, slots=True)
class AlertView:
    """An alert that is not resolved, or was."""

    id: int
    rule: str
    scope: str
    subject: str
    state: str  # "open" | "stale" | "acknowledged" | "resolved"
    severity: str
    opened_at: datetime
    updated_at: datetime
    age_s: float  # since it opened
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    resolved_at: datetime | None
    value: float | None
    threshold: float | None
    summary: str
    detail: dict[str, Any]
    silenced_until: datetime | None = None  # nobody is told until then


@dataclass(frozen=True, slots=True)
class RoundView:
    """One scrape round and why nodes are missing from it."""

    at: datetime
    period_s: float
    duration_s: float
    lag_s: float
    nodes_total: int
    nodes_sampled: int
    failures: dict[str, int]  # reason -> nodes


@dataclass(frozen=True, slots=True)
class ScrapeQuality:
    """How complete the record of an interval is."""

    since: datetime
    until: datetime
    rounds: int
    rounds_expected: int
    nodes_expected: int  # node-rounds
    nodes_sampled: int
    coverage_ratio: float | None  # node-rounds sampled / expected; None without rounds
    failures: dict[str, int]  # reason -> node-rounds
    duration_median_s: float | None
    duration_max_s: float | None
    lag_max_s: float | None


def scrape_period_s(session: Session) -> float:
    """Return the period of the newest round, seconds; the default if there is none yet."""
    found = session.scalar(select(RoundRow.period_s).order_by(RoundRow.at.desc()).limit(1))
    return DEFAULT_PERIOD_S if found is None else found


def fleet_health(session: Session, now: datetime) -> HealthView | None:
    """Return the newest verdict about the whole fleet; None before the first one."""
    views = latest_verdicts(session, "fleet", now)
    return views[0] if views else None


def node_health(session: Session, now: datetime, *, name: str | None = None) -> list[HealthView]:
    """Return every node's verdict in the newest round of the last hour, by name; or only that of `name`."""
    return latest_verdicts(session, "node", now, name=name)


def latest_verdicts(
    session: Session, scope: Scope, now: datetime, *, name: str | None = None
) -> list[HealthView]:
    """Return the verdicts of one scope in the newest round that has any, by name: of the last hour, but the
    fleet's however old. A round judges everything there is. `name`: only this one's, of the same round.
    """
    limit_s = stale_after_s(scrape_period_s(session))
    h = HealthRow
    rounds = select(h.at).where(h.scope == scope).order_by(h.at.desc()).limit(1)
    if scope != "fleet":
        rounds = rounds.where(h.at >= now - timedelta(hours=1))
    query = select(h).where(h.scope == scope, h.at == rounds.scalar_subquery()).order_by(h.name)
    if name is not None:
        query = query.where(h.name == name)
    return [_view(row, now, limit_s) for row in session.scalars(query)]


def _view(row: HealthRow, now: datetime, limit_s: float) -> HealthView:
    age = age_s(row.at, now) or 0.0
    return HealthView(
        scope=row.scope,
        name=row.name,
        at=row.at,
        age_s=age,
        is_stale=age >= limit_s,
        rho=row.rho,
        rho_low=row.rho_low,
        rho_high=row.rho_high,
        grade=row.grade,
        method=row.method,
        binding=row.binding,
        service_rate=row.service_rate,
        service_rate_low=row.service_rate_low,
        service_rate_high=row.service_rate_high,
        output_tokens_rate=row.output_tokens_rate,
        arrival_rate=row.arrival_rate,
        throughput=row.throughput,
        flow_balance=row.flow_balance,
        flow_balance_z=row.flow_balance_z,
        saturated=row.saturated,
        headroom_rps=row.headroom_rps,
        running=row.running,
        waiting=row.waiting,
        kv_used_ratio=row.kv_used_ratio,
        partial=row.partial,
        missing_nodes=tuple(row.detail.get("missing_nodes", ())),
        detail=row.detail,
    )


def health_timeline(
    session: Session,
    scope: Scope,
    name: str,
    since: datetime,
    until: datetime,
    *,
    max_points: int = 500,
) -> list[HealthPoint]:
    """Return verdicts of [since, until) in equal buckets, at most `max_points`, oldest first.

    A bucket is a whole number of rounds long. Buckets without a verdict are there, empty. rho is the mean
    of the bucket, its interval the widest in it, queue and KV use the highest.
    """
    period_s = scrape_period_s(session)
    since = aligned(since, period_s)
    bucket = bucket_length(since, until, period_s, max_points)
    h, width = HealthRow, literal(bucket, Interval)
    start = func.date_bin(width, h.at, literal(since)).label("start")
    rows = session.execute(
        select(
            start,
            func.avg(h.rho),
            func.min(h.rho_low),
            func.max(h.rho_high),
            func.avg(h.arrival_rate),
            func.avg(h.throughput),
            func.avg(h.service_rate),
            cast(func.avg(h.running), Float),
            cast(func.max(h.waiting), Float),
            func.max(h.kv_used_ratio),
            func.bool_or(h.partial),
        )
        .where(h.scope == scope, h.name == name, h.at >= since, h.at < until)
        .group_by(start)
    )
    found = {row[0]: HealthPoint(*row) for row in rows}
    return [found.get(at, HealthPoint(at)) for at in bucket_starts(since, until, bucket)]


def aligned(at: datetime, period_s: float) -> datetime:
    """Return `at` rounded down to the grid that rounds are stamped on: whole periods since 1970 in UTC."""
    return datetime.fromtimestamp(at.timestamp() // period_s * period_s, UTC)


def bucket_length(since: datetime, until: datetime, period_s: float, max_points: int) -> timedelta:
    """Return the shortest whole number of rounds that covers [since, until) in `max_points` buckets."""
    span_s = max((until - since).total_seconds(), period_s)
    rounds = max(1, -(-span_s // (period_s * max(1, max_points))))
    return timedelta(seconds=rounds * period_s)


def bucket_starts(since: datetime, until: datetime, bucket: timedelta) -> Sequence[datetime]:
    """Return the starts of the buckets that cover [since, until)."""
    count = max(0, -(-(until - since) // bucket))
    return [since + i * bucket for i in range(count)]


def open_alerts(session: Session, now: datetime) -> list[AlertView]:
    """Return alerts that are not resolved (open, acknowledged, stale), newest first."""
    query = select(AlertRow).where(AlertRow.state != "resolved").order_by(AlertRow.opened_at.desc())
    active = active_silences(session, now)
    return [_alert(row, now, silencing(row, active)) for row in session.scalars(query)]


def _alert(row: AlertRow, now: datetime, silence: Silence | None) -> AlertView:
    return AlertView(
        silenced_until=None if silence is None else silence.expires_at,
        id=row.id,
        rule=row.rule,
        scope=row.scope,
        subject=row.subject,
        state=row.state,
        severity=row.severity,
        opened_at=row.opened_at,
        updated_at=row.updated_at,
        age_s=age_s(row.opened_at, now) or 0.0,
        acknowledged_at=row.acknowledged_at,
        acknowledged_by=row.acknowledged_by,
        resolved_at=row.resolved_at,
        value=row.value,
        threshold=row.threshold,
        summary=row.summary,
        detail=row.detail,
    )


def recent_rounds(session: Session, *, limit: int = 30) -> list[RoundView]:
    """Return the newest rounds, newest first, with the failures of each."""
    rounds = list(session.scalars(select(RoundRow).order_by(RoundRow.at.desc()).limit(limit)))
    if not rounds:
        return []
    f = ScrapeFailureRow
    rows = session.execute(
        select(f.at, f.reason, func.count()).where(f.at >= rounds[-1].at).group_by(f.at, f.reason)
    )
    failures: dict[datetime, dict[str, int]] = {}
    for at, reason, count in rows:
        failures.setdefault(at, {})[reason] = count
    return [
        RoundView(
            r.at, r.period_s, r.duration_s, r.lag_s, r.nodes_total, r.nodes_sampled, failures.get(r.at, {})
        )
        for r in rounds
    ]


def scrape_quality(session: Session, since: datetime, until: datetime) -> ScrapeQuality:
    """Return how complete the samples of [since, until) are."""
    r, f = RoundRow, ScrapeFailureRow
    rounds, total, sampled, median, longest, lag, period = session.execute(
        select(
            func.count(),
            func.coalesce(func.sum(r.nodes_total), 0),
            func.coalesce(func.sum(r.nodes_sampled), 0),
            func.percentile_cont(0.5).within_group(r.duration_s),
            func.max(r.duration_s),
            func.max(r.lag_s),
            func.avg(r.period_s),
        ).where(r.at >= since, r.at < until)
    ).one()
    reasons = session.execute(
        select(f.reason, func.count()).where(f.at >= since, f.at < until).group_by(f.reason)
    )
    span_s = max(0.0, (until - since).total_seconds())
    return ScrapeQuality(
        since=since,
        until=until,
        rounds=rounds,
        rounds_expected=int(span_s // (period or DEFAULT_PERIOD_S)),
        nodes_expected=int(total),
        nodes_sampled=int(sampled),
        coverage_ratio=int(sampled) / int(total) if total else None,
        failures={reason: count for reason, count in reasons},
        duration_median_s=median,
        duration_max_s=longest,
        lag_max_s=lag,
    )
