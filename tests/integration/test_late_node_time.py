"""Node time that comes after its month was closed: carried by the next one, to the cent, once, and seen."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import delete, select, text
from sqlalchemy.orm import Session

from control import adjustments, allocation_rules, ledger, month_close, month_inputs
from control import invoices as book
from control.cli import main
from control.closed_months import closed_month, stored_body, stored_lines
from control.database import session_scope
from control.day_spend import month_days
from control.export_month import month_in
from control.invoice_files import read_invoice
from control.late_node_time import late_node_time
from control.month_seal import Sealed, read_key
from control.node_life import correct_node_life
from control.prices import add_price
from control.queries_spend import month_spend
from control.reconciliations import reconciliation
from control.roles import Actor, Role
from control.tables import AuditRow, MonthCloseRow, NodeQuarterRow, NodeRow, RoundRow, SampleRow
from fleet.errors import Conflict, Forbidden, InvalidInput, NotFound
from fleet.months import month_of
from fleet.spend import SpendLine, subtotals
from tests.month_books import (
    APRIL,
    CLOSING_TIME,
    FAY,
    FEBRUARY,
    MARCH,
    ZONE,
    a_record,
    deliver,
    node_hours,
    write_books,
)
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

MAY = datetime(2026, 5, 1, tzinfo=UTC)
JUNE = datetime(2026, 6, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
Close = Callable[..., None]


@pytest.fixture
def books(database: FreshDatabase) -> FreshDatabase:
    """February as always: 280 USD, of which acme 70; its one node, and one that was never seen."""
    with session_scope(database.engine) as session:
        write_books(session)
        for name in ("n-on_demand", "n2"):
            session.add(
                NodeRow(
                    name=name,
                    pool="a",
                    base_url="http://127.0.0.1:1",
                    price_class="on_demand",
                    state="active",
                    created_at=FEBRUARY,
                )
            )
    return database


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return tmp_path / "finance.key"


@pytest.fixture
def close(books: FreshDatabase, key_file: Path) -> Close:
    def run(name: str = "2026-02", now: datetime = CLOSING_TIME) -> None:
        with session_scope(books.engine) as session:
            month_close.start_closing(session, name, zone=ZONE, actor=FAY, now=now)
        with session_scope(books.engine) as session:
            month_close.close_month(
                session, name, zone=ZONE, actor=FAY, now=now, key_file=key_file, accept=True
            )

    return run


def correct(
    session: Session, start: datetime, hours: float, *, node: str = "n2", was_up: bool = True
) -> Decimal:
    return correct_node_life(
        session,
        node=node,
        start=start,
        end=start + hours * HOUR,
        was_up=was_up,
        reason="registered later than it started",
        actor=FAY,
        now=CLOSING_TIME,
    )


def adjusted(lines: list[SpendLine] | tuple[SpendLine, ...]) -> dict[tuple[str, str], Decimal]:
    return {
        (line.tenant, line.note): line.amount_usd
        for line in lines
        if line.kind == "adjustment" and line.adjusts == "2026-02"
    }


def test_scrapes_that_reach_the_database_after_the_close_are_carried_by_the_next_month(
    books: FreshDatabase, close: Close, key_file: Path
) -> None:
    with session_scope(books.engine) as session:  # the database was away: nothing of March is there yet
        session.execute(delete(NodeQuarterRow).where(NodeQuarterRow.quarter >= MARCH))
    close()
    with session_scope(books.engine) as session:
        file, days = stored_body(session, "2026-02"), month_days(session, "2026-02", zone=ZONE, now=MARCH)
    with session_scope(books.engine) as session:  # an hour of February, and two minutes of March
        start, end = MARCH - HOUR, MARCH + timedelta(minutes=2)
        at = start
        while at <= end:
            session.add(RoundRow(at=at, period_s=10, duration_s=1, lag_s=0, nodes_total=1, nodes_sampled=1))
            session.add(SampleRow(at=at, node="n-on_demand", engine="0", flags=[]))
            at += timedelta(seconds=10)
    for _ in range(2):  # a repeated count adds nothing
        with session_scope(books.engine) as session:
            ledger.count_node_time(session, CLOSING_TIME + HOUR)
    now = CLOSING_TIME + 2 * HOUR
    with session_scope(books.engine) as session:
        # 11 node-hours are 308 USD and 44 places-hours: acme's 10 are 70 as before, idle is 28 more.
        march = month_spend(session, "2026-03", zone=ZONE, now=now)
        assert adjusted(march.lines) == {("", "late node time: idle"): Decimal("28.00")}
        (line,) = [line for line in march.lines if line.kind == "adjustment"]
        assert (line.node_hours, line.pool) == (1, "a")
        own = round(Decimal(120) / 3600 * 28, 2)  # two minutes of March
        assert march.total_usd == own + 28 == sum(line.amount_usd for line in march.lines)
        (late,) = late_node_time(session, "2026-02")
        assert (late.node, late.change_s, late.first) == ("n-on_demand", 3600, MARCH - HOUR)
        # The closed month is what it was: its file, its lines, its days.
        assert stored_body(session, "2026-02") == file
        assert month_close.verify(session, "2026-02", key_file=key_file).holds
        assert month_days(session, "2026-02", zone=ZONE, now=MARCH) == days
    close("2026-03", APRIL + 2 * HOUR)
    with session_scope(books.engine) as session:
        assert adjustments.pending(session) == []
        assert month_close.verify(session, "2026-03", key_file=key_file).holds


def test_a_corrected_life_is_carried_once_and_only_what_is_new(books: FreshDatabase, close: Close) -> None:
    close()
    with session_scope(books.engine) as session:
        assert correct(session, FEBRUARY + 2 * HOUR, 2.5) == 9_000
        assert correct(session, FEBRUARY + 2 * HOUR, 2.5) == 0
        assert adjusted(adjustments.pending(session)) == {("", "late node time: idle"): Decimal("70.00")}
        # One and a half hours of it were not: 28 USD are left.
        assert correct(session, FEBRUARY + 3 * HOUR, 1.5, was_up=False) == -5_400
        assert adjusted(adjustments.pending(session)) == {("", "late node time: idle"): Decimal("28.00")}
    close("2026-03", APRIL + 2 * HOUR)
    with session_scope(books.engine) as session:
        assert adjustments.pending(session) == []
        # Now the whole of it was not: what March charged comes back, and no more.
        correct(session, FEBRUARY, 24, was_up=False)
        (line,) = adjustments.pending(session)
        assert (line.amount_usd, line.node_hours, line.adjusts) == (Decimal("-28.00"), -1, "2026-02")
        what = session.scalars(select(AuditRow.subject).where(AuditRow.action == "node.life")).all()
        assert what == ["node n2"] * 4


def test_use_and_node_time_that_come_late_together_are_told_apart_and_add_up(
    books: FreshDatabase, close: Close
) -> None:
    with session_scope(books.engine) as session:
        allocation_rules.set_rule(
            session,
            from_month="2026-02",
            basis="engine_seconds",
            share="proportional",
            output_weight="12",
            reason="board of the tests",
            zone=ZONE,
            actor=FAY,
            now=FEBRUARY,
        )
    close()
    steps = [(2, 1.25, "beta", 7), (30, 3.75, "gamma", 11), (70, 0.25, "acme", 3)]
    seq = 20
    for number, (at_hour, hours, tenant, records) in enumerate(steps):
        with session_scope(books.engine) as session:
            correct(session, FEBRUARY + at_hour * HOUR, hours)
            late = [
                a_record(seq + n, FEBRUARY + HOUR, tenant=tenant, engine_s=777.7) for n in range(records)
            ]
            deliver(session, *late, at=MARCH + 3 * HOUR)
            seq += records
            lines = adjustments.pending(session)
            causes = {line.note.split(":")[0] for line in lines}
            assert causes == {"late use", "late node time"}
            moved = sum(line.amount_usd for line in lines if line.note.startswith("late use"))
            assert moved == 0  # who used it changes who pays, not what there is to pay
        if number < 2:
            name, end = [("2026-03", APRIL), ("2026-04", MAY)][number]
            close(name, end + 2 * HOUR)
    with session_scope(books.engine) as session:
        closed = closed_month(session, "2026-02")
        assert closed is not None
        lines = [line for line in stored_lines(session, "2026-02") if line.kind != "adjustment"]
        for name in ("2026-03", "2026-04"):
            lines += [line for line in stored_lines(session, name) if line.adjusts == "2026-02"]
        lines += adjustments.pending(session)
        month = month_of("2026-02", ZONE)
        base = month_inputs.basics(session, month, MAY)
        whole = base.spend(month, month_inputs.use(session, month, base.rule), is_estimated=False)
        # Closed lines and all adjustments: February as if everything had been there from the start.
        assert sum(line.amount_usd for line in lines) == whole.total_usd == Decimal("427.00")  # 15.25 x 28
        by_tenant = {tenant: usd for (tenant,), usd in subtotals(lines, "tenant").items() if usd}
        assert by_tenant == {
            tenant: usd for (tenant,), usd in subtotals(whole.lines, "tenant").items() if usd
        }
        assert sum(line.requests for line in lines) == 10 + 7 + 11 + 3


def test_late_node_time_without_a_price_stops_the_next_close_until_it_has_one(
    books: FreshDatabase, close: Close
) -> None:
    close()
    with session_scope(books.engine) as session:
        session.get_one(NodeRow, "n2").price_class = "spot"
        correct(session, FEBRUARY + 5 * HOUR, 2)
        assert adjusted(adjustments.pending(session)) == {}
        assert month_spend(session, "2026-03", zone=ZONE, now=APRIL).unpriced_node_hours == 2
    with pytest.raises(Conflict, match=r"2\.00 node-hours without a price"):
        close("2026-03", APRIL + 2 * HOUR)
    with session_scope(books.engine) as session:
        add_price(
            session,
            price_class="spot",
            usd_per_node_hour="16",
            effective_from=FEBRUARY,
            source="contract of the tests",
            actor=FAY,
            now=APRIL,
        )
    close("2026-03", APRIL + 3 * HOUR)
    with session_scope(books.engine) as session:
        # Spot beside nodes of another class is burst; places count, so acme's part of the others is less.
        changes = adjusted(stored_lines(session, "2026-03"))
        assert changes["", "late node time: burst"] == Decimal("32.00")
        assert sum(changes.values()) == Decimal("32.00")
        assert adjustments.pending(session) == []


def test_late_node_time_is_seen_in_every_file_and_on_the_command_line(
    books: FreshDatabase, close: Close, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    close()
    with session_scope(books.engine) as session:
        correct(session, FEBRUARY + 2 * HOUR, 2)
    close("2026-03", APRIL + 2 * HOUR)
    with session_scope(books.engine) as session:
        plain = month_in(session, "2026-03", "csv", "plain", zone=ZONE, now=APRIL)
        rows = list(csv.DictReader(io.StringIO(plain.body.decode(), newline="")))
        (row,) = [row for row in rows if row["adjusts"]]
        assert (row["amount_usd"], row["note"]) == ("56.00", "late node time: idle")
        for kind in ("xlsx", "parquet"):
            assert month_in(session, "2026-03", kind, "plain", zone=ZONE, now=APRIL).rows == len(rows)
        focus = month_in(session, "2026-03", "csv", "focus", zone=ZONE, now=APRIL)
        (row,) = [
            row
            for row in csv.DictReader(io.StringIO(focus.body.decode(), newline=""))
            if row["ChargeClass"] == "Correction"
        ]
        assert (row["ChargeCategory"], Decimal(row["BilledCost"])) == ("Usage", 56)
        assert row["ChargePeriodStart"].startswith("2026-02-01")
    monkeypatch.setenv("DATABASE_URL", books.dsn)

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(("months", *arguments))
        said = capsys.readouterr()
        assert ended.value.code == 0, said.err
        return said.out

    assert "late: +2.0000 node-hours of n2 in a (on_demand), 2026-02-01 02:00 UTC" in run("show", "2026-02")
    assert "of 2026-02, nobody: 56.00 USD, late node time: idle" in run("show", "2026-03")
    life = ("--from", "2026-02-01T02:00Z", "--to", "2026-02-01T03:00Z", "--reason", "was off")
    assert "-1.0000 node-hours" in run("node-time", "n2", "--down", *life)


def test_an_invoice_meets_late_node_time_where_it_ran(books: FreshDatabase, close: Close) -> None:
    invoice = (
        b"Date,Instance type,Hours,Rate,Cost,Currency\r\n"
        b"2026-02-01,on-demand,10,28.00,280.00,USD\r\n"
        b"2026-02-03,on-demand,3,28.00,84.00,USD\r\n"
    )
    close()
    with session_scope(books.engine) as session:
        mapping = book.saved_mapping(session, "aws")
        read = read_invoice(invoice, mapping)
        book.import_invoice(
            session,
            invoice,
            read,
            provider="aws",
            month=None,
            rate=book.rate_of(read, None, None, ""),
            given=mapping,
            file_name="february.csv",
            actor=FAY,
            now=APRIL,
        )
        before = reconciliation(session, "2026-02", zone=ZONE, now=APRIL)
        assert (before.found.total().difference_usd, before.late_usd) == (84, 0)
        correct(session, FEBRUARY + timedelta(days=2), 3)
    for now in (MARCH + timedelta(days=2), APRIL + timedelta(days=2)):  # pending, then carried by March
        with session_scope(books.engine) as session:
            report = reconciliation(session, "2026-02", zone=ZONE, now=now)
            assert report.found.total().difference_usd == 0
            assert [row.difference_usd for row in report.found.rows if row.difference_usd] == []
            assert (report.month_usd, report.late_usd, report.edges_usd) == (280, 84, 0)
        if now < APRIL:
            close("2026-03", APRIL + 2 * HOUR)


def test_what_cannot_be_corrected_is_refused(books: FreshDatabase, close: Close) -> None:
    close()
    with session_scope(books.engine) as session:
        with pytest.raises(NotFound):
            correct(session, FEBRUARY, 1, node="nobody")
        with pytest.raises(InvalidInput, match="no quarter-hour"):
            correct(session, FEBRUARY + timedelta(minutes=1), 1)
        with pytest.raises(InvalidInput, match="no span"):
            correct(session, FEBRUARY, -1)
        with pytest.raises(Conflict, match="has not counted"):
            correct(session, MARCH + 1 * HOUR, 1)  # the ledger stands at 01:00
        with pytest.raises(Conflict, match="first month that was closed"):
            correct(session, FEBRUARY - HOUR, 1)
        with pytest.raises(Forbidden):
            correct_node_life(
                session,
                node="n2",
                start=FEBRUARY,
                end=FEBRUARY + HOUR,
                was_up=True,
                reason="for fun",
                actor=Actor("vic", Role.VIEWER, "page"),
                now=MARCH,
            )
    with psycopg.connect(books.dsn, autocommit=True) as connection:
        assert connection.execute("SELECT count(*) FROM late_node_time").fetchone() == (0,)


def test_books_of_an_open_month_are_corrected_in_place(books: FreshDatabase, close: Close) -> None:
    close()
    with session_scope(books.engine) as session:
        assert correct(session, MARCH, 0.5) == 1_800
        found = month_spend(session, "2026-03", zone=ZONE, now=APRIL)
        assert (found.total_usd, found.node_hours) == (Decimal("42.00"), Decimal("1.5"))
        assert adjustments.pending(session) == []
        assert late_node_time(session, "2026-02") == []


def test_what_a_month_was_made_of_is_signed_and_months_sealed_before_still_verify(
    books: FreshDatabase, close: Close, key_file: Path
) -> None:
    close()
    with session_scope(books.engine) as session:
        row = session.scalars(select(MonthCloseRow)).one()
        assert row.seal_version == 3
        old = Sealed(row.month, row.zone, row.rows, row.total_usd, row.sha256, {}, version=1)
        old_signature = old.signed_by(read_key(key_file))
    with psycopg.connect(books.dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE month_close DISABLE TRIGGER ALL")
        connection.execute("UPDATE month_close SET basis = jsonb_set(basis, '{slots,a}', '400')")
    with session_scope(books.engine) as session:  # later adjustments would have followed the forged slots
        found = month_close.verify(session, "2026-02", key_file=key_file)
        assert (found.is_file_whole, found.are_lines_whole, found.is_signed) == (True, True, False)
        session.execute(text("UPDATE month_close SET seal_version = 1"))
        assert month_close.verify(session, "2026-02", key_file=key_file).is_signed is False
        session.execute(text("UPDATE month_close SET signature = :s"), {"s": old_signature})
        assert month_close.verify(session, "2026-02", key_file=key_file).holds


def test_node_time_written_while_a_month_closes_is_in_it_or_late(
    books: FreshDatabase, key_file: Path
) -> None:
    """The close holds the books: whoever writes node time in between waits, and comes late."""
    with session_scope(books.engine) as session:
        month_close.start_closing(session, "2026-02", zone=ZONE, actor=FAY, now=CLOSING_TIME)
    with psycopg.connect(books.dsn) as writer:
        with session_scope(books.engine) as session:
            closed = month_close.close_month(
                session, "2026-02", zone=ZONE, actor=FAY, now=CLOSING_TIME, key_file=key_file, accept=True
            )
            for change in (
                "UPDATE node_quarter SET up_s = 0",
                "UPDATE pool SET max_num_seqs = 400",
            ):
                writer.execute("SET lock_timeout = '100ms'")
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    writer.execute(change)
                writer.rollback()
        writer.execute("UPDATE node_quarter SET up_s = 0 WHERE quarter = %s", [FEBRUARY])
        writer.commit()
    with session_scope(books.engine) as session:
        assert closed.total_usd == Decimal("280.00")
        assert sum(line.amount_usd for line in adjustments.pending(session)) == Decimal("-7.00")


def test_node_hours_of_two_closed_months_are_each_linked_to_their_own(
    books: FreshDatabase, close: Close
) -> None:
    close()
    close("2026-03", APRIL + 2 * HOUR)
    with session_scope(books.engine) as session:
        node_hours(session, APRIL, 1)
        session.flush()
        correct(session, FEBRUARY + 2 * HOUR, 1)
        correct(session, MARCH, 2)
        found = month_spend(session, "2026-04", zone=ZONE, now=JUNE)
        by_month = {line.adjusts: line.amount_usd for line in found.lines if line.note.endswith("idle")}
        assert by_month == {"2026-02": Decimal("28.00"), "2026-03": Decimal("56.00")}
