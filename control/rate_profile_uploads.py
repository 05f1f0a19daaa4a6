"""Traffic somebody uploads: CSV, compressed or not, or Parquet. Hostile until checked.

The same three forms as in files (see `fleet.rate_profiles`), in bytes instead of a path. Prevents: a small
upload that unpacks to gigabytes, and a Parquet file read column by column into memory without a bound.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from fleet.errors import InvalidInput
from fleet.rate_profiles import RateProfile, read_csv_text, read_profile
from fleet.trace_columns import KNOWN, TIMES

MAX_UPLOAD_MB = 64
MAX_UNPACKED_BYTES = 600_000_000
MAX_ROWS = 5_000_000
_LONGEST_LINE = 4_096
_TELL_EVERY = 20_000  # lines


def uploaded_profile(
    name: str, body: bytes, source: str, told: Callable[[int, int], object] | None = None
) -> RateProfile:
    """Return the traffic in an uploaded file. Raises InvalidInput with what is wrong with it.

    `told` hears how many of the file's bytes (of Parquet: rows) were read, and how many there are.
    """
    tell = told or _nobody
    if len(body) > MAX_UPLOAD_MB * 1_000_000:
        raise InvalidInput(f"{name[:60]} has over {MAX_UPLOAD_MB} MB", field="/profile")
    if body[:4] == b"PAR1":
        return read_profile(name, source, _parquet_rows(body, tell))
    file = io.BytesIO(body)
    is_packed = body[:2] == b"\x1f\x8b"
    lines = _lines(
        gzip.GzipFile(fileobj=file) if is_packed else file, name, lambda: tell(file.tell(), len(body))
    )
    return read_csv_text(name, source, lines)


def _nobody(_done: int, _of: int) -> None:
    return


def _lines(raw: Any, name: str, tell: Callable[[], object]) -> Iterator[str]:
    """Lines of text, each bounded, as many as there is room for."""
    seen = rows = 0
    try:
        while line := raw.readline(_LONGEST_LINE):
            seen, rows = seen + len(line), rows + 1
            if seen > MAX_UNPACKED_BYTES or rows > MAX_ROWS or len(line) == _LONGEST_LINE:
                raise InvalidInput(
                    f"{name[:60]} unpacks to too much, or has a line of {_LONGEST_LINE} characters",
                    field="/profile",
                    hint=f"At most {MAX_ROWS:,} rows",
                )
            if rows % _TELL_EVERY == 0:
                tell()
            yield line.decode("utf-8-sig" if rows == 1 else "utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as exc:
        raise InvalidInput(
            f"{name[:60]} cannot be read: {exc}", field="/profile", hint="Give CSV, CSV.gz or Parquet"
        ) from exc


def _parquet_rows(body: bytes, tell: Callable[[int, int], object]) -> Iterator[dict[str, str]]:
    pa: Any = import_module("pyarrow")  # slow to import, and only needed here
    pq: Any = import_module("pyarrow.parquet")
    try:
        file: Any = pq.ParquetFile(io.BytesIO(body))
        if file.metadata.num_rows > MAX_ROWS:
            raise InvalidInput(
                f"the file has {file.metadata.num_rows:,} rows",
                field="/profile",
                hint=f"At most {MAX_ROWS:,}",
            )
        fields = [field for field in file.schema_arrow if field.name.strip().lower() in KNOWN]
        if not fields:
            seen = ", ".join(str(column)[:30] for column in file.schema_arrow.names[:8])
            raise InvalidInput(
                f"the file has the columns {seen}",
                field="/profile",
                hint="Give t_s or timestamp, or t_s and rate_rps, or bin and rate_rps",
            )
        _require_numbers(pa, fields)
        done = 0
        for batch in file.iter_batches(batch_size=50_000, columns=[field.name for field in fields]):
            for row in _plain(pa, batch).to_pylist():
                yield {key: "" if value is None else str(value) for key, value in row.items()}
            done += batch.num_rows
            tell(done, file.metadata.num_rows)
    except (pa.ArrowException, OSError, ValueError) as exc:
        raise InvalidInput(f"the Parquet file cannot be read: {str(exc)[:200]}", field="/profile") from exc


def _plain(pa: Any, batch: Any) -> Any:
    """Instants in microseconds: finer ones no `datetime` holds. Those without a zone are UTC."""
    fields = [
        pa.field(f.name, pa.timestamp("us", tz=f.type.tz or "UTC")) if pa.types.is_timestamp(f.type) else f
        for f in batch.schema
    ]
    return pa.Table.from_batches([batch]).cast(pa.schema(fields), safe=False)


def _require_numbers(pa: Any, fields: list[Any]) -> None:
    """Refuse texts and lists before they are read: one long value said once may stand in every row."""
    for field in fields:
        is_time = field.name.strip().lower() in TIMES and pa.types.is_timestamp(field.type)
        if not (is_time or pa.types.is_integer(field.type) or pa.types.is_floating(field.type)):
            raise InvalidInput(
                f"the column {field.name} holds {str(field.type)[:40]}",
                field="/profile",
                hint="Give integers or floats; timestamp may hold instants",
            )
    if len({field.name for field in fields}) < len(fields):
        raise InvalidInput("the file has a column twice", field="/profile")
