"""A month's spend as a file: whole or refused, in a plain shape and in FOCUS, with a manifest to check it.

The plain CSV is the canonical file: closing a month seals its bytes. XLSX and Parquet carry the same lines
and name the canonical file's checksum. Every file is read back and held against the month before anybody
gets it. Prevents: an export that stops half-way, and files of one month that disagree.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Literal

from control.export_table import Cell, Column, Kind, Table, csv_bytes
from fleet import focus, focus_columns
from fleet.errors import Conflict, InvalidInput
from fleet.focus import Issuer
from fleet.spend import MonthSpend, SpendLine

Format = Literal["csv", "xlsx", "parquet"]
Layout = Literal["plain", "focus", "focus-1.2"]
LAYOUTS: tuple[Layout, ...] = ("plain", "focus", "focus-1.2")
MEDIA_TYPES: dict[Format, str] = {
    "csv": "text/csv; charset=utf-8",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "parquet": "application/vnd.apache.parquet",
}
FORMATS: tuple[Format, ...] = tuple(MEDIA_TYPES)
PLAIN = "rhodeck-spend/1"
NOTHING = "nothing is recorded of this month: the file is its header alone, and the total is not known"
_PLAIN = (
    Column("month", "month"),
    *map(Column, ("time_zone", "status", "line", "tenant", "tier", "model", "pool")),
    *(Column(name, "integer") for name in ("requests", "prompt_tokens", "output_tokens")),
    Column("engine_seconds", "decimal", 3),
    Column("node_hours", "decimal", 6),
    Column("amount_usd", "decimal", 2),
    *map(Column, ("method", "adjusts", "note")),
)
COLUMNS = tuple(column.name for column in _PLAIN)
#: What a line of the plain file of any release has: without it nothing was compared.
_COMPARED = frozenset(("line", "tenant", "tier", "model", "pool", "amount_usd"))
_FOCUS_KINDS: dict[str, Kind] = {"text": "text", "json": "text", "time": "time", "integer": "integer"}


@dataclass(frozen=True, slots=True)
class Export:
    """A finished file and what to check it by."""

    file_name: str
    body: bytes
    sha256: str
    rows: int
    total_usd: Decimal
    generated_at: datetime
    schema: str = PLAIN
    media_type: str = MEDIA_TYPES["csv"]
    canonical_sha256: str = ""  # of the month's plain CSV
    month: str = ""
    state: str = ""
    time_zone: str = ""
    is_recorded: bool = True  # else the total is not 0 but not known, and the file is its header alone

    def headers(self) -> dict[str, str]:
        """Return the HTTP headers of a download: name, checksum, and what the file must add up to."""
        total = {"X-Rhodeck-Total-USD": str(self.total_usd)}
        return {
            "Content-Disposition": f'attachment; filename="{self.file_name}"',
            "ETag": f'"{self.sha256}"',
            "X-Rhodeck-Rows": str(self.rows),
            **(total if self.is_recorded else {"X-Rhodeck-Recorded": "false"}),
            "X-Rhodeck-Schema": self.schema,
            "Cache-Control": "no-store",
        }

    def manifest(self) -> dict[str, str | int | None]:
        """Return what a receiver needs to verify the file.

        Of a month nothing is recorded of, `total_usd` is None, `recorded` False, and a note says so.
        """
        unknown: dict[str, str | int | None] = {"total_usd": None, "recorded": False, "note": NOTHING}
        said: dict[str, str | int | None] = {
            "file": self.file_name,
            "schema": self.schema,
            "month": self.month,
            "state": self.state,
            "time_zone": self.time_zone,
            "sha256": self.sha256,
            "canonical_sha256": self.canonical_sha256,
            "rows": self.rows,
            "total_usd": str(self.total_usd),
            "generated_at": self.generated_at.isoformat(),
        }
        return said if self.is_recorded else said | unknown

    def manifest_file(self) -> bytes:
        """Return the manifest as a JSON file."""
        return json.dumps(self.manifest(), indent=2).encode() + b"\n"


def spend_csv(spend: MonthSpend, now: datetime) -> Export:
    """Return the month as its canonical file. Raises Conflict when node time has no price."""
    return month_export(spend, "csv", "plain", now=now)


def closed_csv(spend: MonthSpend, body: bytes, now: datetime) -> Export:
    """Return a closed month's canonical file: the bytes kept when it was closed."""
    return month_export(spend, "csv", "plain", now=now, canonical=body)


