"""Many nodes over time as arrays: one float64 matrix a column, nodes by instants, NaN where nobody knows.

Read by binary COPY with every value a float8, so that rows have one length and numpy takes them as they
come. Times are UTC, rates per second. A node some of whose engines did not say is not known at that
instant. Prevents: a hundred thousand Python rows for one picture, and a hole turned into a zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg import sql
from sqlalchemy import select
from sqlalchemy.orm import Session

from control.queries_fleet import aligned, bucket_length, scrape_period_s
from control.queries_history import level_of
from control.rollup_due import WIDTH
from control.tables import NodeRow
from control.tables_rollup import ENGINE, Level
from fleet.errors import InvalidInput

#: Signature, flags and extension length before the rows of binary COPY (PostgreSQL documentation, COPY).
_HEADER_BYTES = 19
_TRAILER_BYTES = 2


@dataclass(frozen=True, slots=True)
class _Column:
    """How one value of an engine is had from a raw row, and from its rollup rows of a bucket."""

    raw: str
    rolled: str
    is_mean: bool = False  # over a node's engines; others add up


def _rate(name: str) -> _Column:
    seen = f"sum(covered_s) - coalesce(sum({name}_unseen_s), 0)"
    return _Column(f"{name} / NULLIF(covered_s, 0)", f"sum({name})::float8 / NULLIF({seen}, 0)")


def _gauge(name: str, *, is_mean: bool = False) -> _Column:
    return _Column(name, f"sum({name}_sum) / NULLIF(sum({name}_n), 0)::float8", is_mean)


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
    names = list(session.scalars(select(NodeRow.name).order_by(NodeRow.name)))
    query = _query([_COLUMNS[name] for name in columns], level, since, until, bucket)
    rows = _copy(session, query, 2 + len(columns))
    return _panel(names, list(columns), rows, level, since, until, bucket)


def _query(
    columns: Sequence[_Column], level: Level, since: datetime, until: datetime, bucket: timedelta
) -> sql.Composed:
    """Return SELECT of (node's number, instant's number, values) of each engine, all float8."""
    is_raw = level is Level.RAW
    values = [column.raw if is_raw else column.rolled for column in columns]
    shown = ", ".join(f"coalesce(({value})::float8, 'NaN')" for value in values)
    name, groups = ("node", "") if is_raw else ("name", "AND r.scope = 'engine' GROUP BY 1, r.engine, 2")
    numbers = "SELECT name, row_number() OVER (ORDER BY name) - 1 AS number FROM node"
    instant = "floor((extract(epoch FROM r.at) - {start}) / {step} + 0.001)::float8"
    text = (
        f"SELECT n.number::float8, {instant}, {shown} "  # noqa: S608 # constants
        f"FROM {ENGINE.table(level)} AS r JOIN ({numbers}) AS n ON n.name = r.{name} "
        f"WHERE r.at >= {{since}} AND r.at < {{until}} {groups}"
    )
    return sql.SQL(text).format(  # pyright: ignore[reportArgumentType] # put together from constants
        start=sql.Literal(since.timestamp()),
        step=sql.Literal(bucket.total_seconds()),
        since=sql.Literal(since),
        until=sql.Literal(until),
    )


def _copy(session: Session, query: sql.Composed, width: int) -> NDArray[np.float64]:
    """Return the rows of `query`, each of `width` values that are float8 and not NULL, as a matrix."""
    connection = session.connection().connection.driver_connection
    if not isinstance(connection, psycopg.Connection):
        raise TypeError(f"COPY needs psycopg, not {type(connection).__name__}")
    raw = cast("psycopg.Connection[Any]", connection)
    statement = sql.SQL("COPY ({}) TO STDOUT (FORMAT BINARY)").format(query)
    with raw.cursor() as cursor, cursor.copy(statement) as copy:
        data = b"".join(copy)
    row = np.dtype([("fields", ">i2"), ("values", np.dtype([("size", ">i4"), ("value", ">f8")]), (width,))])
    count = (len(data) - _HEADER_BYTES - _TRAILER_BYTES) // row.itemsize
    rows = np.frombuffer(data, row, count, _HEADER_BYTES)
    return rows["values"]["value"].astype(np.float64)


def _panel(
    names: list[str],
    columns: list[str],
    rows: NDArray[np.float64],
    level: Level,
    since: datetime,
    until: datetime,
    bucket: timedelta,
) -> Panel:
    """Add engines up to nodes. A node with fewer engines than at other instants is not known there."""
    instants = max(0, -(-(until - since) // bucket))
    node, instant = rows[:, 0].astype(np.intp), np.rint(rows[:, 1]).astype(np.intp)
    shape = (len(names), instants)
    place = node * instants + instant
    engines = np.bincount(place, minlength=len(names) * instants).reshape(shape)
    most = engines.max(axis=1, initial=0)
    is_partial = engines < most[:, None]
    values: dict[str, NDArray[np.float64]] = {}
    present = np.flatnonzero(most)
    for index, name in enumerate(columns):
        added = np.bincount(place, rows[:, 2 + index], minlength=len(names) * instants)
        total = added.astype(np.float64).reshape(shape)
        if _COLUMNS[name].is_mean:
            total /= np.maximum(engines, 1)
        total[is_partial] = np.nan
        values[name] = total[present]
    return Panel(tuple(names[i] for i in present), since, bucket, level, values)
