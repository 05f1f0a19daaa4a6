"""History of any length: verdicts and latencies from rounds, minutes or hours, whichever the range needs.

Times are UTC, latencies seconds, rates per second. Short ranges are read from rounds, a day or two from
minutes, longer ones from hours; the last minutes, not rolled up yet, from rounds. Rollups hold sums, so
every level gives the same answer. A range begins with the row its start lies in. Prevents: a month that
takes a minute to draw, a mean of percentiles, and a chart that does not say how coarse it is.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import RowMapping, func, select, text
from sqlalchemy.orm import Session

from control import rollup_due
from control.queries_fleet import (
    HealthPoint,
    Scope,
    aligned,
    bucket_length,
    bucket_starts,
    scrape_period_s,
)
from control.queries_latency import METRICS, LatencyView, Metric, latency_view
from control.rollup_sql import added_buckets, lift, plain
from control.tables_rollup import ENGINE, HEALTH, Family, Level, RollupDueRow
from fleet.readings import Histogram

EngineScope = Literal["node", "pool", "fleet"]
#: The longest range read from rounds, and from minutes.
ROUNDS_UP_TO = timedelta(minutes=90)
MINUTES_UP_TO = timedelta(hours=48)
#: How much of the end of a range is read a level below at most, where its rows are not made yet.
TAIL_MAX = {
    Level.MINUTE: timedelta(minutes=15),
    Level.HOUR: timedelta(hours=3),
    Level.DAY: timedelta(days=3),
}
_STEPS = {
    Level.RAW: (Level.RAW,),
    Level.MINUTE: (Level.MINUTE, Level.RAW),
    Level.HOUR: (Level.HOUR, Level.MINUTE, Level.RAW),
    Level.DAY: (Level.DAY, Level.HOUR, Level.MINUTE, Level.RAW),
}
PREFIXES: dict[Metric, str] = {
    "ttft_s": "ttft",
    "itl_s": "itl",
    "queue_wait_s": "queue_wait",
    "e2e_s": "e2e",
}
_POINT = """
    sum(rho_sum) / NULLIF(sum(rho_n), 0) AS rho, min(rho_low) AS rho_low, max(rho_high) AS rho_high,
    sum(arrival_rate_sum) / NULLIF(sum(arrival_rate_n), 0) AS arrival_rate,
    sum(throughput_sum) / NULLIF(sum(throughput_n), 0) AS throughput,
    sum(service_rate_sum) / NULLIF(sum(service_rate_n), 0) AS service_rate,
    sum(running_sum) / NULLIF(sum(running_n), 0) AS running,
    max(waiting_max) AS waiting, max(kv_used_ratio_max) AS kv_used_ratio, sum(partial) > 0 AS partial
