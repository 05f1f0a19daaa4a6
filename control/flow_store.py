"""Flow in Postgres: minutes written once, the present state overwritten, both read back as plain values.

Times are timezone-aware, durations seconds, doubling times minutes. Joins the caller's transaction.
Prevents: a state on the page without its age, and a tail quoted without the buckets it lies in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any

from sqlalchemy import BigInteger, Interval, cast, delete, func, literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from control.flow_book import FlowRound, FlowState
from control.flow_slices import Subject
from control.queries_fleet import aligned, bucket_length, bucket_starts, scrape_period_s
from control.sample_store import json_fit
from control.tables import FlowMinuteRow, FlowNowRow, PolicyRevisionRow
from fleet.equilibrium import Equilibrium, Minute
from fleet.errors import InvalidPolicy
from fleet.flow_minutes import FlowMinute, width_s
from fleet.flow_signals import FlowRule, FlowSignal
from fleet.policy import Policy, parse
from fleet.slo_windows import PAIRS, GoodCount
from fleet.stages import Bounds, TailRow, fifo_queue_quantile, tail_rows

REFILL = timedelta(hours=6)
#: Minutes are kept for two months: an objective of 30 days, and the one before.
FLOW_DAYS = 62
QUEUE_QUANTILES = (0.5, 0.95, 0.99)
MAX_NODES_SHOWN = 20  # of each rule: the worst ones
_OF_NODES = frozenset({FlowRule.KV_EXHAUSTION, FlowRule.HOT_NODE})


def write_flow(session: Session, found: FlowRound) -> None:
    """Write a round's closed minutes and present states. A minute that is there already stays.

    States of pools and tiers that nobody reported for six hours go: they are no queues any more.
    """
    for subject, minute, state in found.closed:
        session.execute(
            insert(FlowMinuteRow).values(minute_row(subject, minute, state)).on_conflict_do_nothing()
        )
    for state in found.states:
        row = now_row(found.at, state, found.signals)
        statement = insert(FlowNowRow).values(row)
        session.execute(
            statement.on_conflict_do_update(
                index_elements=["scope", "name"],
                set_={name: value for name, value in row.items() if name not in ("scope", "name")},
                where=FlowNowRow.at <= found.at,
            )
        )
    session.execute(delete(FlowNowRow).where(FlowNowRow.at < found.at - REFILL))


def minute_row(subject: Subject, found: FlowMinute, state: Equilibrium) -> dict[str, Any]:
    """Return the columns of one minute."""
    m, good = found.minute, found.good
    return {
        "at": datetime.fromtimestamp(found.ended_at_s, UTC),
        "scope": subject[0],
        "name": subject[1],
        "length_s": m.length_s,
        "covered_s": found.covered_s,
        "arrivals": m.arrivals,
        "departures": m.departures,
        "mean_in_system": m.mean_in_system,
        "time_mean_s": m.time_mean_s,
        "p50_s": m.p50_s,
        "p99_s": m.p99_s,
        "ttft_p50_s": m.ttft_p50_s,
        "ttft_p99_s": m.ttft_p99_s,
        "slo_offered": None if good is None else good.offered,
        "slo_good_low": None if good is None else good.good_low,
        "slo_good_high": None if good is None else good.good_high,
        "balance": None if state.balance is None else state.balance.value,
        "is_left": state.is_left,
        "p99_doubling_min": state.p99_doubling_min,
        "stages": json_fit(
            {
                s.name: {"held": s.held, "left_rate": s.left_rate, "time_mean_s": s.time_mean_s}
                for s in found.stages
            }
        ),
    }


def now_row(at: datetime, found: FlowState, signals: Iterable[FlowSignal]) -> dict[str, Any]:
    """Return the columns of one subject's present state."""
    scope, name = found.subject
    state = found.state
    return {
        "scope": scope,
        "name": name,
        "at": at,
        "balance": None if state.balance is None else state.balance.value,
        "is_left": state.is_left,
        "p99_doubling_min": state.p99_doubling_min,
        "minutes": found.minutes,
        "detail": json_fit(_detail(found, _shown(found.subject, signals))),
    }