def month_export(
    spend: MonthSpend,
    fmt: Format,
    layout: Layout,
    *,
    now: datetime,
    issuer: Issuer | None = None,
    canonical: bytes | None = None,
) -> Export:
    """Return the month as a file. `canonical`: the kept bytes of a closed month's plain CSV.

    Raises Conflict when node time has no price (a partial file would lie), when lines do not sum to the
    month or are not those it was closed with, or rows do not hold what FOCUS asks; InvalidInput if a
    spreadsheet cannot hold it.
    """
    _require_whole(spend)
    if canonical is None:
        canonical = csv_bytes(_plain(spend))
    elif not is_file_of(spend, canonical):
        raise Conflict(
            f"the lines of {spend.month.name} are not those of the file it was closed with",
            hint="Run `rhodeck months verify`; restore the books from a backup",
        )
    version = _VERSIONS[layout]
    made = Export(
        file_name=_file_name(spend, fmt, layout),
        body=b"",
        sha256="",
        rows=len(spend.lines),
        total_usd=spend.total_usd,
        generated_at=now,
        schema=PLAIN if version is None else f"FOCUS {version}",
        media_type=MEDIA_TYPES[fmt],
        canonical_sha256=hashlib.sha256(canonical).hexdigest(),
        month=spend.month.name,
        state=status_of(spend),
        time_zone=spend.month.zone,
        is_recorded=spend.has_records,
    )
    if layout == "plain" and fmt == "csv":
        return _checked(made, canonical, fmt)
    table = _plain(spend) if version is None else _focus(spend, issuer or Issuer(), version)
    return _checked(made, _WRITERS[fmt](table, _about(made), spend), fmt)


