"""Writes what stands into the record of data quality, in the transaction of the round.

Level-triggered: open rows are brought in line with what stands, whatever was lost between. Details are
refreshed once a minute, so that a standing fault costs no write each round. Prevents: a row that stays
open because the round that ended it was lost, and two open rows for one fault.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy import Engine, delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from control.database import session_scope
from control.quality import GATEWAY, Key, RoundQuality, Standing
from control.tables import QualityFindingRow
from fleet.quality_kinds import Finding, Kind

DETAIL_EVERY = timedelta(seconds=60)
TRIM_BATCH = 20_000
_KINDS = {kind.value: kind for kind in Kind}


def open_standing(session: Session) -> list[Standing]:
    """Return every open finding, for a controller that starts. Kinds of other releases are left out."""
    rows = session.scalars(select(QualityFindingRow).where(QualityFindingRow.until.is_(None)))
    return [
        Standing(
            row.scope,
            row.source,
            Finding(_KINDS[row.kind], row.engine, row.metric, row.detail),
            row.since,
            row.since,
        )
        for row in rows
        if row.kind in _KINDS
    ]


def apply(session: Session, quality: RoundQuality) -> int:
    """Open, refresh and end rows so that the open ones are what stands; return how many changed."""
    rows = session.scalars(
        select(QualityFindingRow)
        .where(QualityFindingRow.until.is_(None))
        .execution_options(populate_existing=True)
    )
    open_rows = {_key(row): row for row in rows}
    standing = {each.key: each for each in quality.standing}
    seen = {each.key: each.seen for each in quality.ended}
    changed = 0
    for key, row in open_rows.items():
        if key not in standing:
            row.until = max(row.since, min(seen.get(key, quality.at), quality.at))
            changed += 1
        elif row.detail != standing[key].finding.detail and _is_due(quality.at):
            row.detail = standing[key].finding.detail
            changed += 1
    new = [_values(each) for key, each in standing.items() if key not in open_rows]
    if new:
        session.execute(insert(QualityFindingRow).on_conflict_do_nothing(), new)
    return changed + len(new)


def _is_due(at: datetime) -> bool:
    """True in the first round of each minute, whichever period rounds have."""
    return at.timestamp() % DETAIL_EVERY.total_seconds() < 10.0


def _key(row: QualityFindingRow) -> Key:
    return row.scope, row.source, row.engine, row.metric, _KINDS.get(row.kind, Kind.TOO_MANY)


def _values(standing: Standing) -> dict[str, object]:
    finding = standing.finding
    return {
        "scope": standing.scope,
        "source": standing.source,
        "engine": finding.engine,
        "metric": finding.metric,
        "kind": finding.kind.value,
        "severity": finding.severity.value,
        "since": standing.since,
        "detail": finding.detail,
        "affects": list(finding.affects(of_gateway=standing.scope == GATEWAY)),
    }


def trim(engine: Engine, now: datetime, *, keep_days: int, fence: Callable[[Session], None]) -> int:
    """Delete findings that ended more than `keep_days` ago; return how many. `fence`: as for partitions."""
    before, deleted, count = now - timedelta(days=keep_days), 0, TRIM_BATCH
    row = QualityFindingRow
    while count == TRIM_BATCH:
        with session_scope(engine) as session:
            fence(session)
            batch = select(row.id).where(row.until < before).limit(TRIM_BATCH)
            count = len(session.scalars(delete(row).where(row.id.in_(batch)).returning(row.id)).all())
        deleted += count
    return deleted
