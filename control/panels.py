"""Many nodes over time as arrays: one float64 matrix a column, nodes by instants, NaN where nobody knows.

Postgres puts each node's values into one array a column, which numpy takes as they come over the wire: no
Python object a value. Times are UTC, rates per second. A node some of whose engines did not say is not
known at that instant. Prevents: a hundred thousand Python rows for one picture, and a hole turned into a
zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, cast

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg import sql
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format
from sqlalchemy import select
from sqlalchemy.orm import Session

from control.queries_fleet import aligned, bucket_length, scrape_period_s
from control.queries_history import level_of
from control.rollup_due import WIDTH
from control.tables_rollup import ENGINE, TABLES, Level
from fleet.errors import InvalidInput

#: Before the elements of an array on the wire: dimensions, flags, element type, length, lower bound.
_ARRAY_HEADER_BYTES = 20
_ELEMENT = np.dtype([("size", ">i4"), ("value", ">f8")])
_FLOAT8_ARRAY_OID = 1022
_INSTANT = np.dtype([("size", ">i4"), ("us", ">i8")])  # since the start of 2000
_INSTANT_ARRAY_OID = 1185
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
#: Share of a bucket by which a round may be early and still is of it.
_EARLY = 0.001
#: Arrays of two processes are packed and unpacked between them, which costs more than it saves; and what
#: grows over 4 MB would go through a file.
_PLAN = {"max_parallel_workers_per_gather": "0", "work_mem": "64MB"}


@dataclass(frozen=True, slots=True)
class _Column:
    """How an engine's value is had from a raw row, from one rollup row, and from several of a bucket."""

    raw: str
    one: str
    rolled: str
    is_mean: bool = False  # over a node's engines; others add up


def _rate(name: str) -> _Column:
    seen = f"sum(covered_s) - coalesce(sum({name}_unseen_s), 0)"
    return _Column(
        f"{name} / NULLIF(covered_s, 0)",
        f"{name} / NULLIF(covered_s - coalesce({name}_unseen_s, 0), 0)",
        f"sum({name})::float8 / NULLIF({seen}, 0)",
    )


def _gauge(name: str, *, is_mean: bool = False) -> _Column:
    one = f"{name}_sum / NULLIF({name}_n, 0)"
    return _Column(name, one, f"sum({name}_sum) / NULLIF(sum({name}_n), 0)::float8", is_mean)


_COLUMNS = {
    "running": _gauge("running"),
    "waiting": _gauge("waiting"),
    "kv_used_ratio": _gauge("kv_used_ratio", is_mean=True),
    "arrivals_rate": _rate("arrivals"),
    "completed_rate": _rate("completed"),
    "prompt_tokens_rate": _rate("prompt_tokens"),
    "output_tokens_rate": _rate("generation_tokens"),
    "preemptions_rate": _rate("preemptions"),
}
COLUMNS = tuple(_COLUMNS)


@dataclass(frozen=True, slots=True)
class Panel:
    """Values of nodes over time. `values[column][node, instant]`; NaN: not known."""

    nodes: tuple[str, ...]
    since: datetime  # the first instant
    bucket: timedelta  # from one instant to the next
    level: Level
    values: dict[str, NDArray[np.float64]]


def node_panel(
    session: Session,
    columns: Sequence[str],
    since: datetime,
    until: datetime,
    *,
    level: Level | None = None,
    max_points: int = 720,
) -> Panel:
    """Return `columns` (of COLUMNS) of every node in [since, until), as means of equal buckets.

    `level` is chosen by the range unless given; rounds are not thinned out. Nodes without a row are absent.
    Raises InvalidInput for a column that does not exist.
    """
    for name in columns:
        if name not in _COLUMNS:
            raise InvalidInput(
                f"no column is called {name!r}", hint=f"One of {', '.join(COLUMNS)}", field="columns"
            )
    level = level or level_of(session, ENGINE, since, until)
    is_raw = level is Level.RAW
    width_s = scrape_period_s(session) if is_raw else WIDTH[level].total_seconds()
    since = aligned(since, width_s)
    bucket = timedelta(seconds=width_s) if is_raw else bucket_length(since, until, width_s, max_points)
    is_single = is_raw or (
        bucket.total_seconds() == width_s and not _has_variants(session, level, since, until)
    )
    query = _query([_COLUMNS[name] for name in columns], level, since, until, bucket, is_single=is_single)
    rows = sorted(_arrays(session, query), key=attrgetter("node"))
    return _panel(columns, rows, level, since, until, bucket)


def _has_variants(session: Session, level: Level, since: datetime, until: datetime) -> bool:
    """Say whether any engine has several rows for one minute or hour."""
    table = TABLES[ENGINE.name, level]
    query = select(table.c.variant).where(table.c.variant > 0, table.c.at >= since, table.c.at < until)
    return session.scalar(query.limit(1)) is not None


