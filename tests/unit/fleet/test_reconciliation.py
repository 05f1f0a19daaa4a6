"""Invoices beside our books: every row adds up, and what nobody can explain stays where it is."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.months import month_of
from fleet.reconciliation import InvoiceLine, OurTime, Reconciliation, Variance, reconcile

NOVEMBER = month_of("2026-11", ZoneInfo("UTC"))
FIRST = date(2026, 11, 1)
D = Decimal


def ours(
    hours: str, usd: str, price_class: str = "on_demand", pool: str = "a", day: date = FIRST
) -> OurTime:
    return OurTime(day, price_class, pool, D(hours), D(usd))


def line(
    usd: str,
    hours: str | None,
    price: str | None = None,
    node_class: str | None = "on_demand",
    day: date | None = FIRST,
) -> InvoiceLine:
    return InvoiceLine(
        day, "label", node_class, None if hours is None else D(hours), D(price) if price else None, D(usd)
    )


def only(found: Reconciliation) -> Variance:
    (row,) = found.rows
    return row


def test_other_hours_at_another_price_are_told_apart() -> None:
    # Ours: 24 h at 28 = 672. Invoice: 25 h at 30 = 750. One hour more at our 28, and 2 USD on all 25.
    row = only(reconcile(NOVEMBER, [ours("24", "672")], [line("750", "25", "30")]))
    assert (row.hours_usd, row.price_usd, row.unexplained_usd) == (D(28), D(50), D(0))
    assert (row.our_price, row.invoice_price, row.difference_usd) == (D(28), D(30), D(78))


def test_what_hours_and_price_do_not_explain_stays_on_its_row() -> None:
    # 24 h at 28 is 672; the invoice charges 700 for them. Another class agrees to the cent.
    found = reconcile(
        NOVEMBER,
        [ours("24", "672"), ours("10", "60", "spot")],
        [line("700", "24", "28"), line("60", "10", "6", "spot")],
    )
    odd, fine = found.rows
    assert (odd.hours_usd, odd.price_usd, odd.unexplained_usd) == (D(0), D(0), D(28))
    assert odd.why == "hours times price is not the amount"
    assert (fine.difference_usd, fine.unexplained_usd, fine.why) == (D(0), D(0), "")


def test_a_cent_of_rounding_is_no_mystery() -> None:
    # Our 24 h at 28.1234 are 674.9616, booked as 674.96; the invoice prints 674.97.
    row = only(reconcile(NOVEMBER, [ours("24", "674.96")], [line("674.97", "24", "28.1234")]))
    assert (row.price_usd, row.unexplained_usd) == (D("0.01"), D(0))


@pytest.mark.parametrize(
    ("our", "invoice", "hours", "unexplained", "why"),
    [
        ([ours("24", "672")], [], "-672", "0", "not on the invoice"),
        ([], [line("60", "10", "6", "spot")], "60", "0", "we observed no such hours"),
        ([], [line("65", "10", "6", "spot")], "60", "5", "we observed no such hours"),
        ([ours("24", "672")], [line("700", None)], "0", "28", "the invoice names no hours"),
    ],
)
def test_a_side_that_says_nothing_is_named(
    our: list[OurTime], invoice: list[InvoiceLine], hours: str, unexplained: str, why: str
) -> None:
    row = only(reconcile(NOVEMBER, our, invoice))
    assert (row.hours_usd, row.price_usd, row.unexplained_usd) == (D(hours), D(0), D(unexplained))
    assert row.why == why
    assert (row.our_usd is None) == (not our)
    assert (row.invoice_usd is None) == (not invoice)


def test_hours_of_ours_without_a_price_explain_nothing() -> None:
    unpriced = OurTime(FIRST, "on_demand", "a", D(24), D(0), unpriced_hours=D(24))
    row = only(reconcile(NOVEMBER, [unpriced], [line("672", "24", "28")]))
    assert (row.our_price, row.unexplained_usd) == (None, D(672))
    assert row.why == "24.00 of our node-hours have no price"


def test_labels_nobody_assigned_and_days_outside_the_month_are_unexplained_and_apart() -> None:
    late = FIRST - timedelta(days=1)
    found = reconcile(
        NOVEMBER,
        [ours("24", "672")],
        [
            line("672", "24", "28"),
            line("12", None, None, None),
            line("28", "1", "28", day=late),
            line("5", "5", "1", "other"),
        ],
    )
    by_class = found.by_class()
    assert {name: sums.unexplained_usd for name, sums in by_class.items()} == {
        "not assigned: label": D(12),
        "on_demand": D(0),
        "on_demand, outside the month": D(28),
        "other": D(5),
    }
    assert found.outside == (line("28", "1", "28", day=late),)
    assert found.total().unexplained_usd == D(45)


def test_a_price_class_of_a_pool_is_compared_with_that_pool_alone() -> None:
    found = reconcile(
        NOVEMBER,
        [ours("24", "672", pool="a"), ours("24", "720", pool="b")],
        [line("672", "24", "28"), line("720", "24", "30", "on_demand/b")],
    )
    assert {row.node_class: row.difference_usd for row in found.rows} == {
        "on_demand": D(0),
        "on_demand/b": D(0),
    }


def test_an_invoice_without_days_is_compared_by_the_month() -> None:
    days = [ours("24", "672", day=FIRST + timedelta(days=n)) for n in range(30)]
    row = only(reconcile(NOVEMBER, days, [line("20160", "720", "28", day=None)]))
    assert (row.day, row.our_hours, row.difference_usd) == (None, D(720), D(0))


amounts = st.decimals(min_value=-10_000, max_value=100_000, places=6, allow_nan=False)
hours = st.decimals(min_value=0, max_value=1_000, places=4, allow_nan=False)
days = st.integers(0, 32).map(lambda n: FIRST - timedelta(days=1) + timedelta(days=n))
classes = st.sampled_from(("on_demand", "spot", "spot/b", "reserved", "other", None))
invoice_lines = st.builds(
    InvoiceLine, st.none() | days, st.sampled_from(("x", "y")), classes, st.none() | hours,
    st.none() | hours, amounts,
)  # fmt: skip
our_time = st.builds(
    OurTime,
    st.integers(0, 29).map(lambda n: FIRST + timedelta(days=n)),
    st.sampled_from(("on_demand", "spot", "reserved")),
    st.sampled_from(("a", "b")),
    hours,
    st.decimals(min_value=0, max_value=50_000, places=2, allow_nan=False),
    st.sampled_from((D(0), D(0), D(1))),
)


@given(st.lists(our_time, max_size=12), st.lists(invoice_lines, max_size=12))
def test_every_row_and_every_sum_adds_up_to_the_cent(
    our: list[OurTime], invoice: list[InvoiceLine]
) -> None:
    found = reconcile(NOVEMBER, our, invoice)
    for sums in (*found.rows, *found.by_class().values(), found.total()):
        explained = sums.hours_usd + sums.price_usd + sums.unexplained_usd
        assert sums.difference_usd == explained
        assert explained == round(explained, 2)
    total = found.total()
    assert total.our_usd == sum((item.usd for item in our), D(0))
    exact = sum((item.usd for item in invoice), D(0))
    assert abs(total.invoice_usd - exact) <= D("0.005")
    parts = found.by_class().values()
    assert sum((part.unexplained_usd for part in parts), D(0)) == total.unexplained_usd
