"""Which nodes that should serve are silent while rounds go on: since when, and what the last try said.

Reads samples, failures and rounds. Times are timezone-aware. Prevents: nodes blamed for a controller that
does not ask, and a node called dead that is resting or on its way out.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from sqlalchemy import func, select, tuple_
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from control.freshness import Freshness, age_s, freshness, news_period_s, stale_after_s
from control.queries_fleet import scrape_period_s
from control.queries_promsource import node_sources
from control.tables import NodeRow, RoundRow, SampleRow, ScrapeFailureRow
from fleet.diagnosis_evidence import QuietNode

LOOK_BACK = timedelta(days=2)


def quiet_nodes(session: Session, since: datetime, until: datetime) -> tuple[QuietNode, ...]:
    """Return active nodes that are not fresh at the newest round of (since, until], by name.

    None when the rounds themselves have stopped, or of a node that no round has asked yet.
    """
    period_s = scrape_period_s(session)
    newest = session.scalar(select(func.max(RoundRow.at)).where(RoundRow.at > since, RoundRow.at <= until))
    if newest is None or (until - newest).total_seconds() >= stale_after_s(period_s):
        return ()
    names = list(session.scalars(select(NodeRow.name).where(NodeRow.state == "active")))
    seen = _last_samples(session, names, until)
    intervals = _intervals_s(session, seen)
    quiet = [
        n
        for n in names
        if freshness(age_s(seen.get(n), newest), news_period_s(period_s, intervals.get(n)))
        is not Freshness.FRESH
    ]
    if not quiet:
        return ()
    f = ScrapeFailureRow
    within = (f.node.in_(quiet), f.at > since, f.at <= until)
    missed = {
        node: n for node, n in session.execute(select(f.node, func.count()).where(*within).group_by(f.node))
    }
    reasons = {
        row.node: f"{row.reason}: {row.detail[:120]}" if row.detail else row.reason
        for row in session.scalars(
            select(f).where(*within).ext(distinct_on(f.node)).order_by(f.node, f.at.desc())
        )
    }
    return tuple(
        QuietNode(n, None if n not in seen else seen[n].timestamp(), reasons.get(n), missed.get(n, 0))
        for n in sorted(quiet)
        if n in seen or n in missed
    )


def _last_samples(session: Session, names: list[str], until: datetime) -> dict[str, datetime]:
    """Return when each node last gave a sample. Looks far back only for the lost."""
    found: dict[str, datetime] = {}
    for back in (timedelta(minutes=5), LOOK_BACK):
        lost = [name for name in names if name not in found]
        if not lost:
            break
        rows = session.execute(
            select(SampleRow.node, func.max(SampleRow.at))
            .where(SampleRow.node.in_(lost), SampleRow.at > until - back, SampleRow.at <= until)
            .group_by(SampleRow.node)
        )
        found |= {node: at for node, at in rows}
    return found


def _intervals_s(session: Session, seen: Mapping[str, datetime]) -> dict[str, float]:
    """Return how long the last window of each node was that another server scrapes."""
    s, sourced = SampleRow, [name for name in node_sources(session) if name in seen]
    if not sourced:
        return {}
    newest = [(name, seen[name]) for name in sourced]
    rows = session.execute(
        select(s.node, func.max(s.covered_s)).where(tuple_(s.node, s.at).in_(newest)).group_by(s.node)
    )
    return {node: covered for node, covered in rows if covered is not None}
