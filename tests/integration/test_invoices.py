"""Providers' invoices: whole or refused, once by content, replaced on the record, never trusted."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import func, insert, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from control import invoices as book
from control.cli import main
from control.database import session_scope
from control.invoice_files import read_invoice
from control.prices import add_price
from control.queries_spend import month_spend
from control.reconciliations import as_json, reconciliation
from control.roles import Actor, Role
from control.tables import AuditRow, InvoiceLineRow, InvoiceRow, NodeQuarterRow, PoolRow
from fleet.errors import Conflict, Forbidden, InvalidInput, NotFound
from fleet.invoice_columns import FileMapping
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

UTC_ZONE = ZoneInfo("UTC")
FAY = Actor("fay", Role.FINANCE, "cli")
START = datetime(2026, 3, 1, tzinfo=UTC)
NOW = datetime(2026, 4, 3, tzinfo=UTC)
#: Three days of one node at 28 USD, as the provider bills them: one more hour on the 2nd, 28.50 on the 3rd,
#: and support nobody's node explains.
INVOICE = (
    b"Date,Instance type,Hours,Rate,Cost,Currency\r\n"
    b"2026-03-01,on-demand,24,28.00,672.00,USD\r\n"
    b"2026-03-02,on-demand,25,28.00,700.00,USD\r\n"
    b"2026-03-03,on-demand,24,28.50,684.00,USD\r\n"
    b"2026-03-03,Support,,,99.00,USD\r\n"
)


@pytest.fixture
def books(database: FreshDatabase) -> FreshDatabase:
    """One node up on 1 to 3 March 2026 UTC: 72 hours at 28 USD."""
    with session_scope(database.engine) as session:
        session.add(PoolRow(name="a", models=["m"], max_num_seqs=4, created_at=START))
        session.flush()
        add_price(
            session,
            price_class="on_demand",
            usd_per_node_hour="28",
            effective_from=START,
            source="contract",
            actor=FAY,
            now=START,
        )
        rows = [
            {
                "node": "n1",
                "quarter": START + timedelta(minutes=15 * n),
                "pool": "a",
                "price_class": "on_demand",
                "up_s": Decimal(900),
                "last_seen_at": START + timedelta(minutes=15 * n + 15),
            }
            for n in range(3 * 96)
        ]
        session.execute(insert(NodeQuarterRow), rows)
    return database


def take(
    session: Session, body: bytes = INVOICE, *, month: str | None = None, given: FileMapping | None = None
) -> book.Imported:
    mapping = given or book.saved_mapping(session, "aws")
    read = read_invoice(body, mapping)
    return book.import_invoice(
        session,
        body,
        read,
        provider="aws",
        month=month,
        rate=book.rate_of(read, None, None, ""),
        given=mapping,
        file_name="march.csv",
        actor=FAY,
        now=NOW,
    )


def test_hours_price_and_the_unexplained_are_told_apart_by_class_and_day(books: FreshDatabase) -> None:
    with session_scope(books.engine) as session:
        take(session)
        report = reconciliation(session, "2026-03", zone=UTC_ZONE, now=NOW)
    rows = {(row.node_class, row.day): row for row in report.found.rows}
    same, longer, dearer = (rows["on_demand", date(2026, 3, n)] for n in (1, 2, 3))
    assert same.difference_usd == 0
    assert (longer.hours_usd, longer.price_usd, longer.unexplained_usd) == (28, 0, 0)
    assert (dearer.hours_usd, dearer.price_usd, dearer.unexplained_usd) == (0, 12, 0)
    support = rows["not assigned: Support", date(2026, 3, 3)]
    assert (support.our_usd, support.unexplained_usd) == (None, 99)
    total = report.found.total()
    assert (total.our_usd, total.invoice_usd) == (72 * 28, 672 + 700 + 684 + 99)
    assert report.month_usd == total.our_usd + report.not_compared_usd - report.edges_usd


def test_the_same_content_again_changes_nothing_and_other_content_replaces_it(
    books: FreshDatabase,
) -> None:
    with session_scope(books.engine) as session:
        first = take(session)
    with session_scope(books.engine) as session:
        again = take(session)
    assert (first.is_new, again.is_new, again.invoice.id) == (True, False, first.invoice.id)
    corrected = INVOICE.replace(b"25,28.00,700.00", b"24,28.00,672.00")
    with session_scope(books.engine) as session:
        second = take(session, corrected)
        assert second.replaced is not None
        assert second.replaced.id == first.invoice.id
        (kept,) = book.invoices(session)
        assert (kept.id, kept.replaces, kept.amount) == (second.invoice.id, first.invoice.id, 2_127)
        total = reconciliation(session, "2026-03", zone=UTC_ZONE, now=NOW).found.total()
        assert total.invoice_usd == 2_127
        # the one it replaced is still in the books, and both imports are on the record
        assert session.scalar(select(func.count()).select_from(InvoiceRow)) == 2
        assert session.scalar(select(func.count()).select_from(InvoiceLineRow)) == 8
        details = session.scalars(
            select(AuditRow.detail).where(AuditRow.action == "invoice.import").order_by(AuditRow.id)
        ).all()
    assert [d["replaces"] and d["replaces"]["invoice"] for d in details] == [None, first.invoice.id]


def test_a_label_assigned_later_moves_its_lines(books: FreshDatabase) -> None:
    with session_scope(books.engine) as session:
        take(session)
        book.assign_labels(session, "aws", {"Support": "other"}, actor=FAY, now=NOW)
        found = reconciliation(session, "2026-03", zone=UTC_ZONE, now=NOW).found
        assert set(found.by_class()) == {"on_demand", "other"}
        with pytest.raises(InvalidInput, match="no node class"):
            book.assign_labels(session, "aws", {"Support": "gold"}, actor=FAY, now=NOW)


def test_an_invoice_of_another_zone_and_currency(books: FreshDatabase) -> None:
    # Days of Kolkata: 1 March there has 18.5 of our hours, and 4 March the last 5.5.
    body = (
        "Tag;Typ;Stunden;Betrag\r\n01.03.2026;on demand;18,5;466,20\r\n02.03.2026;on demand;24;604,80\r\n"
        "03.03.2026;on demand;24;604,80\r\n04.03.2026;on demand;5,5;138,60\r\n"
    ).encode("utf-16")
    given = FileMapping(day="Tag", label="Typ", hours="Stunden", amount="Betrag", zone="Asia/Kolkata")
    with session_scope(books.engine) as session:
        read = read_invoice(body, given)
        with pytest.raises(InvalidInput, match="USD per EUR"):
            book.rate_of(read, "EUR", None, "")
        rate = book.rate_of(read, "EUR", "1.111111", "central bank, 31 March 2026")
        book.import_invoice(
            session,
            body,
            read,
            provider="eu-cloud",
            month=None,
            rate=rate,
            given=given,
            file_name="a.csv",
            actor=FAY,
            now=NOW,
        )
        report = reconciliation(session, "2026-03", zone=UTC_ZONE, now=NOW)
    total = report.found.total()
    assert total.hours_usd == 0
    assert total.invoice_hours == total.our_hours == 72
    # 1,814.40 EUR at 1.111111 are 2,015.9998 USD: our 72 h x 28 USD but for a rounding
    assert total.invoice_usd == Decimal("2016.00")
    assert (report.edges_usd, total.unexplained_usd) == (0, 0)


def test_hours_between_two_ends_of_a_month_are_shown_as_such(books: FreshDatabase) -> None:
    # In Auckland (UTC+13) 28 February has 13 hours more of our 1 March.
    body = b"day,class,hours,cost\n2026-03-02,on-demand,24,672\n2026-03-03,on-demand,24,672\n"
    with session_scope(books.engine) as session:
        take(session, body, given=FileMapping(zone="Pacific/Auckland"))
        report = reconciliation(session, "2026-03", zone=ZoneInfo("America/New_York"), now=NOW)
        # New York's March begins at 05:00 UTC: five of our hours are of February there.
        assert report.month_usd == 67 * 28
        assert report.edges_usd == 5 * 28
        assert report.found.total().our_usd == 72 * 28
        assert month_spend(session, "2026-03", zone=UTC_ZONE, now=NOW).total_usd == 72 * 28


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "empty"),
        (b"\x00\x01\x02", "not text"),
        (b"PK\x03\x04" + b"\x00" * 50, "not text"),
        (b"\xff\xfe\x41", "not text"),
        (b"Date,Cost\n", "no lines"),
        (b"Date,Cost\n2026-03-01,=1+1\n", "row 2, 'Cost': '=1\\+1' is not an amount"),
        (b"Date,Cost\n2026-03-01,1\n2026-03-02,\n", "row 3 has no amount"),
        (b"Date,Cost\n2026-03-01,1,234.00\n", "row 2 has 3 cells under 2 columns"),
        (b'Date,Cost\n"2026-03-01,1\n', "is not CSV"),
        (b"Cost,Cost\n1,2\n", "names 'Cost' twice"),
        (b"Date,Cost,Currency\n2026-03-01,1,USD\n2026-03-01,1,EUR\n", "EUR and USD"),
        (b"Date,Cost\nyesterday,1\n", "is not a day"),
        (b"Date,Cost\n2026-03-01," + b"9" * 5_000 + b"\n", "4000 characters"),
        (b"a" + b"," * 500 + b"\n", "over 400 cells"),
        (b"," * 50 + b"\n", "empty"),
        (b"Cost\n1\n", "fewer than two columns"),
        (b"Date,Cost\n03/04/2026,1\n", "may begin with the month or the day"),
        (b"Date,Cost\n2026-03-01,1.234\n", "may be thousands or decimals"),
        (b"Date,Cost\n" + b"2026-02-01,1\n" * 3 + b"2026-03-01,1\n", "3 of 4 lines are of 2026-02"),
    ],
)  # fmt: skip
def test_a_hostile_or_broken_file_changes_nothing(books: FreshDatabase, body: bytes, why: str) -> None:
    with session_scope(books.engine) as session:
        with pytest.raises(InvalidInput, match=why):
            take(session, body, month="2026-03")
        assert session.scalar(select(func.count()).select_from(InvoiceRow)) == 0


def test_a_file_over_the_limits_is_refused_before_it_is_read(
    books: FreshDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("control.invoice_files.MAX_ROWS", 3)
    with pytest.raises(InvalidInput, match="over 3 rows"):
        read_invoice(INVOICE, FileMapping())
    monkeypatch.setattr("control.invoice_files.MAX_BYTES", 20)
    with pytest.raises(InvalidInput, match="over 0 MB"):
        read_invoice(INVOICE, FileMapping())


def test_text_of_a_file_loses_what_a_terminal_would_act_on() -> None:
    body = "Date,Class,Cost\n2026-03-01,\x1b[2J=cmd\u202e,1\n".encode()
    (line,) = read_invoice(body, FileMapping()).lines
    assert line.label == "[2J=cmd"


def test_only_finance_imports_and_one_file_is_one_month(books: FreshDatabase) -> None:
    undated = b"class,hours,cost\non-demand,72,2016\n"
    with session_scope(books.engine) as session:
        take(session, undated, month="2026-03")
        with pytest.raises(Conflict, match="invoice of 2026-03"):
            take(session, undated, month="2026-02")
        with pytest.raises(InvalidInput, match="no column of days"):
            take(session, b"class,cost\non-demand,1\n", given=FileMapping())
        viewer = Actor("vic", Role.VIEWER, "page")
        with pytest.raises(Forbidden):
            book.assign_labels(session, "aws", {"a": "spot"}, actor=viewer, now=NOW)
        with pytest.raises(NotFound):
            reconciliation(session, "2026-02", zone=UTC_ZONE, now=NOW)
        with pytest.raises(InvalidInput, match="provider's name"):
            book.saved_mapping(session, "../aws")


def run(arguments: list[str], code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == code


def test_the_command_line_imports_shows_and_tells_how_it_read(
    books: FreshDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DATABASE_URL", books.dsn)
    file = tmp_path / "march.csv"
    file.write_bytes(INVOICE)
    importing = ["invoices", "import", str(file), "--provider", "aws"]
    run([*importing, "--dry-run"])
    said = capsys.readouterr().out
    assert "amount       Cost" in said
    assert "nothing was imported" in said
    run(["invoices", "show", "2026-03"], code=1)
    assert "no invoice of 2026-03" in capsys.readouterr().err
    run([*importing, "--assign", "Support=other"])
    assert "4 lines" in capsys.readouterr().out
    run(importing)
    assert "nothing was changed" in capsys.readouterr().out
    run(["invoices", "show", "2026-03", "--days"])
    shown = capsys.readouterr().out
    assert shown.count("2026-03-0") == 4
    assert "declared as not node time" in shown
    run(["invoices", "show", "2026-03", "--json"])
    answer = json.loads(capsys.readouterr().out)
    with session_scope(books.engine) as session:
        same = as_json(reconciliation(session, "2026-03", zone=UTC_ZONE, now=NOW))
    assert answer["total"] == same["total"]
    assert answer["total"]["difference_usd"] == "139.00"
    run(["invoices", "import", "/dev/zero", "--provider", "aws"], code=1)
    assert "is not a file" in capsys.readouterr().err
    run([*importing, "--map", "amount=Preis"], code=1)
    assert "no column 'Preis'" in capsys.readouterr().err


def test_first_invoices_of_two_months_at_once_are_both_imported(books: FreshDatabase) -> None:
    """A provider's mapping is one row, which both would make."""
    both, never = threading.Barrier(2), threading.Event()

    def run(month: str) -> bool:
        body = INVOICE.replace(b"2026-03-", month.encode() + b"-")
        with session_scope(books.engine) as session:
            session.execute(select(1))
            both.wait(60)
            made = take(session, body)
            never.wait(0.2)  # the first holds its transaction open, so that the other meets it
            return made.is_new

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, ("2026-02", "2026-03"))) == [True, True]
    with session_scope(books.engine) as session:
        assert {each.month for each in book.invoices(session)} == {"2026-02", "2026-03"}


