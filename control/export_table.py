"""A table for people and machines: typed columns, and the table as CSV.

A cell is text, `Decimal`, int, an instant or None; how it is written follows from its column. CSV: RFC
4180, UTF-8, CRLF, fixed-point decimals, `...Z` times, nothing for None. Text that a spreadsheet would run
as a formula gets a leading apostrophe. Prevents: a tenant's name that runs code on finance's machine, and
an amount that arrives as 0.30000000000000004.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Literal

#: What begins a formula, once wide, small and raised forms are made plain (NFKC).
FORMULA_STARTS = frozenset("=+-@")
_ENDS_OF_CELLS = frozenset("\t\r\n")
#: Unicode categories of what a spreadsheet may drop before it looks at the first character: blanks,
#: controls, invisible and unassigned characters, marks without a letter; and blanks that count as letters.
_DROPPED = frozenset(("Zs", "Zl", "Zp", "Cc", "Cf", "Cn", "Mn", "Me"))
_FILLERS = frozenset("\u115f\u1160\u3164\uffa0")
#: What a spreadsheet that separates by semicolons takes for the next cell, and one begun on a new line.
_INNER = re.compile(r"(?<=[;\r\n])[^;\r\n]+")

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
    """Return `text` so that no spreadsheet runs it: an apostrophe where a cell would begin a formula.

    A cell may also begin behind a semicolon or line end: many spreadsheets separate by semicolons. Source:
    OWASP, CSV Injection.
    """
    bare = _seen(text)
    before = text[: len(text) - len(bare)]
    is_risky = not _ENDS_OF_CELLS.isdisjoint(before) or _begins_formula(bare)
    return ("'" if is_risky else "") + before + _INNER.sub(_inner, bare)


def _inner(found: re.Match[str]) -> str:
    return f"'{found[0]}" if _begins_formula(_seen(_seen(found[0]).lstrip('"'))) else found[0]


def _seen(text: str) -> str:
    """Return `text` from the first character on that a spreadsheet looks at."""
    for place, character in enumerate(text):
        if character not in _FILLERS and unicodedata.category(character) not in _DROPPED:
            return text[place:]
    return ""


def _begins_formula(text: str) -> bool:
    return unicodedata.normalize("NFKC", text[:1])[:1] in FORMULA_STARTS


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