def is_file_of(spend: MonthSpend, body: bytes) -> bool:
    """Say whether the canonical file `body` has exactly the lines of `spend`, cell by cell.

    Columns that only another release writes are passed, and so are apostrophes that only one of them sets.
    """
    try:
        kept = list(csv.DictReader(io.StringIO(body.decode(), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error):
        return False
    made = csv.DictReader(io.StringIO(csv_bytes(_plain(spend)).decode(), newline=""))
    return len(kept) == len(spend.lines) and all(map(_is_same_line, kept, made))


def _is_same_line(kept: Mapping[str, str | None], made: Mapping[str, str]) -> bool:
    names = kept.keys() & made.keys()
    bare = [[(row[name] or "").replace("'", "") for name in names] for row in (kept, made)]
    return bare[0] == bare[1] and names >= _COMPARED


def format_named(text: str) -> Format:
    """Return the format called `text`. Raises InvalidInput."""
    for each in FORMATS:
        if text == each:
            return each
    raise InvalidInput(
        f"there is no format {text[:20]!r}", hint=f"One of {', '.join(FORMATS)}", field="format"
    )


def layout_named(text: str) -> Layout:
    """Return the layout called `text`. Raises InvalidInput."""
    for each in LAYOUTS:
        if text == each:
            return each
    raise InvalidInput(
        f"there is no layout {text[:20]!r}", hint=f"One of {', '.join(LAYOUTS)}", field="layout"
    )


def status_of(spend: MonthSpend) -> str:
    """Return what the file says of the month: closed, not_recorded, estimated or complete."""
    if spend.state in ("closed", "not recorded"):
        return spend.state.replace(" ", "_")
    return "estimated" if spend.is_estimated else "complete"


_VERSIONS: dict[Layout, focus_columns.FocusVersion | None] = {
    "plain": None,
    "focus": focus_columns.VERSIONS[0],
    "focus-1.2": "1.2",
}


def _write_csv(table: Table, _about: Mapping[str, str | int], _spend: MonthSpend) -> bytes:
    return csv_bytes(table)


def _write_xlsx(table: Table, about: Mapping[str, str | int], spend: MonthSpend) -> bytes:
    from control.export_xlsx import xlsx_bytes  # its library is loaded by whoever asks for a workbook

    return xlsx_bytes(table, about, spend.month.end)


def _write_parquet(table: Table, about: Mapping[str, str | int], _spend: MonthSpend) -> bytes:
    from control.export_parquet import parquet_bytes  # as above

    return parquet_bytes(table, about)


_WRITERS: dict[Format, Callable[[Table, Mapping[str, str | int], MonthSpend], bytes]] = {
    "csv": _write_csv,
    "xlsx": _write_xlsx,
    "parquet": _write_parquet,
}


def _file_name(spend: MonthSpend, fmt: Format, layout: Layout) -> str:
    version = _VERSIONS[layout]
    shape = "" if version is None else f".focus-{version}"
    return f"spend_{spend.month.name}_{status_of(spend)}{shape}.{fmt}"


def _about(made: Export) -> dict[str, str | int]:
    """Return the manifest as it can stand in the file itself: without its own checksum and time."""
    said = {k: v for k, v in made.manifest().items() if k not in ("sha256", "generated_at")}
    return {k: "not recorded" if v is None else v for k, v in said.items() if k != "recorded"}


def _require_whole(spend: MonthSpend) -> None:
    if spend.unpriced_node_hours:
        raise Conflict(
            f"{spend.unpriced_node_hours:.2f} node-hours of {spend.month.name} have no price",
            hint="Add one with `rhodeck prices add`, effective from the start of the month",
        )
    lines = sum((line.amount_usd for line in spend.lines), Decimal("0.00"))
    if lines != spend.total_usd:
        raise Conflict(
            f"lines of {spend.month.name} sum to {lines} USD, not to {spend.total_usd}",
            hint="Try again; if it stays, run `rhodeck months verify`",
            retryable=True,
        )


def _checked(made: Export, body: bytes, fmt: Format) -> Export:
    """Return the export with its body, read back: as many rows as said, and as much money."""
    found = _READERS[fmt](body)
    said = (made.rows, made.total_usd)
    if found is not None and found != said:
        raise Conflict(
            f"{made.file_name} came out as {found[0]} rows and {found[1]} USD, not {said[0]} and {said[1]}",
            hint="Nothing was written; try again, and report it if it stays",
            retryable=True,
        )
    return Export(
        **{name: getattr(made, name) for name in Export.__slots__ if name not in ("body", "sha256")},
        body=body,
        sha256=hashlib.sha256(body).hexdigest(),
    )


def _read_csv(body: bytes) -> tuple[int, Decimal]:
    rows = list(csv.DictReader(io.StringIO(body.decode(), newline="")))
    name = "BilledCost" if rows and "BilledCost" in rows[0] else "amount_usd"
    return len(rows), sum((Decimal(row[name]) for row in rows), Decimal("0.00"))


def _read_parquet(body: bytes) -> tuple[int, Decimal]:
    from control.export_parquet import amounts

    found = amounts(body, ("BilledCost", "amount_usd"))
    return len(found), sum(found, Decimal("0.00"))


#: A workbook is checked while it is written: its writer says of each cell whether it took it whole.
_READERS: dict[Format, Callable[[bytes], tuple[int, Decimal] | None]] = {
    "csv": _read_csv,
    "xlsx": lambda _body: None,
    "parquet": _read_parquet,
}


def _plain(spend: MonthSpend) -> Table:
    return Table(_PLAIN, [_plain_row(spend, line) for line in spend.lines])


def _plain_row(spend: MonthSpend, line: SpendLine) -> tuple[Cell, ...]:
    return (
        spend.month.name,
        spend.month.zone,
        status_of(spend),
        line.kind,
        line.tenant,
        line.tier,
        line.model,
        line.pool,
        line.requests,
        line.prompt_tokens,
        line.output_tokens,
        line.engine_s,
        line.node_hours,
        line.amount_usd,
        spend.method,
        line.adjusts,
        line.note,
    )


def _focus(spend: MonthSpend, issuer: Issuer, version: focus_columns.FocusVersion) -> Table:
    rows = focus.rows(spend, issuer, version)
    wrong = focus_columns.problems(rows, version)
    if wrong:
        raise Conflict(
            f"{spend.month.name} does not hold what FOCUS {version} asks: {'; '.join(wrong[:3])}",
            hint="Take the plain layout, and report it",
        )
    columns = tuple(
        Column(c.name, _FOCUS_KINDS.get(c.kind, "decimal"), focus_columns.SCALES.get(c.kind, 0))
        for c in focus_columns.columns(version)
    )
    return Table(columns, [tuple(row.values()) for row in rows])