def test_an_import_that_waits_too_long_for_another_says_so(books: FreshDatabase) -> None:
    def impatient() -> None:
        with session_scope(books.engine) as waiting:
            waiting.execute(text("SET LOCAL lock_timeout = '50ms'"))
            take(waiting)

    with session_scope(books.engine) as holder:
        take(holder)
        with pytest.raises(Conflict, match="another invoice of aws is being imported"):
            impatient()


def test_a_label_assigned_while_a_file_is_looked_at_stays_assigned(books: FreshDatabase) -> None:
    with session_scope(books.engine) as session:
        take(session)
    with session_scope(books.engine) as session:
        before = book.saved_mapping(session, "aws")  # what a page shows beside the file
        with session_scope(books.engine) as other:
            book.assign_labels(other, "aws", {"Support": "other"}, actor=FAY, now=NOW)
        take(session, INVOICE.replace(b"99.00", b"98.00"), given=before)
    with session_scope(books.engine) as session:
        assert book.saved_mapping(session, "aws").classes == {"Support": "other"}


def test_a_total_in_the_last_row_is_not_one_more_charge() -> None:
    total = b",Total,,,2155.00,USD\r\n"  # 672 + 700 + 684 + 99
    with pytest.raises(InvalidInput, match="row 6 is the total of the rows before it"):
        read_invoice(INVOICE + total, FileMapping())
    tax = total.replace(b"2155.00", b"409.45")
    assert len(read_invoice(INVOICE + tax, FileMapping()).lines) == 5


