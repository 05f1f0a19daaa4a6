"""Partitions of the tables that grow with time: made when needed, dropped when too old. Days are UTC.

Raw rows and minutes lie in days, hours and days in months: `<table>_<yyyymmdd>` after the first day. Raw
tables have `<table>_default` for rows no day was made for; it is emptied into the day when that is made. A
partition goes only when all of it has been rolled up, and the horizon of its table rises in the same
transaction. Prevents: writes that fail at midnight, a delete of millions of rows that leaves the table as
large as before, and history lost because its summary was not written yet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from control import rollup_due
from control.database import session_scope
from control.tables import PARTITIONED
from control.tables_rollup import DAY_TABLES, HOUR_TABLES, MINUTE_TABLES, Level

DAYS_AHEAD = 3
#: Key of the advisory lock that lets one process change partitions at a time. Any constant of our own.
PARTITION_LOCK = 7_266_473_003
#: Plain tables as old as the minutes, each by its `at`.
TRIMMED = ("scrape_failure", "round", "sign_in_failure", "gpu_sample", "alert_notice")
TRIM_BATCH = 20_000
#: Share of new rows at which Postgres marks pages as seen by all: what is not is read from the wide rows.
VACUUMED_AT = 0.02
_NAME = re.compile(r"_(\d{4})(\d{2})(\d{2})$")
_ABOVE = {Level.RAW: Level.MINUTE, Level.MINUTE: Level.HOUR}


@dataclass(frozen=True, slots=True)
class Retention:
    """How many days each level is kept. A day or month goes when all of it is older."""

    raw_days: int = 2
    minute_days: int = 14
    hour_days: int = 400

    def days(self, level: Level) -> int:
        """Return how long rows of `level` are kept; days as long as the hours they are made of."""
        return {Level.RAW: self.raw_days, Level.MINUTE: self.minute_days}.get(level, self.hour_days)


@dataclass(frozen=True, slots=True)
class Dropped:
    """Names of partitions that went, and of those that wait for their roll-up although they are old."""

    names: list[str]
    held: list[str]


def _tables() -> dict[str, Level]:
    return (
        dict.fromkeys(PARTITIONED, Level.RAW)
        | dict.fromkeys(MINUTE_TABLES, Level.MINUTE)
        | dict.fromkeys(HOUR_TABLES, Level.HOUR)
        | dict.fromkeys(DAY_TABLES, Level.DAY)
    )


def make_partitions(session: Session, now: datetime, *, days_ahead: int = DAYS_AHEAD) -> list[str]:
    """Make the raw partitions from yesterday to `days_ahead` days after `now`; return names of new ones.

    Rows that waited in a default partition move to their day. Safe from many processes at once.
    """
    today = now.astimezone(UTC).date()
    since, until = (_midnight(today + timedelta(days=n)) for n in (-1, days_ahead + 1))
    return [name for table in PARTITIONED for name in make_partition(session, table, since, until)]


def make_partition(session: Session, table: str, since: datetime, until: datetime) -> list[str]:
    """Make the partitions of `table` that [since, until) needs; return the names of new ones."""
    level = _tables()[table]
    wanted = {f"{table}_{first:%Y%m%d}": (first, last) for first, last in _spans(level, since, until)}
    if wanted.keys() <= set(_partitions(session, table)):
        return []
    session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": PARTITION_LOCK})
    present = set(_partitions(session, table))
    made = [name for name in wanted if name not in present]
    for name in made:
        _make(session, table, name, *wanted[name], has_default=level is Level.RAW)
    return made


def _spans(level: Level, since: datetime, until: datetime) -> Iterator[tuple[date, date]]:
    """Yield [first day, day after the last) of each partition that [since, until) touches."""
    at, end = since.astimezone(UTC).date(), until.astimezone(UTC)
    while _midnight(at) < end:
        by_month = level in {Level.HOUR, Level.DAY}
        first = at.replace(day=1) if by_month else at
        last = (first + timedelta(days=32)).replace(day=1) if by_month else at + timedelta(days=1)
        yield first, last
        at = last


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _make(session: Session, table: str, name: str, first: date, last: date, *, has_default: bool) -> None:
    """Create the table aside, take over misplaced rows, attach it: works with and without such rows."""
    start, end = _midnight(first), _midnight(last)
    session.execute(
        text(
            f"CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS) "
            f"WITH (autovacuum_vacuum_insert_scale_factor = {VACUUMED_AT})"
        )
    )
    if has_default:
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
    """Return the first day a partition holds; None for the default one."""
    match = _NAME.search(partition)
    return None if match is None else date(int(match[1]), int(match[2]), int(match[3]))


def _anybody(_session: Session) -> None:
    """Let anybody delete: for a caller that needs no lease."""


def drop_old(
    engine: Engine, now: datetime, keep: Retention, *, fence: Callable[[Session], None] = _anybody
) -> Dropped:
    """Drop partitions that are wholly older than `keep` says and wholly rolled up; return their names.

    "Now" is the earlier of `now` and the database's clock: one clock that is ahead deletes nothing.
    `fence` is called first in each writing transaction and raises if the caller does not lead any more.
    Each drop is a transaction of its own that waits at most the role's lock timeout, so a long reader
    delays it to the next run instead of blocking everybody. (`DETACH CONCURRENTLY` does not exist beside
    a default partition: PostgreSQL documentation, ALTER TABLE.)
    """
    found = Dropped([], [])
    with session_scope(engine) as session:
        today = _earlier(session, now)
        old = [
            (table, level, name, spans[0][1])
            for table, level in _tables().items()
            for name in _partitions(session, table)
            if (day := day_of(name)) is not None
            and (spans := list(_spans(level, _midnight(day), _midnight(day) + timedelta(days=1))))
            and spans[0][1] <= (today - timedelta(days=keep.days(level))).date()
        ]
    for table, level, name, end in old:
        with session_scope(engine) as session:
            fence(session)
            goes = _drop(session, table, level, name, _midnight(end))
        (found.names if goes else found.held).append(name)
    return found


def _drop(session: Session, table: str, level: Level, name: str, end: datetime) -> bool:
    """Drop one partition, unless something in it is still to be rolled up."""
    session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": PARTITION_LOCK})
    above = _ABOVE.get(level)
    if above is not None:
        session.execute(text(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE"))  # nobody writes into it now
        day = day_of(name)
        if day is None or rollup_due.is_due_within(session, above, _midnight(day), end):
            return False
        rollup_due.raise_horizon(session, table, end)
    session.execute(text(f"DROP TABLE IF EXISTS {name}"))
    return True


def _earlier(session: Session, now: datetime) -> datetime:
    by_database: datetime = session.execute(text("SELECT clock_timestamp()")).scalar_one()
    return min(now, by_database).astimezone(UTC)


def trim_old(
    engine: Engine,
    now: datetime,
    *,
    keep_days: int,
    tables: Sequence[str] = TRIMMED,
    fence: Callable[[Session], None] = _anybody,
) -> int:
    """Delete rows of plain tables older than `keep_days`, in small transactions; return how many.

    "Now" and `fence` as for `drop_old`.
    """
    with session_scope(engine) as session:
        before = _earlier(session, now) - timedelta(days=keep_days)
    deleted = 0
    for table in tables:
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