def _query(
    columns: Sequence[_Column],
    level: Level,
    since: datetime,
    until: datetime,
    bucket: timedelta,
    *,
    is_single: bool,
) -> sql.Composed:
    """Return SELECT of a node's name and arrays over its engines' instants: times, then each column."""
    is_raw = level is Level.RAW
    values = [c.raw if is_raw else c.one if is_single else c.rolled for c in columns]
    listed = [f"coalesce(({value})::float8, 'NaN') AS v{i}" for i, value in enumerate(values)]
    name, where = ("node", "") if is_raw else ("name", "AND r.scope = 'engine'")
    groups = "" if is_single else "GROUP BY 1, r.engine, 2"
    instant = "r.at" if is_single else "date_bin({bucket}, r.at, {since})"
    engines = (
        f"SELECT r.{name} AS node, {instant} AS instant, {', '.join(listed)} "  # noqa: S608 # constants
        f"FROM {ENGINE.table(level)} AS r WHERE r.at >= {{since}} AND r.at < {{until}} {where} {groups}"
    )
    arrays = ", ".join(f"array_agg(v{i})" for i in range(len(values)))
    text = f"SELECT node, array_agg(instant), {arrays} FROM ({engines}) AS every GROUP BY node"  # noqa: S608
    return sql.SQL(text).format(  # pyright: ignore[reportArgumentType] # put together from constants
        bucket=sql.Literal(bucket), since=sql.Literal(since), until=sql.Literal(until)
    )


class _Values(Loader):
    """Loads a float8[] without NULLs, as it comes, into one array."""

    format = Format.BINARY

    def load(self, data: Buffer) -> NDArray[np.float64]:
        return np.frombuffer(bytes(data), _ELEMENT, offset=_ARRAY_HEADER_BYTES)["value"]


class _Instants(Loader):
    """Loads a timestamptz[] without NULLs as microseconds since the start of 2000."""

    format = Format.BINARY

    def load(self, data: Buffer) -> NDArray[np.int64]:
        return np.frombuffer(bytes(data), _INSTANT, offset=_ARRAY_HEADER_BYTES)["us"]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one node: when, and each column's values."""

    node: str
    us: NDArray[np.int64]
    values: list[NDArray[np.float64]]


def _arrays(session: Session, query: sql.Composed) -> list[_Rows]:
    """Return what `query` answers. The session's transaction plans other statements as before."""
    connection = session.connection().connection.driver_connection
    if not isinstance(connection, psycopg.Connection):
        raise TypeError(f"numpy needs psycopg's arrays, not {type(connection).__name__}")
    raw = cast("psycopg.Connection[Any]", connection)
    before = _planned(raw, _PLAN)
    with raw.cursor(binary=True) as cursor:
        cursor.adapters.register_loader(_FLOAT8_ARRAY_OID, _Values)
        cursor.adapters.register_loader(_INSTANT_ARRAY_OID, _Instants)
        found = [_Rows(node, us, values) for node, us, *values in cursor.execute(query)]
    _planned(raw, before)
    return found


def _planned(connection: psycopg.Connection[Any], wanted: Mapping[str, str]) -> dict[str, str]:
    """Set settings until the transaction ends and return what they were."""
    were = ", ".join("current_setting(%s)" for _ in wanted)
    sets = ", ".join("set_config(%s, %s, true)" for _ in wanted)
    before = connection.execute(f"SELECT {were}", list(wanted)).fetchone()  # pyright: ignore[reportArgumentType, reportCallIssue] # constants
    connection.execute(f"SELECT {sets}", [each for pair in wanted.items() for each in pair])  # pyright: ignore[reportArgumentType, reportCallIssue] # constants
    return dict(zip(wanted, before or (), strict=True))


def _panel(
    columns: Sequence[str],
    rows: Sequence[_Rows],
    level: Level,
    since: datetime,
    until: datetime,
    bucket: timedelta,
) -> Panel:
    """Add engines up to nodes. A node with fewer engines than at other instants is not known there."""
    instants = max(0, -(-(until - since) // bucket))
    start_us, step_us = (since - _EPOCH) // _MICROSECOND, bucket / _MICROSECOND
    values = {name: np.full((len(rows), instants), np.nan) for name in columns}
    for number, each in enumerate(rows):
        place = np.minimum(((each.us - start_us) / step_us + _EARLY).astype(np.intp), instants - 1)
        engines = np.bincount(place, minlength=instants)
        most = engines.max(initial=0)
        for name, given in zip(columns, each.values, strict=True):
            line = values[name][number]
            if most == 1:
                line[place] = given
                continue
            line[:] = np.bincount(place, given, minlength=instants)
            if _COLUMNS[name].is_mean:
                line /= np.maximum(engines, 1)
            line[engines < most] = np.nan
    return Panel(tuple(each.node for each in rows), since, bucket, level, values)