def test_a_line_without_end_and_blank_rows_fill_no_memory() -> None:
    with pytest.raises(InvalidInput, match="over 200,000 characters"):
        read_invoice(INVOICE + b"," * 200_001, FileMapping())
    blank = b",,,,,\r\n" * 300_000  # more than the rows a file may have, had they anything in them
    found = read_invoice(INVOICE + blank + b"2026-03-04,on-demand,1,28,28,USD\r\n", FileMapping())
    assert [line.number for line in found.lines] == [2, 3, 4, 5, 300_006]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_end_as_they_like_and_may_end_within_quotes(end: bytes) -> None:
    body = INVOICE.replace(b"Support", b'"Support\r\n(Business)"').replace(b"\r\n", end)
    assert [line.number for line in read_invoice(body, FileMapping()).lines] == [2, 3, 4, 5]


def test_an_imported_invoice_takes_no_more_lines(books: FreshDatabase) -> None:
    with session_scope(books.engine) as session:
        made = take(session)
    added = (
        "INSERT INTO invoice_line SELECT invoice, 9999, day, label, description, hours, price, amount "
        "FROM invoice_line WHERE invoice = :id LIMIT 1"
    )
    with pytest.raises(DBAPIError, match="has all the lines"), session_scope(books.engine) as session:
        session.execute(text(added), {"id": made.invoice.id})
    with session_scope(books.engine) as session:
        assert session.scalar(select(func.count()).select_from(InvoiceLineRow)) == made.invoice.rows == 4
