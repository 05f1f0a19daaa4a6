"""Rolls rounds up to minutes, hours and days, in small transactions that can be stopped anywhere.

A bucket is rolled up from all that lies in it, each time something in it changed, and replaces what was
there; marks (`rollup_due`) say which. A bucket whose rows below were dropped already only gains: new rows
are merged into it and removed in the same transaction. Needs no lease: two controllers at it wait for each
other's marks and write the same. Prevents: rounds counted twice, a crash that leaves half an hour, and a
backlog that starves the present (the newest buckets go first).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from control import rollup_due
from control.database import session_scope
from control.partitions import make_partition
from control.rollup_due import BELOW, WIDTH
from control.rollup_sql import insert, lift, merge, plain, relabel
from control.tables_rollup import ENGINE, FAMILIES, GATEWAY, Family, Level
from fleet.clock import Clock

log = logging.getLogger(__name__)

#: How long a turn goes on taking buckets, and how long one transaction should be at most, seconds.
BUDGET_S = 3.0
BATCH_S = 1.0
BATCH_MAX = {Level.MINUTE: 60, Level.HOUR: 24, Level.DAY: 7}
#: When an hour and a day are worth rolling up, counted from their starts: their last part had time to be.
DUE = {Level.HOUR: timedelta(minutes=62), Level.DAY: timedelta(minutes=24 * 60 + 65)}
_ABOVE = {below: level for level, below in BELOW.items()}
_STATEMENT_TIMEOUT = "60s"
#: Whose sums a row is part of. Rows older than `counted_in` go with the node as it is now.
_POOL = "coalesce(r.counted_in, n.pool)"
_IS_COUNTED = "r.counted_in IS DISTINCT FROM ''"
#: What parts of an engine family's rows add up to: keys, join, condition.
_SUMS: dict[str, tuple[tuple[dict[str, str], str, str], ...]] = {
    ENGINE.name: (
        (
            {"scope": "'pool'", "name": _POOL, "engine": "''"},
            "LEFT JOIN node AS n ON n.name = r.name",
            f"r.scope = 'engine' AND {_POOL} <> ''",
        ),
        ({"scope": "'fleet'", "name": "''", "engine": "''"}, "", f"r.scope = 'engine' AND {_IS_COUNTED}"),
    ),
    GATEWAY.name: (({"gateway": "''"}, "", "r.gateway <> ''"),),
}
#: Which rows are such sums.
_ARE_SUMS = {ENGINE.name: "scope <> 'engine'", GATEWAY.name: "gateway = ''"}
#: Seconds in which a tenant was counted are the same seconds at every gateway.
_SIDE_BY_SIDE = frozenset({"counted_s"})
_RANGE = "at >= :since AND at < :until"


@dataclass(frozen=True, slots=True)
class Progress:
    """What one turn did and what is left."""

    minutes: int
    hours: int
    days: int
    waiting: dict[Level, int]
    oldest: dict[Level, datetime | None]

    def __str__(self) -> str:
        left = sum(self.waiting.values())
        if not self.minutes and not self.hours and not self.days and not left:
            return ""
        done = f"{self.minutes} minutes, {self.hours} hours and {self.days} days rolled up"
        if not left:
            return done
        first = min(at for at in self.oldest.values() if at is not None)
        return f"{done}, {left} wait, the oldest of {first:%Y-%m-%d %H:%M} UTC"


class Roller:
    """Takes due buckets in batches that adapt to how long they take. One a process."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._batch = dict.fromkeys(BATCH_MAX, 1)

    def run(self, now: datetime, *, budget_s: float = BUDGET_S) -> Progress:
        """Roll up what is due at `now` for about `budget_s` seconds, minutes before hours before days.

        Raises Unavailable or OperationalError when the database is away or too slow; what was done
        stays done. At least one batch of each level is tried, however small the budget.
        """
        ends_s = self._clock.monotonic_s() + budget_s
        done = {level: self._level(level, now, ends_s) for level in BATCH_MAX}
        with session_scope(self._engine) as session:
            left = {level: rollup_due.waiting(session, level, now) for level in done}
        return Progress(
            done[Level.MINUTE],
            done[Level.HOUR],
            done[Level.DAY],
            {level: count for level, (count, _) in left.items()},
            {level: oldest for level, (_, oldest) in left.items()},
        )

    def _level(self, level: Level, now: datetime, ends_s: float) -> int:
        done = 0
        while True:
            with session_scope(self._engine) as session:
                starts = rollup_due.due(session, level, now, limit=self._batch[level])
            if not starts:
                return done
            began_s = self._clock.monotonic_s()
            batch = self._batch[level]
            self._batch[level] = 1  # what fails is tried again in the smallest bite
            for run in runs(starts, WIDTH[level]):
                done += self._roll(level, run, now)
            took_s = self._clock.monotonic_s() - began_s
            self._batch[level] = _next_batch(batch, took_s, BATCH_MAX[level])
            if self._clock.monotonic_s() >= ends_s:
                return done

    def _roll(self, level: Level, starts: Sequence[datetime], now: datetime) -> int:
        """Roll up neighbouring buckets in one transaction."""
        with session_scope(self._engine) as session:
            session.execute(text(f"SET LOCAL statement_timeout = '{_STATEMENT_TIMEOUT}'"))
            taken = rollup_due.take(session, level, starts)
            for run in runs(taken, WIDTH[level]):
                roll(session, level, run[0], run[-1] + WIDTH[level])
                if level in _ABOVE:
                    _mark_above(session, _ABOVE[level], run, now)
        return len(taken)