def _shown(subject: Subject, signals: Iterable[FlowSignal]) -> list[FlowSignal]:
    """Return the signals that stand with a subject: its own; with the fleet the worst nodes and tenants."""
    own = [s for s in signals if (s.scope, s.subject) == subject and s.rule is not FlowRule.UNSTABLE]
    if subject[0] != "fleet":
        return own
    for rule in sorted(_OF_NODES):
        nodes = [s for s in signals if s.rule is rule and s.scope == "node"]
        nodes.sort(key=lambda s: (s.value is None, -(s.value or 0.0), s.subject))
        own += nodes[:MAX_NODES_SHOWN]
    tenants = [s for s in signals if s.rule is FlowRule.RETRY_STORM and s.scope == "tenant"]
    own += sorted(tenants, key=lambda s: (-(s.value or 0.0), s.subject))[:MAX_NODES_SHOWN]
    return own


def _detail(found: FlowState, signals: Sequence[FlowSignal]) -> dict[str, Any]:
    newest, state = found.newest, found.state
    tables = {
        name: [_tail(row) for row in tail_rows(histogram, found.length_s)]
        for name, histogram in (("time", found.time), ("ttft", found.ttft))
        if histogram is not None
    }
    return {
        "signals": [
            {"name": s.name, "is_raised": s.is_raised, "evidence": s.evidence} for s in state.signals
        ],
        "is_middle_still": state.is_middle_still,
        "rho": found.rho,
        "stages": [] if newest is None else [asdict(s) | {"explained": s.explained} for s in newest.stages],
        "minute_ended_at": None if newest is None else newest.ended_at_s,
        "length_s": found.length_s,
        "tails": tables,
        "queue_lengths": _queue_lengths(found),
        "burns": {
            name: {
                "long": None if b.long is None else [b.long.low, b.long.high],
                "short": None if b.short is None else [b.short.low, b.short.high],
                "sure": b.sure,
                "limit": PAIRS[name][2],
            }
            for name, b in found.burns.items()
        },
        "good": None if found.good is None else asdict(found.good),
        "others": [
            {
                "rule": s.rule.value,
                "scope": s.scope,
                "subject": s.subject,
                "value": s.value,
                "summary": s.summary,
                "detail": s.detail,
            }
            for s in signals
        ],
    }


def _queue_lengths(found: FlowState) -> list[dict[str, Any]]:
    """Return how many wait at percentiles, where nobody overtakes and the waits bound it; else nothing."""
    if not found.is_fifo or found.time is None:
        return []
    known = [(q, fifo_queue_quantile(found.time, found.length_s, q)) for q in QUEUE_QUANTILES]
    return [{"q": q, "low": bounds[0], "high": bounds[1]} for q, bounds in known if bounds is not None]


def _tail(row: TailRow) -> dict[str, Any]:
    return {
        "q": row.q,
        "time": {
            "estimate": row.time.estimate,
            "lo": row.time.lo,
            "hi": _finite(row.time.hi),
            "count": row.time.count,
            "too_few": row.time.too_few,
        },
        "budget": _bounds(row.budget),
        "tail_held": _bounds(row.tail_held),
        "tail_share": None if row.tail_share is None else _bounds(row.tail_share),
    }


def _bounds(found: Bounds) -> list[float | None]:
    return [found.low, _finite(found.high)]


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def policy_in_force(session: Session, known: tuple[int, Policy] | None) -> tuple[int, Policy] | None:
    """Return the newest revision's number and policy, or `known` where it is that; None before the first.

    A stored document that this release does not read is as good as none.
    """
    number = session.scalar(select(func.max(PolicyRevisionRow.number)))
    if number is None or (known is not None and known[0] == number):
        return None if number is None else known
    document = session.scalar(select(PolicyRevisionRow.document).where(PolicyRevisionRow.number == number))
    try:
        return int(number), parse(document)
    except InvalidPolicy:
        return known


def stored_minutes(session: Session, now: datetime) -> list[tuple[Subject, FlowMinute]]:
    """Return the minutes of the last six hours, oldest first, for a controller that starts."""
    m = FlowMinuteRow
    rows = session.scalars(select(m).where(m.at > now - REFILL, m.at <= now).order_by(m.at))
    return [((row.scope, row.name), _minute(row)) for row in rows]


