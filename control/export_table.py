"""A table for people and machines: typed columns, and the table as CSV.

A cell is text, `Decimal`, int, an instant or None; how it is written follows from its column. CSV: RFC
4180, UTF-8, CRLF, fixed-point decimals, `...Z` times, nothing for None. Text that a spreadsheet would run
as a formula gets a leading apostrophe. Prevents: a tenant's name that runs code on finance's machine, and
an amount that arrives as 0.30000000000000004.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Literal

#: Leading characters a spreadsheet takes for a formula, full-width forms included.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
#: What a spreadsheet may drop before it looks at the first character.
_INVISIBLE = " \u00a0\u3000\ufeff\u200b\u200c\u200d\u200e\u200f\u2060\x00"

PRECISION = 38  # digits of a decimal: what decimal128 holds
_DIGITS = Context(prec=PRECISION)

Kind = Literal["text", "month", "integer", "decimal", "time"]
Cell = str | int | Decimal | datetime | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column: `scale` is the decimal places of a decimal. A month is text like 2026-11."""

    name: str
    kind: Kind = "text"
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Rows in the order of the file; each row has a cell for each column."""

    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Cell]]


def neutralised(text: str) -> str:
    """Return `text` so that no spreadsheet runs it: a leading apostrophe where it would.

    Source: OWASP, CSV Injection.
    """
    bare = (text.lstrip(" "), text.lstrip(_INVISIBLE), text.lstrip())
    return f"'{text}" if any(each.startswith(FORMULA_STARTS) for each in bare) else text


def rounded(column: Column, value: Decimal) -> Decimal:
    """Return a decimal with as many places as its column has, half to even: the same in every format."""
    return value.quantize(Decimal(1).scaleb(-column.scale), ROUND_HALF_EVEN, _DIGITS)


def csv_bytes(table: Table) -> bytes:
    """Return the table as CSV, header first."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([column.name for column in table.columns])
    for row in table.rows:
        writer.writerow([_text(column, cell) for column, cell in zip(table.columns, row, strict=True)])
    return out.getvalue().encode()


def _text(column: Column, cell: Cell) -> str:
    match cell:
        case None:
            return ""
        case datetime():
            return cell.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        case Decimal():
            return f"{rounded(column, cell):f}"
        case int():
            return str(cell)
        case str():
            return neutralised(cell)
