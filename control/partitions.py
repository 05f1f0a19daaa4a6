"""Day partitions of the sample tables: made ahead, dropped when too old. Days are UTC.

Partitions are named `<table>_<yyyymmdd>`; `<table>_default` catches rows no day was made for, and is
emptied into the right day when that day is made. Prevents: writes that fail at midnight, and a delete
of millions of rows that leaves the table as large as before.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from control.database import session_scope
from control.tables import PARTITIONED

DAYS_AHEAD = 3
#: Key of the advisory lock that lets one process change partitions at a time. Any constant of our own.
PARTITION_LOCK = 7_266_473_003
#: Plain tables that follow the same retention, each by its `at`.
TRIMMED = ("health", "scrape_failure", "round", "sign_in_failure")
TRIM_BATCH = 20_000
_NAME = re.compile(r"_(\d{4})(\d{2})(\d{2})$")


def make_partitions(session: Session, now: datetime, *, days_ahead: int = DAYS_AHEAD) -> list[str]:
    """Make the partitions from yesterday to `days_ahead` days after `now`; return the names of new ones.

    Rows that waited in a default partition move to their day. Safe from many processes at once.
    """
    session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": PARTITION_LOCK})
    today = now.astimezone(UTC).date()
    made: list[str] = []
    for table in PARTITIONED:
        present = set(_partitions(session, table))
        days = [today + timedelta(days=offset) for offset in range(-1, days_ahead + 1)]
        for day in days:
            name = f"{table}_{day:%Y%m%d}"
            if name not in present:
                _make(session, table, name, day)
                made.append(name)
    return made


def _make(session: Session, table: str, name: str, day: date) -> None:
    """Create the table aside, take over misplaced rows, attach it: works with and without such rows."""
    start, end = _bounds(day)
    session.execute(text(f"CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"))
    moved = (
        f"WITH moved AS (DELETE FROM {table}_default WHERE at >= :start AND at < :end RETURNING *) "  # noqa: S608 # constants
        f"INSERT INTO {name} SELECT * FROM moved"
    )
    session.execute(text(moved), {"start": start, "end": end})
    session.execute(
        text(
            f"ALTER TABLE {table} ATTACH PARTITION {name} "
            f"FOR VALUES FROM ('{start.isoformat()}') TO ('{end.isoformat()}')"
        )
    )


def _bounds(day: date) -> tuple[datetime, datetime]:
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return start, start + timedelta(days=1)


def _partitions(session: Session, table: str) -> list[str]:
    rows = session.execute(
        text(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
            "WHERE i.inhparent = to_regclass(:parent) ORDER BY c.relname"
        ),
        {"parent": table},
    )
    return [str(name) for (name,) in rows]


def day_of(partition: str) -> date | None:
    """Return the day a partition holds; None for the default one."""
    match = _NAME.search(partition)
    return None if match is None else date(int(match[1]), int(match[2]), int(match[3]))


def _anybody(_session: Session) -> None:
    """Let anybody delete: for a caller that needs no lease."""


def drop_old(
    engine: Engine, now: datetime, *, keep_days: int, fence: Callable[[Session], None] = _anybody
) -> list[str]:
    """Drop partitions whose whole day is more than `keep_days` old; return their names.

    "Now" is the earlier of `now` and the database's clock: one clock that is ahead deletes nothing.
    `fence` is called first in each writing transaction and raises if the caller does not lead any more.
    Each drop is a transaction of its own that waits at most the role's lock timeout, so a long reader
    delays it to the next run instead of blocking everybody. (`DETACH CONCURRENTLY` does not exist beside
    a default partition: PostgreSQL documentation, ALTER TABLE.)
    """
    with session_scope(engine) as session:
        oldest = (_earlier(session, now) - timedelta(days=keep_days)).date()
        names = [name for table in PARTITIONED for name in _partitions(session, table)]
    dropped: list[str] = []
    for name in names:
        day = day_of(name)
        if day is None or day >= oldest:
            continue
        with session_scope(engine) as session:
            fence(session)
            session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": PARTITION_LOCK})
            session.execute(text(f"DROP TABLE IF EXISTS {name}"))
        dropped.append(name)
    return dropped


def _earlier(session: Session, now: datetime) -> datetime:
    by_database: datetime = session.execute(text("SELECT clock_timestamp()")).scalar_one()
    return min(now, by_database).astimezone(UTC)


def trim_old(
    engine: Engine, now: datetime, *, keep_days: int, fence: Callable[[Session], None] = _anybody
) -> int:
    """Delete rows of the plain tables older than `keep_days`, in small transactions; return how many.

    "Now" and `fence` as for `drop_old`.
    """
    with session_scope(engine) as session:
        before = _earlier(session, now) - timedelta(days=keep_days)
    deleted = 0
    for table in TRIMMED:
        statement = (
            f"DELETE FROM {table} WHERE ctid IN "  # noqa: S608 # constants
            f"(SELECT ctid FROM {table} WHERE at < :before LIMIT {TRIM_BATCH})"
        )
        count = TRIM_BATCH
        while count == TRIM_BATCH:
            with session_scope(engine) as session:
                fence(session)
                rows = session.execute(
                    text(f"WITH gone AS ({statement} RETURNING 1) SELECT count(*) FROM gone"),  # noqa: S608 # constants
                    {"before": before},
                )
                count = int(rows.scalar_one())
            deleted += count
    return deleted


def misplaced_rows(session: Session) -> dict[str, int]:
    """Return how many rows wait in each default partition (counted up to 10,000). Normally all 0."""
    return {
        table: int(
            session.execute(
                text(f"SELECT count(*) FROM (SELECT 1 FROM {table}_default LIMIT 10000) AS found")  # noqa: S608 # constants
            ).scalar_one()
        )
        for table in PARTITIONED
    }
