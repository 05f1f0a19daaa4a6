"""Usage records of a month as one file, whole or refused, in bounded memory however many there are.

One snapshot gives the sums, then the rows in a fixed order (finished_at, gateway, spool, seq) by COPY, in
blocks of whole rows. What was written is counted and summed again, and must be what SQL said before anybody
gets the file. Durations are seconds. Prevents: a file that ends where the database went away, and five
million rows in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import IO, Any, Literal, cast
from zoneinfo import ZoneInfo

import psycopg
from psycopg.sql import SQL
from psycopg.sql import Literal as Value
from sqlalchemy import Connection, Engine, text

from control.closed_months import require_zone
from control.database import reporting_outages, session_scope
from control.export_usage_blocks import BLOCK_BYTES, COLUMNS, UsageWriter
from fleet.errors import Conflict, InvalidInput, Unavailable
from fleet.months import Month, month_of

UsageFormat = Literal["csv", "parquet"]
USAGE_FORMATS: tuple[UsageFormat, ...] = ("csv", "parquet")
SCHEMA = "rhodeck-usage/1"
STATEMENT_S = 1_800
_SUMS = text(
    "SELECT count(*), coalesce(sum(prompt_tokens), 0), coalesce(sum(output_tokens), 0), "
    "coalesce(sum(round(engine_s::numeric, 6)), 0) FROM usage_record "
    "WHERE finished_at >= :start AND finished_at < :end"
)


@dataclass(frozen=True, slots=True)
class UsageSums:
    """What records add up to."""

    records: int
    prompt_tokens: int
    output_tokens: int
    engine_s: Decimal


@dataclass(frozen=True, slots=True)
class UsageFile:
    """A finished file of usage records and what to check it by."""

    file_name: str
    media_type: str
    month: str
    time_zone: str
    sha256: str
    size: int
    sums: UsageSums
    generated_at: datetime

    def headers(self) -> dict[str, str]:
        """Return the HTTP headers of a download."""
        return {
            "Content-Disposition": f'attachment; filename="{self.file_name}"',
            "Content-Length": str(self.size),
            "ETag": f'"{self.sha256}"',
            "X-Rhodeck-Rows": str(self.sums.records),
            "X-Rhodeck-Schema": SCHEMA,
            "Cache-Control": "no-store",
        }

    def manifest(self) -> dict[str, str | int]:
        """Return what a receiver needs to verify the file."""
        return {
            "file": self.file_name,
            "schema": SCHEMA,
            "month": self.month,
            "time_zone": self.time_zone,
            "sha256": self.sha256,
            "bytes": self.size,
            "rows": self.sums.records,
            "prompt_tokens": self.sums.prompt_tokens,
            "output_tokens": self.sums.output_tokens,
            "engine_seconds": f"{self.sums.engine_s:.6f}",
            "generated_at": self.generated_at.isoformat(),
        }


def usage_format(name: str) -> UsageFormat:
    """Return the format called `name`. Raises InvalidInput."""
    for each in USAGE_FORMATS:
        if name == each:
            return each
    raise InvalidInput(
        f"usage records come not as {name[:20]!r}",
        hint=f"Take one of {', '.join(USAGE_FORMATS)}; a sheet ends at 1,048,576 rows",
        field="format",
    )


def write_usage(
    engine: Engine, name: str, fmt: UsageFormat, out: IO[bytes], *, zone: ZoneInfo, now: datetime
) -> UsageFile:
    """Write the records that finished in month `name` to `out` and return what they are.

    Raises InvalidInput for another name, Conflict if the rows are not what SQL counted, Unavailable if the
    database fails on the way: then what stands in `out` is worth nothing.
    """
    month = month_of(name, zone)
    with session_scope(engine) as session:
        require_zone(session, zone)
    sink = _Hashed(out)
    with _snapshot(engine) as connection:
        wanted = _sums(connection, month)
        writer = UsageWriter(sink, fmt, {"schema": SCHEMA, "month": name, "time_zone": zone.key})
        try:
            for block in _blocks(_copied(connection, month)):
                writer.write(block)
            writer.close()
        except psycopg.Error as exc:
            connection.invalidate(exc)  # a lost connection cannot even roll back
            raise Unavailable(
                f"the database failed after {writer.records} records: {str(exc).strip()[:200]}",
                hint="Nothing was exported; try again",
            ) from exc
    found = UsageSums(writer.records, writer.prompt_tokens, writer.output_tokens, writer.engine_s)
    if found != wanted:
        raise Conflict(
            f"{found.records} records with {found.prompt_tokens} and {found.output_tokens} tokens were "
            f"written, not {wanted.records} with {wanted.prompt_tokens} and {wanted.output_tokens}",
            hint="Nothing was exported; try again, and report it if it stays",
            retryable=True,
        )
    media = "text/csv; charset=utf-8" if fmt == "csv" else "application/vnd.apache.parquet"
    file_name = f"usage_{name}.{fmt}"
    return UsageFile(file_name, media, name, zone.key, sink.hash.hexdigest(), sink.size, found, now)


@contextmanager
def _snapshot(engine: Engine) -> Generator[Connection]:
    """One read-only transaction in which every statement sees the same rows."""
    options: dict[str, Any] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    with reporting_outages(engine.url), engine.connect().execution_options(**options) as connection:
        connection.execute(text(f"SET LOCAL statement_timeout = '{STATEMENT_S}s'"))
        connection.execute(text("SET LOCAL TIME ZONE 'UTC'"))
        yield connection


def _sums(connection: Connection, month: Month) -> UsageSums:
    row = connection.execute(_SUMS, {"start": month.start, "end": month.end}).one()
    return UsageSums(int(row[0]), int(row[1]), int(row[2]), Decimal(row[3]))


def _copied(connection: Connection, month: Month) -> Iterator[bytes]:
    """Rows as CSV, one at a time."""
    driver = cast("psycopg.Connection[Any]", connection.connection.driver_connection)
    query = SQL(
        "COPY (SELECT {columns} FROM usage_record WHERE finished_at >= {start} AND finished_at < {end} "
        "ORDER BY finished_at, gateway, spool, seq) TO STDOUT (FORMAT csv)"
    ).format(
        columns=SQL(", ").join(SQL(column.sql) for column in COLUMNS),
        start=Value(month.start.astimezone(UTC)),
        end=Value(month.end.astimezone(UTC)),
    )
    with driver.cursor() as cursor, cursor.copy(query) as copy:
        yield from map(bytes, copy)


def _blocks(rows: Iterable[bytes]) -> Iterator[bytes]:
    """Rows put together to blocks of about `BLOCK_BYTES`, none torn."""
    block: list[bytes] = []
    size = 0
    for row in rows:
        block.append(row)
        size += len(row)
        if size >= BLOCK_BYTES:
            yield b"".join(block)
            block.clear()
            size = 0
    if block:
        yield b"".join(block)


class _Hashed:
    """A file that is hashed and measured while it is written."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self.hash = hashlib.sha256()
        self.size = 0
        self.closed = False

    def write(self, part: bytes) -> int:
        self.hash.update(part)
        self.size += len(part)
        return self._out.write(part)

    def flush(self) -> None:
        self._out.flush()

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """Leave the file open: its owner closes it."""
