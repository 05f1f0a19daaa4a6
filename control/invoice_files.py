"""Reads a provider's invoice file: hostile until every cell of it was checked. Whole or refused.

Bytes in, lines out, no state. Text keeps printable characters only and is never run: a cell that begins
with = is no number. Amounts are `Decimal` in the invoice's currency. Prevents: a file that fills the
memory, half an invoice taken for a whole one, and an import that guesses where it had to ask.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from zoneinfo import ZoneInfo

from control.day_spend import zone_named
from fleet.errors import InvalidInput
from fleet.invoice_columns import FileMapping, guessed
from fleet.invoice_numbers import DateOrder, DecimalMark, amount_of, date_order, day_of, decimal_mark

MAX_BYTES = 50_000_000
MAX_ROWS = 250_000
MAX_COLUMNS = 400
MAX_CELL_CHARACTERS = 4_000
MAX_LINE_CHARACTERS = 200_000
_KEPT_CHARACTERS = 300
_MOST_BLANK_ROWS = 4 * MAX_ROWS  # blank rows count nothing, but reading them takes time
_LINE = re.compile(r"[^\r\n]+(?:\r\n|\r|\n)?|\r\n|\r|\n")
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_FIGURES = ("amount", "hours", "price")
Row = tuple[int, list[str]]  # its number in the file, its cells
_DELIMITERS = (",", ";", "\t", "|")


@dataclass(frozen=True, slots=True)
class FileLine:
    """One row of the file. `number` is its row in the file, the header being row 1."""

    number: int
    day: date | None
    label: str
    description: str
    hours: Decimal | None
    price: Decimal | None
    amount: Decimal


@dataclass(frozen=True, slots=True)
class InvoiceFile:
    """A whole file as it was read, and how."""

    mapping: FileMapping  # with what was guessed and told from the values
    currency: str  # "" if no column says
    lines: tuple[FileLine, ...]
    total: Decimal
    encoding: str
    delimiter: str


def read_invoice(body: bytes, given: FileMapping) -> InvoiceFile:
    """Return the lines of a file by a mapping, missing parts of which are guessed.

    Rows without anything in them are skipped. Raises InvalidInput naming row and column.
    """
    text, encoding = _decoded(body)
    delimiter = _delimiter(text)
    rows = _rows(text, delimiter)
    header = [_printable(name) for name in rows[0][1]]
    _require_header(header)
    reader = _Reader.of(header, rows[1:], given)
    lines = tuple(reader.line(number, row) for number, row in rows[1:])
    if not lines:
        raise InvalidInput("the file has a header and no lines", hint="Give the whole invoice")
    _require_no_total(lines)
    return InvoiceFile(
        replace(reader.mapping, decimal=reader.mark, dates=reader.order),
        _currency(reader.texts("currency", rows[1:])),
        lines,
        sum((line.amount for line in lines), Decimal(0)),
        encoding,
        delimiter,
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """How this file's rows become lines."""

    width: int
    mapping: FileMapping
    places: dict[str, int]  # column of each role
    zone: ZoneInfo
    mark: DecimalMark
    order: DateOrder

    @staticmethod
    def of(header: Sequence[str], rows: Sequence[Row], given: FileMapping) -> _Reader:
        """Return the reader, with what is told from all values."""
        mapping = guessed(header, given)
        places = {role: header.index(name) for role, name in mapping.columns.items()}
        made = _Reader(len(header), mapping, places, zone_named(mapping.zone), ".", "ymd")
        numbers = [t for role in _FIGURES for _, t in made.texts(role, rows)]
        return replace(
            made,
            mark=mapping.decimal or decimal_mark(numbers),
            order=mapping.dates or date_order(t for _, t in made.texts("day", rows)),
        )

    def texts(self, role: str, rows: Sequence[Row]) -> list[tuple[int, str]]:
        """Return a role's cells with their rows' numbers; none if it has no column."""
        place = self.places.get(role)
        return [] if place is None else [(number, row[place]) for number, row in rows if place < len(row)]

    def line(self, number: int, row: Sequence[str]) -> FileLine:
        """Return one row. Raises InvalidInput."""
        if len(row) > self.width and any(map(str.strip, row[self.width :])):
            raise InvalidInput(
                f"row {number} has {len(row)} cells under {self.width} columns",
                hint="An amount with a comma may stand there without quotation marks",
            )
        cells = {role: row[at].strip() if at < len(row) else "" for role, at in self.places.items()}
        if not cells["amount"]:
            raise InvalidInput(
                f"row {number} has no amount in {self.mapping.amount!r}",
                hint="Leave out rows that are no charges, such as totals and footers",
                field="amount",
            )
        return FileLine(
            number,
            self._day(number, cells.get("day", "")),
            _printable(cells.get("label", "")),
            _printable(cells.get("description", "")),
            self._figure(number, "hours", cells),
            self._figure(number, "price", cells),
            self._figure(number, "amount", cells) or Decimal(0),
        )

    def _day(self, number: int, text: str) -> date | None:
        try:
            return day_of(text, self.order, self.zone) if text else None
        except InvalidInput as exc:
            raise _at(number, self.mapping.day, exc) from exc

    def _figure(self, number: int, role: str, cells: Mapping[str, str]) -> Decimal | None:
        text = cells.get(role, "")
        try:
            return amount_of(text, self.mark) if text else None
        except InvalidInput as exc:
            raise _at(number, self.mapping.columns[role], exc) from exc