def _next_batch(batch: int, took_s: float, most: int) -> int:
    if took_s < BATCH_S / 2:
        return min(2 * batch, most)
    return max(1, batch // 2) if took_s > BATCH_S else batch


def runs(starts: Sequence[datetime], width: timedelta) -> list[list[datetime]]:
    """Return `starts` in rising order, cut wherever two are not neighbours."""
    found: list[list[datetime]] = []
    for at in sorted(starts):
        if found and at - found[-1][-1] == width:
            found[-1].append(at)
        else:
            found.append([at])
    return found


def _mark_above(session: Session, level: Level, parts: Sequence[datetime], now: datetime) -> None:
    """An hour is rolled up when it is over and its last minute had time to be; a day likewise."""
    starts = sorted({rollup_due.bucket_start(at, level) for at in parts})
    rollup_due.mark(session, level, [(at, max(now, at + DUE[level])) for at in starts])


def roll(session: Session, level: Level, since: datetime, until: datetime) -> None:
    """Make the rows of `level` in [since, until) anew in the caller's transaction; both are bucket starts.

    The caller has taken the marks of these buckets. Where the rows below are dropped already (before the
    horizon), rows that came since are merged in and removed.
    """
    for family in FAMILIES:
        if level not in family.levels:
            continue
        horizon = rollup_due.kept_since(session, family.table(BELOW[level]))
        cut = since if horizon is None else min(max(horizon, since), until)
        if since < cut:
            _gain(session, family, level, since, cut)
        if cut < until:
            _replace(session, family, level, cut, until)


def _replace(session: Session, family: Family, level: Level, since: datetime, until: datetime) -> None:
    span = {"since": since, "until": until}
    target, below = family.table(level), family.table(BELOW[level])
    make_partition(session, target, since, until)
    if level is Level.MINUTE:  # back-filled rows lie in no day yet, and a day is what retention drops
        make_partition(session, below, since, until)
    session.execute(text(f"DELETE FROM {target} WHERE {_RANGE}"), span)  # noqa: S608 # constants
    read = lift if level is Level.MINUTE else plain
    merged = merge(family, level, read(family, below, _RANGE), _buckets(session, family, [below], span))
    session.execute(text(insert(family, level, merged)), span)
    if level is Level.MINUTE:
        _add_sums(session, family, span)


def _gain(session: Session, family: Family, level: Level, since: datetime, until: datetime) -> None:
    """Merge rows that came after the others were dropped, and remove them: each counts once."""
    span = {"since": since, "until": until}
    target, below = family.table(level), family.table(BELOW[level])
    make_partition(session, target, since, until)
    if level is Level.MINUTE and family.name in _ARE_SUMS:
        sums = f"DELETE FROM {target} WHERE {_RANGE} AND {_ARE_SUMS[family.name]}"  # noqa: S608 # constants
        session.execute(text(sums), span)
    most = _buckets(session, family, [below, target], span)
    ctes = (
        f"WITH old AS (DELETE FROM {target} WHERE {_RANGE} RETURNING *), "  # noqa: S608 # constants
        f"fresh AS (DELETE FROM {below} WHERE {_RANGE} RETURNING *)"
    )
    read = lift if level is Level.MINUTE else plain
    source = f"{plain(family, 'old')} UNION ALL {read(family, 'fresh')}"
    session.execute(text(insert(family, level, merge(family, level, source, most), ctes=ctes)), span)
    if level is Level.MINUTE:
        _add_sums(session, family, span)


def _add_sums(session: Session, family: Family, span: dict[str, datetime]) -> None:
    """Add the rows of pools, fleet and all gateways together, out of the rows just made."""
    table = family.table(Level.MINUTE)
    most = _buckets(session, family, [table], span)
    for keys, joined, condition in _SUMS.get(family.name, ()):
        parts = relabel(family, table, keys, joined, f"{condition} AND r.at >= :since AND r.at < :until")
        merged = merge(family, Level.MINUTE, parts, most, _SIDE_BY_SIDE)
        session.execute(text(insert(family, Level.MINUTE, merged)), span)


def _buckets(
    session: Session, family: Family, tables: Sequence[str], span: dict[str, datetime]
) -> dict[str, int]:
    """Return the largest number of buckets of each histogram in the rows to be merged."""
    most = dict.fromkeys(family.histograms, 0)
    if not most:
        return most
    columns = ", ".join(f"max(cardinality({prefix}_counts))" for prefix in most)
    for table in tables:
        found = session.execute(text(f"SELECT {columns} FROM {table} WHERE {_RANGE}"), span).one()  # noqa: S608
        most = {p: max(count, n or 0) for (p, count), n in zip(most.items(), found, strict=True)}
    return most
