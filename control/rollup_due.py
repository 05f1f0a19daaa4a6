"""Which minutes, hours and days must be rolled up (again), and since when each level's rows are all there.

A round marks its minute in its own transaction, a rolled-up minute its hour: what is written can never be
forgotten, early, late or back-filled. Marking locks the mark until the transaction ends, and so waits for a
roll-up in progress or is waited for by it. Prevents: a late round that never reaches the charts, a round
counted twice, and raw rows dropped before they were rolled up.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from sqlalchemy import bindparam, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from control.tables_rollup import Level, RollupDueRow, RollupHorizonRow

WIDTH = {Level.MINUTE: timedelta(minutes=1), Level.HOUR: timedelta(hours=1), Level.DAY: timedelta(days=1)}
#: What rolling up reads, by what it makes.
BELOW = {Level.MINUTE: Level.RAW, Level.HOUR: Level.MINUTE, Level.DAY: Level.HOUR}

_MARK = text(
    "INSERT INTO rollup_due AS d (level, at, not_before) VALUES (:level, :at, :not_before) "
    "ON CONFLICT (level, at) DO UPDATE SET touched = d.touched + 1"
)


def bucket_start(at: datetime, level: Level) -> datetime:
    """Return the start of the minute, hour or day `at` lies in (UTC)."""
    width_s = WIDTH[level].total_seconds()
    return datetime.fromtimestamp(at.timestamp() // width_s * width_s, UTC)


def mark_rounds(session: Session, stamps: Iterable[datetime], period_s: float) -> None:
    """Note in the caller's transaction that rounds with these stamps were written, changed or removed.

    Their minutes are rolled up once they are over and the next round had time to come. Call it in the
    transaction that writes the rows, whatever their age: back-filled rounds need nothing else.
    """
    wait = WIDTH[Level.MINUTE] + timedelta(seconds=period_s)
    minutes = sorted({bucket_start(at, Level.MINUTE) for at in stamps})
    if minutes:  # in one order, so that two writers cannot wait for each other
        mark(session, Level.MINUTE, [(minute, minute + wait) for minute in minutes])


def mark(session: Session, level: Level, starts: Iterable[tuple[datetime, datetime]]) -> None:
    """Note buckets as due, each with the time from which it is worth rolling up, in rising order."""
    rows = [{"level": level.value, "at": at, "not_before": wait} for at, wait in starts]
    if rows:
        session.execute(_MARK, rows)


def due(session: Session, level: Level, now: datetime, *, limit: int) -> list[datetime]:
    """Return starts of buckets worth rolling up at `now`, newest first, at most `limit`."""
    d = RollupDueRow
    query = select(d.at).where(d.level == level.value, d.not_before <= now)
    return list(session.scalars(query.order_by(d.at.desc()).limit(limit)))


def take(session: Session, level: Level, starts: Iterable[datetime]) -> list[datetime]:
    """Remove the marks of these buckets and return those that were there. Waits for who writes into them.

    The rows such a writer wrote are seen by the caller's next statement (read committed).
    """
    statement = text(
        "DELETE FROM rollup_due WHERE level = :level AND at IN :starts RETURNING at"
    ).bindparams(bindparam("starts", expanding=True))
    rows = session.execute(statement, {"level": level.value, "starts": sorted(starts)})
    return sorted(at for (at,) in rows)


def waiting(session: Session, level: Level, now: datetime) -> tuple[int, datetime | None]:
    """Return how many buckets are overdue at `now`, and the oldest's start."""
    d = RollupDueRow
    count, oldest = session.execute(
        select(func.count(), func.min(d.at)).where(d.level == level.value, d.not_before <= now)
    ).one()
    return count, oldest


def is_due_within(session: Session, level: Level, since: datetime, until: datetime) -> bool:
    """Say whether anything in [since, until) still has to be rolled up to `level`."""
    d = RollupDueRow
    found = select(d.at).where(d.level == level.value, d.at >= since, d.at < until).limit(1)
    return session.scalar(found) is not None


def kept_since(session: Session, table: str) -> datetime | None:
    """Return since when rows of `table` are all there; None: nothing was ever dropped."""
    h = RollupHorizonRow
    return session.scalar(select(h.kept_since).where(h.source == table))


def raise_horizon(session: Session, table: str, since: datetime) -> None:
    """Note that rows of `table` before `since` are dropped. Never goes back."""
    h = RollupHorizonRow
    statement = insert(h).values(source=table, kept_since=since)
    session.execute(
        statement.on_conflict_do_update(
            index_elements=[h.source],
            set_={"kept_since": func.greatest(h.kept_since, statement.excluded.kept_since)},
        )
    )
