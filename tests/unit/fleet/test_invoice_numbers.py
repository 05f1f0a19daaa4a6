"""Amounts and days of invoices, read one way for a whole file or not at all."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import InvalidInput
from fleet.invoice_columns import FileMapping, class_of, guessed
from fleet.invoice_numbers import amount_of, date_order, day_of, decimal_mark

UTC_ZONE = ZoneInfo("UTC")
KOLKATA = ZoneInfo("Asia/Kolkata")


@pytest.mark.parametrize(
    ("text", "mark", "amount"),
    [
        ("1,234.56", ".", "1234.56"),
        ("1.234,56", ",", "1234.56"),
        ("1\u202f234,56 \u20ac", ",", "1234.56"),
        ("1'234.50", ".", "1234.50"),
        ("12,34,567.8", ".", "1234567.8"),
        ("(12.00)", ".", "-12"),
        ("12.00-", ".", "-12"),
        ("\u22125", ".", "-5"),
        ("-$5.25", ".", "-5.25"),
        ("USD 7", ".", "7"),
        ("US$ 7", ".", "7"),
        ("$-5.25", ".", "-5.25"),
        ("- 5.25 EUR", ".", "-5.25"),
        ("1 234 567,5 EUR", ",", "1234567.5"),
        ("24 hrs", ".", "24"),
        ("1.0E-7", ".", "0.0000001"),
        (".5", ".", "0.5"),
        ("0", ",", "0"),
    ],
)
def test_amounts_as_invoices_write_them(text: str, mark: str, amount: str) -> None:
    assert amount_of(text, mark) == Decimal(amount)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "text",
    [
        "", "-", "=1+1", "=cmd|' /C calc'!A0", "+-5", "1.2.3", "1,23.4", "12,3456", "NaN", "Infinity",
        "1e99", "0x10", "\u0661\u0662", "1" * 400, "12 USD 5", "9999999999999999",
        # a sign twice, two numbers in a cell, and units that would be a thousand times as much
        "(-12.00)", "(12.00-)", "10 20", "1 2", "5'6", "1  234",
        "1.5k", "2M", "1.5 Mio", "3 MIO", "5e", "4 d",
    ],
)  # fmt: skip
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not an amount"):
        amount_of(text, ".")


@pytest.mark.parametrize(
    ("texts", "mark"),
    [
        (["1,234.56", "7"], "."),
        (["1.234,56", "7"], ","),
        (["1,234", "0.5"], "."),
        (["1.234", "0,5"], ","),
        (["1.234.567"], ","),
        (["1,5"], ","),
        (["7", ""], "."),
        (["1234,567"], ","),
    ],
)
def test_the_decimal_mark_is_told_from_all_values(texts: list[str], mark: str) -> None:
    assert decimal_mark(texts) == mark


@pytest.mark.parametrize("texts", [["1,234"], ["1.234", "2.500"], ["1,5", "1.5"]])
def test_a_mark_that_cannot_be_told_is_asked_for(texts: list[str]) -> None:
    with pytest.raises(InvalidInput) as refused:
        decimal_mark(texts)
    assert refused.value.field == "decimal"


@given(
    st.decimals(min_value=-(10**9), max_value=10**9, places=4, allow_nan=False),
    st.sampled_from((".", ",")),
    st.booleans(),
)
def test_a_written_amount_reads_as_itself(value: Decimal, mark: str, has_groups: bool) -> None:
    text = f"{value:,.4f}" if has_groups else f"{value:.4f}"
    if mark == ",":
        text = text.translate(str.maketrans(".,", ",."))
    assert decimal_mark([text]) == mark
    assert amount_of(text, mark) == value  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("texts", "order"),
    [
        (["2026-11-03"], "ymd"),
        (["11/03/2026", "11/13/2026"], "mdy"),
        (["03/11/2026", "13/11/2026"], "dmy"),
        (["03.11.2026"], "dmy"),
        (["2026-11-03T00:00:00Z"], "ymd"),
    ],
)
def test_the_order_of_days_is_told_from_all_values(texts: list[str], order: str) -> None:
    assert date_order(texts) == order


@pytest.mark.parametrize("texts", [["11/03/2026"], ["13/11/2026", "11/13/2026"]])
def test_an_order_that_cannot_be_told_is_asked_for(texts: list[str]) -> None:
    with pytest.raises(InvalidInput) as refused:
        date_order(texts)
    assert refused.value.field == "dates"


def test_an_instant_falls_on_the_day_of_the_invoices_zone() -> None:
    # 20:00 UTC is 01:30 of the next day in Kolkata; without an offset it is local time already.
    assert day_of("2026-11-03T20:00:00Z", "ymd", KOLKATA) == date(2026, 11, 4)
    assert day_of("2026-11-03 20:00:00", "ymd", KOLKATA) == date(2026, 11, 3)
    assert day_of("11/03/2026 11:30:00 PM +05:30", "mdy", UTC_ZONE) == date(2026, 11, 3)
    assert day_of("2026-11-03T01:00+05:30", "ymd", UTC_ZONE) == date(2026, 11, 2)


@pytest.mark.parametrize("text", ["soon", "2026-13-01", "2026-02-30", "0001-01-01", "2026-11-03T99:00Z"])
def test_what_is_no_day_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a day"):
        day_of(text, "ymd", UTC_ZONE)


def test_the_columns_of_known_exports_are_found() -> None:
    cur = ["identity/LineItemId", "lineItem/UsageStartDate", "lineItem/UsageType", "lineItem/UsageAmount",
           "lineItem/CurrencyCode", "lineItem/UnblendedRate", "lineItem/UnblendedCost",
           "lineItem/BlendedCost"]  # fmt: skip
    assert guessed(cur, FileMapping()).columns == {
        "day": cur[1], "label": cur[2], "hours": cur[3], "price": cur[5], "amount": cur[6],
        "currency": cur[4],
    }  # fmt: skip
    focus = ["BilledCost", "BillingCurrency", "ChargePeriodStart", "ConsumedQuantity", "SkuId", "ListCost"]
    found = guessed(focus, FileMapping())
    assert (found.amount, found.day, found.hours) == ("BilledCost", "ChargePeriodStart", "ConsumedQuantity")
    said = guessed(focus, FileMapping(amount="ListCost", hours="-"))
    assert (said.amount, said.columns.get("hours")) == ("ListCost", None)


def test_a_column_that_is_not_there_and_a_file_without_amounts_are_refused() -> None:
    with pytest.raises(InvalidInput, match="no column 'Kosten'"):
        guessed(["Cost", "Day"], FileMapping(amount="Kosten"))
    with pytest.raises(InvalidInput, match="no column of amounts"):
        guessed(["Day", "Node"], FileMapping())


@pytest.mark.parametrize(
    ("label", "node_class"),
    [
        ("USE1-SpotUsage:p5.48xlarge", "spot"),
        ("USE1-BoxUsage:p5.48xlarge", "on_demand"),
        ("HeavyUsage:p5.48xlarge", "reserved"),
        ("Preemptible A3 High", "spot"),
        ("Commitment v1: a3", "reserved"),
        ("on-demand", "on_demand"),
        ("Support (Business)", None),
    ],
)
def test_labels_tell_their_class_or_nothing(label: str, node_class: str | None) -> None:
    assert class_of(label, {}) == node_class
    assert class_of(label, {label: "other"}) == "other"
