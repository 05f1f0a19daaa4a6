"""A table as a workbook: real numbers and dates, a frozen header, columns as wide as what they hold.

Times are UTC. Text is written as text, never as a formula, link or number, and neutralised as in CSV: a
workbook may be saved as CSV. The same table gives the same bytes. Prevents: amounts a spreadsheet cannot
add up, and a sheet that was cut off at a spreadsheet's limits without a word.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import xlsxwriter

from control.export_table import Cell, Column, Table, neutralised, rounded
from fleet.errors import InvalidInput

MAX_ROWS = 1_048_575  # below the header; Excel's specifications and limits
MAX_CHARACTERS = 32_767
_WIDEST = 60
_OPTIONS = {
    "in_memory": True,
    "strings_to_formulas": False,
    "strings_to_urls": False,
    "strings_to_numbers": False,
    "remove_timezone": True,
    "default_date_format": "yyyy-mm-dd hh:mm",
}


def xlsx_bytes(table: Table, about: Mapping[str, str | int], created: datetime) -> bytes:
    """Return a workbook with sheets "Data" and "Manifest" (what `about` says).

    Raises InvalidInput if a spreadsheet cannot hold the table.
    """
    if len(table.rows) > MAX_ROWS:
        raise InvalidInput(
            f"{len(table.rows)} rows are more than the {MAX_ROWS} of a sheet",
            hint="Take CSV or Parquet",
            field="format",
        )
    out = io.BytesIO()
    book: Any = xlsxwriter.Workbook(out, _OPTIONS)
    book.set_properties({"created": created.astimezone(UTC).replace(tzinfo=None)})
    bold = book.add_format({"bold": True, "bottom": 1})
    sheet = book.add_worksheet("Data")
    for number, column in enumerate(table.columns):
        cells = [row[number] for row in table.rows]
        style = book.add_format({"num_format": _number_format(column)})
        sheet.set_column(number, number, _width(column, cells), style)
        sheet.write_string(0, number, column.name, bold)
        _write_cells(sheet, number, column, cells, style)
    sheet.freeze_panes(1, 0)
    sheet.autofilter(0, 0, max(len(table.rows), 1), len(table.columns) - 1)
    _write_manifest(book.add_worksheet("Manifest"), about, bold)
    book.close()
    return out.getvalue()


def _write_cells(sheet: Any, at: int, column: Column, cells: Sequence[Cell], style: Any) -> None:
    for number, cell in enumerate(cells, start=1):
        if cell is None:
            continue
        write, value = _written(sheet, column, cell)
        if write(number, at, value, style):  # 0: written whole
            raise InvalidInput(
                f"row {number} of {column.name} is over the {MAX_CHARACTERS} characters of a cell",
                hint="Take CSV or Parquet",
                field="format",
            )


def _written(sheet: Any, column: Column, cell: Cell) -> tuple[Callable[..., int], Any]:
    match cell:
        case datetime():
            return sheet.write_datetime, cell.astimezone(UTC).replace(tzinfo=None)
        case Decimal() | int():
            return sheet.write_number, float(rounded(column, cell)) if isinstance(cell, Decimal) else cell
        case _ if column.kind == "month":
            return sheet.write_datetime, datetime.strptime(f"{cell}-01", "%Y-%m-%d")  # noqa: DTZ007 # a day
        case _:
            return sheet.write_string, neutralised(str(cell))


def _number_format(column: Column) -> str:
    match column.kind:
        case "integer":
            return "#,##0"
        case "decimal":
            return "#,##0." + "0" * min(column.scale, 8)
        case "time":
            return "yyyy-mm-dd hh:mm"
        case "month":
            return "yyyy-mm"
        case "text":
            return "@"


def _width(column: Column, cells: Sequence[Cell]) -> int:
    longest = max((len(str(cell)) for cell in cells if isinstance(cell, str | int)), default=0)
    widest = {"time": 17, "decimal": 16}.get(column.kind, longest + 2)
    return min(max(len(column.name) + 3, widest), _WIDEST)


def _write_manifest(sheet: Any, about: Mapping[str, str | int], bold: Any) -> None:
    sheet.set_column(0, 0, 24)
    sheet.set_column(1, 1, 70)
    for number, (name, value) in enumerate(about.items()):
        sheet.write_string(number, 0, name, bold)
        if isinstance(value, int):
            sheet.write_number(number, 1, value)
        else:
            sheet.write_string(number, 1, neutralised(value))