"""


_POINT_COLUMNS = frozenset(re.findall(r"[a-z_]+", _POINT))


@dataclass(frozen=True, slots=True)
class History:
    """Verdicts over time in equal buckets, and how they were come by."""

    points: tuple[HealthPoint, ...]  # oldest first; all None where there was no verdict
    level: Level  # what was read: rounds, minutes or hours
    bucket: timedelta
    waiting: int  # minutes of the range whose rollup is not made yet; they may be missing or out of date


@dataclass(frozen=True, slots=True)
class LatencyPoint:
    """One latency in one bucket."""

    at: datetime
    view: LatencyView


def level_of(session: Session, family: Family, since: datetime, until: datetime) -> Level:
    """Return the level to read [since, until) from: as fine as is quick, and as is still kept."""
    span = until - since
    wanted = Level.RAW if span <= ROUNDS_UP_TO else Level.MINUTE if span <= MINUTES_UP_TO else Level.HOUR
    for level in (Level.RAW, Level.MINUTE):
        if wanted is level:
            kept = rollup_due.kept_since(session, family.table(level))
            if kept is not None and since < kept:
                wanted = Level.MINUTE if level is Level.RAW else Level.HOUR
    return wanted


def sum_level_of(session: Session, family: Family, since: datetime, until: datetime) -> Level:
    """Return the level to read sums over many subjects from: never rounds alone.

    An hour of 100 tenants at four gateways is 144,000 rounds, and 6,000 minutes of all gateways together.
    """
    found = level_of(session, family, since, until)
    return Level.MINUTE if found is Level.RAW else found


def health_history(
    session: Session, scope: Scope, name: str, since: datetime, until: datetime, *, max_points: int = 720
) -> History:
    """Return verdicts of [since, until) in at most `max_points` equal buckets, oldest first.

    rho is the mean of a bucket, its interval the widest in it, queue and KV use the highest.
    """
    where = "scope = :scope AND name = :name"
    read = read_rows(session, HEALTH, since, until, where, only=_POINT_COLUMNS, scope=scope, name=name)
    since, bucket = read.grid(session, max_points)
    rows = session.execute(
        text(
            f"SELECT date_bin(:bucket, at, :since) AS start, {_POINT} "  # noqa: S608 # constants
            f"FROM ({read.source}) AS r GROUP BY start"
        ),
        read.given | {"bucket": bucket, "since": since},
    ).mappings()
    found = {row["start"]: _point(row) for row in rows}
    starts = bucket_starts(since, until, bucket)
    points = tuple(found.get(at, HealthPoint(at)) for at in starts)
    return History(points, read.level, bucket, read.waiting(session))


def _point(row: RowMapping) -> HealthPoint:
    values = {name: value for name, value in row.items() if name != "start"}
    return HealthPoint(row["start"], **values)


def latency_history(
    session: Session, scope: EngineScope, name: str, since: datetime, until: datetime
) -> dict[Metric, LatencyView]:
    """Return each latency over [since, until) as the engines measured it: of a node, a pool or the fleet.

    Every metric is present; one that nobody measured has count 0 and no quantiles. A short range of a node
    is read from rounds, a pool's and the fleet's from minutes: they are sums over many engines.
    """
    level = None if scope == "node" else sum_level_of(session, ENGINE, since, until)
    read = _engines(session, scope, name, since, until, METRICS, level=level)
    found = _histograms(session, read, METRICS, since, None)
    return {metric: latency_view(metric, found.get((since, metric), [])) for metric in METRICS}


def latency_timeline(
    session: Session,
    metric: Metric,
    scope: EngineScope,
    name: str,
    since: datetime,
    until: datetime,
    *,
    max_points: int = 360,
) -> list[LatencyPoint]:
    """Return one latency in at most `max_points` equal buckets of [since, until), oldest first.

    A bucket without requests is there, with count 0: draw a gap.
    """
    read = _engines(session, scope, name, since, until, (metric,))
    since, bucket = read.grid(session, max_points)
    found = _histograms(session, read, (metric,), since, bucket)
    starts = bucket_starts(since, until, bucket)
    return [LatencyPoint(at, latency_view(metric, found.get((at, metric), []))) for at in starts]


def _histograms(
    session: Session, read: Reading, metrics: Sequence[Metric], since: datetime, bucket: timedelta | None
) -> dict[tuple[datetime, Metric], list[Histogram]]:
    """Return the summed increments of each bucket (of the whole without one): one a set of bounds."""
    start = "CAST(:since AS timestamptz)" if bucket is None else "date_bin(:bucket, at, :since)"
    edges = {
        id_: tuple(bounds) for id_, bounds in session.execute(text("SELECT id, edges FROM histogram_edges"))
    }
    most = max(map(len, edges.values()), default=0) + 1
    prefixes = [PREFIXES[metric] for metric in metrics]
    bounds = [f"{prefix}_edges" for prefix in prefixes]
    summed = [
        column
        for prefix in prefixes
        for column in (
            added_buckets(f"{prefix}_counts", most),
            f"CASE WHEN count(*) = count({prefix}_sum_s) THEN sum({prefix}_sum_s) END",
        )
    ]
    rows = session.execute(
        text(
            f"SELECT {', '.join([f'{start} AS start', *bounds, *summed])} "  # noqa: S608 # constants
            f"FROM ({read.source}) AS r GROUP BY {', '.join(['start', *bounds])}"
        ),
        read.given | {"bucket": bucket, "since": since},
    )
    found: dict[tuple[datetime, Metric], list[Histogram]] = defaultdict(list)
    for at, *values in rows:
        ids, sums = values[: len(metrics)], values[len(metrics) :]
        for index, (metric, edges_id) in enumerate(zip(metrics, ids, strict=True)):
            if edges_id in edges:
                counts, sum_s = sums[2 * index], sums[2 * index + 1]
                found[at, metric].append(Histogram(edges[edges_id], tuple(counts), sum_s))
    return found


# ---- where rows are read from ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    """SELECT of rows in rollup shape over a range, and its parameters.

    Rows of `level` come first; the end of the range, where those are not made yet, is read from the levels
    below, rounds as rollup rows of one round each.
    """

    level: Level
    source: str
    given: dict[str, Any]
    since: datetime
    until: datetime
    rounds_from: datetime  # what lies after it is read from rounds

    def grid(self, session: Session, max_points: int) -> tuple[datetime, timedelta]:
        """Return the first bucket's start and a bucket's length: a whole number of rows of the level."""
        is_raw = self.level is Level.RAW
        width_s = scrape_period_s(session) if is_raw else rollup_due.WIDTH[self.level].total_seconds()
        since = aligned(self.since, width_s)
        return since, bucket_length(since, self.until, width_s, max_points)

    def waiting(self, session: Session) -> int:
        """Return how many minutes of the range wait to be rolled up, but those read from rounds."""
        query = "SELECT count(*) FROM rollup_due WHERE level = 'minute' AND at >= :since AND at < :before"
        given = {"since": self.since, "before": self.rounds_from}
        found: int = session.execute(text(query), given).scalar_one()
        return found


def _engines(
    session: Session,
    scope: EngineScope,
    name: str,
    since: datetime,
    until: datetime,
    metrics: Sequence[Metric],
    *,
    level: Level | None = None,
) -> Reading:
    """Return the histograms of engines of a node, a pool or the fleet."""
    raw = {
        "node": "node = :name",
        "pool": "coalesce(counted_in, (SELECT pool FROM node AS n WHERE n.name = sample.node)) = :name",
        "fleet": "counted_in IS DISTINCT FROM ''",
    }[scope]
    rolled_scope = "engine" if scope == "node" else scope
    only = {f"{PREFIXES[metric]}_{part}" for metric in metrics for part in ("edges", "counts", "sum_s")}
    where = "scope = :scope AND name = :name"
    return read_rows(
        session, ENGINE, since, until, where, raw, only=only, level=level, scope=rolled_scope, name=name
    )


def read_rows(
    session: Session,
    family: Family,
    since: datetime,
    until: datetime,
    condition: str,
    raw_condition: str | None = None,
    *,
    tag: str = "",
    only: Container[str] | None = None,
    is_total: bool = False,
    level: Level | None = None,
    **given: Any,
) -> Reading:
    """Return where to read rows of `family` that meet `condition` (on rollups) from.

    `raw_condition`: the same said of raw rows, where their columns are called otherwise. `given`:
    parameters of the conditions. `tag` is put behind the names of all parameters, for two in one query.
    `only`: the columns wanted beside the keys. `is_total`: the rows are only added up over the whole
    range, so the days in it may come as one row each. `level` is chosen by the range unless given.
    """
    level = level or level_of(session, family, since, until)
    has_days = is_total and level is Level.HOUR and Level.DAY in family.levels
    spans = _spans(session, Level.DAY if has_days else level, since, until)
    read = Reading(level, "", {f"{name}{tag}": value for name, value in given.items()}, since, until, since)
    parts: list[str] = []
    for number, (step, start, end) in enumerate(spans):
        is_raw = step is Level.RAW
        within = f"at >= :from_{number}{tag} AND at < :until_{number}{tag}"
        where = f"{(raw_condition or condition) if is_raw else condition} AND {within}"
        read.given.update({f"from_{number}{tag}": start, f"until_{number}{tag}": end})
        parts.append((lift if is_raw else plain)(family, family.table(step), where, only))
    return replace(read, source=" UNION ALL ".join(parts), rounds_from=spans[-1][1])


def _spans(
    session: Session, level: Level, since: datetime, until: datetime
) -> list[tuple[Level, datetime, datetime]]:
    """Return which level is read from when to when: what `level` has not got, from the levels below.

    Days begin with the first whole one; what lies before it is read from hours. The last is of rounds.
    """
    found: list[tuple[Level, datetime, datetime]] = []
    at = since
    for step in _STEPS[level]:
        if step is Level.RAW:
            found.append((step, at, until))
            continue
        width_s = rollup_due.WIDTH[step].total_seconds()
        if step is Level.DAY:
            head = aligned(at, rollup_due.WIDTH[Level.HOUR].total_seconds())
            at = aligned(head + timedelta(days=1) - timedelta(hours=1), width_s)
            found.append((Level.HOUR, head, at))
        at = aligned(at, width_s)
        end = max(at, _rolled_until(session, step, until))
        found.append((step, at, end))
        at = end
    return found


def _rolled_until(session: Session, level: Level, until: datetime) -> datetime:
    """Return from where on rows of `level` are not made yet, at most `TAIL_MAX` before `until`.

    Every minute with a round not rolled up is marked, and its hour with it or from its first minute on.
    """
    width_s = rollup_due.WIDTH[level].total_seconds()
    levels = [step.value for step in _STEPS[level] if step is not Level.RAW]
    oldest = session.scalar(
        select(func.min(RollupDueRow.at)).where(
            RollupDueRow.level.in_(levels),
            RollupDueRow.at >= aligned(until - TAIL_MAX[level], width_s),
            RollupDueRow.at < until,
        )
    )
    return until if oldest is None else aligned(oldest, width_s)