def _at(number: int, column: str, exc: InvalidInput) -> InvalidInput:
    return InvalidInput(f"row {number}, {column[:60]!r}: {exc.message}", hint=exc.hint, field=column[:60])


def _require_no_total(lines: Sequence[FileLine]) -> None:
    """Refuse a last row that has no day, where others have one, and sums the rows before it up."""
    *others, last = lines
    is_apart = last.day is None and any(line.day is not None for line in others)
    total = sum((line.amount for line in others), Decimal(0))
    if len(others) > 1 and is_apart and last.amount == total != 0:
        raise InvalidInput(
            f"row {last.number} is the total of the rows before it ({total:f})",
            hint="Leave out rows that are no charges, such as totals and footers",
            field="amount",
        )


def _decoded(body: bytes) -> tuple[str, str]:
    if len(body) > MAX_BYTES:
        raise InvalidInput(
            f"the file is over {MAX_BYTES // 1_000_000} MB", hint="Give one month of one account"
        )
    bom, encoding = next(((bom, name) for bom, name in _BOMS if body.startswith(bom)), (b"", ""))
    for name in (encoding,) if encoding else ("utf-8", "cp1252"):
        try:
            text = body[len(bom) :].decode(name)
        except UnicodeDecodeError:
            continue
        if "\x00" in text:
            break
        return text, name
    raise InvalidInput(
        "the file is not text", hint="Save it as CSV in UTF-8; spreadsheets and archives are not read"
    )


def _delimiter(text: str) -> str:
    first = next((line for line in text[:200_000].splitlines() if line.strip()), "")
    return max(_DELIMITERS, key=lambda mark: (first.count(mark), -_DELIMITERS.index(mark)))


def _rows(text: str, delimiter: str) -> list[Row]:
    """Return rows with something in them and their numbers, from the header on."""
    rows: list[Row] = []
    try:
        reader = csv.reader(_lines(text), delimiter=delimiter, strict=True)
        for number, row in enumerate(reader, 1):
            if not any(map(str.strip, row)) and number < _MOST_BLANK_ROWS:
                continue
            if len(row) > MAX_COLUMNS or any(len(cell) > MAX_CELL_CHARACTERS for cell in row):
                raise InvalidInput(
                    f"row {number} is over {MAX_COLUMNS} cells, or {MAX_CELL_CHARACTERS} characters in one",
                    hint="Give the provider's CSV as it was downloaded",
                )
            if len(rows) > MAX_ROWS or number >= _MOST_BLANK_ROWS:
                raise InvalidInput(
                    f"the file has over {MAX_ROWS:,} rows", hint="Give the daily or monthly export"
                )
            rows.append((number, row))
    except csv.Error as exc:
        raise InvalidInput(
            f"row {len(rows) + 1} is not CSV: {exc}", hint="Look for an open quotation mark"
        ) from exc
    if not rows:
        raise InvalidInput("the file is empty", hint="Give the provider's CSV with its header")
    return rows


def _lines(text: str) -> Iterator[str]:
    """Lines with their ends, bounded before anybody splits them into cells."""
    for found in _LINE.finditer(text):
        line = found[0]
        if len(line) > MAX_LINE_CHARACTERS:
            raise InvalidInput(
                f"a line has over {MAX_LINE_CHARACTERS:,} characters",
                hint="Give the provider's CSV as it was downloaded",
            )
        yield line


def _require_header(header: Sequence[str]) -> None:
    named = [name for name in header if name]
    if len(named) < 2:
        raise InvalidInput(
            "the first row names fewer than two columns", hint="The header must be the first row"
        )
    double = sorted({name for name in named if named.count(name) > 1})
    if double:
        raise InvalidInput(
            f"the header names {double[0][:60]!r} twice", hint="Rename one of the columns", field="header"
        )


def _currency(cells: Sequence[tuple[int, str]]) -> str:
    named = {text.strip().upper(): number for number, text in reversed(cells) if text.strip()}
    if len(named) > 1:
        raise InvalidInput(
            f"the file has amounts in {' and '.join(sorted(named)[:4])}",
            hint="Import each currency as an invoice of its own",
            field="currency",
        )
    for name, number in named.items():
        if len(name) != 3 or not name.isascii() or not name.isalpha():
            raise InvalidInput(
                f"row {number}: {name[:20]!r} is not a currency",
                hint="ISO 4217 has three letters",
                field="currency",
            )
        return name
    return ""


def _printable(text: str) -> str:
    """Return text without what a terminal or page would act on, cut to a bounded length."""
    return "".join(c if c.isprintable() else " " for c in text).strip()[:_KEPT_CHARACTERS]
