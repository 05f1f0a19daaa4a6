"""The ledger of node time: seconds each node was observed up, by quarter-hour, at its price class.

Time counts between two samples of a node at most `MAX_GAP_PERIODS` scrape periods apart; a node that
never answered has none, and one that stopped stops counting. Runs behind the scraper, one transaction a
tick, and may be repeated: each node's newest sighting is its watermark. Prevents: paying for nodes that
never started, a restart of the controller that counts a minute twice, and a tick that reads a week of
samples because one node went away.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from control import lease
from control.deps import Deps
from control.tables import NodeQuarterRow, NodeRow, RoundRow, SampleRow
from fleet.months import QUARTER, quarter_of

MAX_GAP_PERIODS = 3
MAX_LOOK_BACK = timedelta(days=7)  # an outage of the ledger longer than this is not made up for


@dataclass(frozen=True, slots=True)
class Span:
    """A node was up from `start` to `end`."""

    start: datetime
    end: datetime


def up_spans(
    sightings: Iterable[datetime], last_seen: datetime | None, max_gap: timedelta
) -> Iterator[Span]:
    """Return the time between neighbouring sightings (ascending) that are at most `max_gap` apart."""
    previous = last_seen
    for at in sightings:
        if previous is not None and timedelta(0) < at - previous <= max_gap:
            yield Span(previous, at)
        previous = at if previous is None else max(previous, at)


def by_quarter(spans: Iterable[Span]) -> dict[datetime, Decimal]:
    """Return seconds by quarter-hour; the sum is the spans' whole length."""
    seconds: dict[datetime, Decimal] = defaultdict(Decimal)
    for span in spans:
        start = span.start
        while start < span.end:
            quarter = quarter_of(start)
            end = min(span.end, quarter + QUARTER)
            seconds[quarter] += Decimal(str((end - start).total_seconds()))
            start = end
    return dict(seconds)


async def tick(deps: Deps) -> str:
    """Count node time up to the newest round. Returns the line to log."""
    epoch = deps.leadership.current(deps.clock)
    if epoch is None:
        return "not leading"
    seconds = await asyncio.to_thread(_run, deps, epoch)
    return f"ledger: {seconds:.0f} s of node time"


def _run(deps: Deps, epoch: int) -> Decimal:
    with Session(deps.engine) as session, session.begin():
        lease.require(session, epoch)
        return count_node_time(session, deps.clock.now())


def count_node_time(session: Session, now: datetime) -> Decimal:
    """Add what was observed since each node's watermark; return the seconds added.

    Joins the caller's transaction, which must be the only one counting (the leader's).
    """
    period_s = session.scalar(select(RoundRow.period_s).order_by(RoundRow.at.desc()).limit(1))
    if period_s is None:
        return Decimal(0)
    n = NodeQuarterRow
    marks: dict[str, datetime] = {
        node: at for node, at in session.execute(select(n.node, func.max(n.last_seen_at)).group_by(n.node))
    }
    sightings = _sightings(session, counted_up_to(marks.values(), now - MAX_LOOK_BACK))
    nodes = {row.name: row for row in session.scalars(select(NodeRow))}
    max_gap = timedelta(seconds=period_s * MAX_GAP_PERIODS)
    added = Decimal(0)
    for name, times in sightings.items():
        mark, node = marks.get(name), nodes.get(name)
        fresh = [at for at in times if mark is None or at > mark]
        if node is None or not fresh:
            continue
        seconds = by_quarter(up_spans(fresh, mark, max_gap))
        seconds.setdefault(quarter_of(fresh[-1]), Decimal(0))  # the watermark moves even without a span
        _add(session, node, seconds, fresh[-1])
        added += sum(seconds.values(), Decimal(0))
    return added


def counted_up_to(marks: Iterable[datetime], horizon: datetime) -> datetime:
    """Return the time up to which all rounds are counted: the newest mark, at least `horizon`.

    Rounds are stored whole and in order, so nothing older is left, not even of a node that has none since.
    """
    return max((*marks, horizon))


def _sightings(session: Session, since: datetime) -> dict[str, list[datetime]]:
    s = SampleRow
    rows = session.execute(select(s.node, s.at).where(s.at >= since).distinct().order_by(s.node, s.at))
    found: dict[str, list[datetime]] = defaultdict(list)
    for node, at in rows:
        found[node].append(at)
    return found


def _add(session: Session, node: NodeRow, seconds: dict[datetime, Decimal], seen_at: datetime) -> None:
    n = NodeQuarterRow
    rows: list[dict[str, Any]] = [
        {
            "node": node.name,
            "quarter": quarter,
            "pool": node.pool,
            "price_class": node.price_class,
            "up_s": up_s,
            "last_seen_at": min(seen_at, quarter + QUARTER),
        }
        for quarter, up_s in sorted(seconds.items())
    ]
    statement = insert(n).values(rows)
    session.execute(
        statement.on_conflict_do_update(
            index_elements=[n.node, n.quarter],
            set_={
                "up_s": n.up_s + statement.excluded.up_s,
                "last_seen_at": func.greatest(n.last_seen_at, statement.excluded.last_seen_at),
            },
        )
    )