def _minute(row: FlowMinuteRow) -> FlowMinute:
    minute = Minute(
        at_min=row.at.timestamp() / 60,
        arrivals=row.arrivals,
        departures=row.departures,
        mean_in_system=row.mean_in_system,
        time_mean_s=row.time_mean_s,
        p50_s=row.p50_s,
        p99_s=row.p99_s,
        length_s=row.length_s,
        ttft_p50_s=row.ttft_p50_s,
        ttft_p99_s=row.ttft_p99_s,
    )
    good = None
    if row.slo_offered is not None:
        good = GoodCount(row.slo_offered, row.slo_good_low or 0, row.slo_good_high or 0)
    return FlowMinute(row.at.timestamp(), row.covered_s, minute, (), good)


@dataclass(frozen=True, slots=True)
class FlowNow:
    """The stored state of one subject, as of `at`."""

    scope: str
    name: str
    at: datetime
    balance: str | None
    is_left: bool | None
    p99_doubling_min: float | None
    minutes: int
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FlowPoint:
    """Minutes of one bucket, for a chart. All None where there was none: draw a gap."""

    at: datetime
    arrivals: int | None = None
    departures: int | None = None
    mean_in_system: float | None = None
    explained: float | None = None  # X W in places
    p50_s: float | None = None  # of the median minute
    p99_s: float | None = None  # of the worst minute
    ttft_p50_s: float | None = None
    ttft_p99_s: float | None = None


def flow_now(session: Session) -> list[FlowNow]:
    """Return the newest state of every subject, the fleet first, then pools and tiers by name."""
    order = {"fleet": 0, "pool": 1, "tier": 2}
    rows = session.scalars(select(FlowNowRow))
    return sorted(
        (
            FlowNow(r.scope, r.name, r.at, r.balance, r.is_left, r.p99_doubling_min, r.minutes, r.detail)
            for r in rows
        ),
        key=lambda one: (order[one.scope], one.name),
    )


def flow_timeline(
    session: Session, scope: str, name: str, since: datetime, until: datetime, *, max_points: int = 720
) -> list[FlowPoint]:
    """Return the minutes of one subject in [since, until) in equal buckets, at most `max_points`.

    Oldest first. A bucket is a whole number of minutes long; one without a minute is there, empty.
    """
    minute_s = width_s(scrape_period_s(session))
    since = aligned(since, minute_s)
    bucket = bucket_length(since, until, minute_s, max_points)
    m = FlowMinuteRow
    start = func.date_bin(literal(bucket, Interval), m.at, literal(since)).label("start")
    rows = session.execute(
        select(
            start,
            cast(func.sum(m.arrivals), BigInteger),
            cast(func.sum(m.departures), BigInteger),
            func.avg(m.mean_in_system),
            func.avg(m.departures / func.nullif(m.length_s, 0) * m.time_mean_s),
            func.percentile_cont(0.5).within_group(m.p50_s),
            func.max(m.p99_s),
            func.percentile_cont(0.5).within_group(m.ttft_p50_s),
            func.max(m.ttft_p99_s),
        )
        .where(m.scope == scope, m.name == name, m.at >= since, m.at < until)
        .group_by(start)
    )
    found = {row[0]: FlowPoint(*row) for row in rows}
    return [found.get(at, FlowPoint(at)) for at in bucket_starts(since, until, bucket)]


@dataclass(frozen=True, slots=True)
class SloCount:
    """An objective over a range: its counts, and the seconds they were counted in."""

    good: GoodCount
    covered_s: float

    @property
    def goodput(self) -> float | None:
        """Return requests/s that surely met the objective; None without covered time."""
        return self.good.good_low / self.covered_s if self.covered_s > 0 else None


def slo_count(session: Session, scope: str, name: str, since: datetime, until: datetime) -> SloCount | None:
    """Return the objective's counts of one subject in [since, until); None without a counted minute."""
    m = FlowMinuteRow
    row = session.execute(
        select(
            func.sum(m.slo_offered),
            func.sum(m.slo_good_low),
            func.sum(m.slo_good_high),
            func.sum(m.covered_s),
        ).where(m.scope == scope, m.name == name, m.at >= since, m.at < until, m.slo_offered.is_not(None))
    ).one()
    offered, low, high, covered_s = row
    if offered is None:
        return None
    return SloCount(GoodCount(int(offered), int(low or 0), int(high or 0)), float(covered_s or 0.0))
