"""Days and invoices on the Spend page: they sum to the month, and an import is seen before it counts."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import func, select
from streamlit.testing.v1 import AppTest

from control.database import session_scope
from control.queries_spend import month_spend
from control.tables import InvoiceRow
from fleet.clock import SystemClock
from fleet.months import month_at
from tests.pages.conftest import Show, run_page, text
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

UTC_ZONE = ZoneInfo("UTC")


def a_file(month: str) -> bytes:
    """One hour more on the 1st than anybody can have observed yet, and support."""
    return (
        f"Day,Class,Hours,Rate,Cost,Currency\n{month}-01,on-demand,1000,28,28000.00,USD\n"
        f"{month}-01,=Support,,,12.50,USD\n"
    ).encode()


def upload(at: AppTest, body: bytes) -> AppTest:
    at.text_input(key="invoice_provider").set_value("aws")
    return at.file_uploader(key="invoice_file").set_value(("invoice.csv", body, "text/csv")).run()


def table(at: AppTest, name: str) -> dict[str, list[object]]:
    frame = next(d.value for d in at.dataframe if name in d.value.columns)
    return {key: frame[key].tolist() for key in frame.columns}


def count(database: FreshDatabase) -> int:
    with session_scope(database.engine) as session:
        return session.scalar(select(func.count()).select_from(InvoiceRow)) or 0


def test_days_sum_to_the_month_the_page_shows(full: Show, dashboard_on: FreshDatabase) -> None:
    at = full("spend")
    assert [e.message for e in at.exception] == []
    with session_scope(dashboard_on.engine) as session:
        now = SystemClock().now()
        name = month_at(now, UTC_ZONE).name
        total = month_spend(session, name, zone=UTC_ZONE, now=now).total_usd
    days = table(at, "nodes")
    assert days["day"][-1] == "total"
    assert days["usd"][-1] == f"{total:,.2f}"
    assert sum(Decimal(str(usd).replace(",", "")) for usd in days["usd"][:-1]) == total
    assert "Days of UTC" in text(at)


@pytest.mark.parametrize("state", ["empty", "stale", "failing"])
def test_the_page_shows_no_exception_in_other_states(state: str, request: pytest.FixtureRequest) -> None:
    at = request.getfixturevalue(state)("spend")
    assert [e.message for e in at.exception] == []


def test_an_import_is_seen_before_it_counts(full: Show, dashboard_on: FreshDatabase) -> None:
    at = full("spend")
    month = month_at(SystemClock().now(), UTC_ZONE).name
    assert f"No invoice of {month} was imported" in text(at)
    upload(at, a_file(month))
    assert table(at, "role")["column"][:2] == ["Day", "Class"]
    assert "2 lines, 28,012.50 USD" in text(at)
    assert count(dashboard_on) == 0
    at.button(key="invoice_import").click().run()
    assert [e.value for e in at.error if "unexplained" not in e.value] == []
    assert count(dashboard_on) == 1
    said = text(at)
    assert "$12.50 of the invoice are unexplained" in said
    classes = table(at, "class")
    assert "not assigned: =Support" in classes["class"]  # text, never a formula
    at.selectbox(key="assign_label").set_value(("aws", "=Support"))
    at.selectbox(key="assign_class").set_value("other")
    next(b for b in at.button if b.label == "Assign").click().run()
    assert "unexplained" not in text(at).split("Invoices", 1)[1].split("Hours and price")[0]
    assert "other" in table(at, "class")["class"]


def test_a_file_that_cannot_be_read_says_why_and_changes_nothing(
    full: Show, dashboard_on: FreshDatabase
) -> None:
    at = upload(full("spend"), b"Day,Cost\n03/04/2026,1\n")
    assert "may begin with the month or the day" in text(at)
    at.selectbox(key="invoice_dates").set_value("dmy").run()
    assert "1 line, 1.00 USD" in text(at)
    at.button(key="invoice_import").click().run()
    assert any("lines are of 2026-04" in e.value.replace("\\", "") for e in at.error)
    assert count(dashboard_on) == 0


def test_a_viewer_sees_and_cannot_import(as_role: Callable[[str], str]) -> None:
    as_role("viewer")
    at = run_page("spend", {})
    assert at.text_input(key="invoice_provider").disabled
    assert "may not close months" in text(at)
