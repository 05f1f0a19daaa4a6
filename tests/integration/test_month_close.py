"""Months that close: signed, never changed again, whatever comes late, at once or in the middle."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import psycopg
import pytest
from pyarrow import parquet
from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session

from control import adjustments, allocation_rules, month_close
from control.cli import main
from control.closed_months import closed_month, require_zone, stored_body
from control.database import session_scope
from control.export_month import month_in
from control.month_checks import checklist
from control.month_seal import make_key
from control.prices import add_price
from control.queries_spend import month_file, month_spend, spend_by_tenant
from control.roles import Actor, Role
from control.tables import (
    AuditRow,
    GatewayObservedRow,
    GatewayRow,
    MonthCloseRow,
    MonthLineRow,
    PoolRow,
    SampleRow,
    UsageRecordRow,
)
from fleet.errors import Conflict, Forbidden, InvalidInput, Unavailable
from fleet.months import month_of
from fleet.spend import subtotals
from tests.gateway_process import ROOT
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


@pytest.fixture
def books(database: FreshDatabase) -> FreshDatabase:
    with session_scope(database.engine) as session:
        write_books(session)
    return database


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return tmp_path / "secrets" / "finance.key"


Close = Callable[..., None]


@pytest.fixture
def close(books: FreshDatabase, key_file: Path) -> Close:
    def run(name: str = "2026-02", now: datetime = CLOSING_TIME, *, accept: bool = False) -> None:
        with session_scope(books.engine) as session:
            month_close.start_closing(session, name, zone=ZONE, actor=FAY, now=now)
        with session_scope(books.engine) as session:
            month_close.close_month(
                session, name, zone=ZONE, actor=FAY, now=now, key_file=key_file, accept=accept
            )

    return run


def amounts(session: Session, name: str, now: datetime) -> dict[tuple[str, ...], Decimal]:
    found = month_spend(session, name, zone=ZONE, now=now)
    assert sum(line.amount_usd for line in found.lines) == found.total_usd
    return subtotals(found.lines, "kind", "tenant")


def test_a_closed_month_is_signed_kept_and_the_same_bytes_for_ever(
    books: FreshDatabase, close: Close, key_file: Path
) -> None:
    close()
    with session_scope(books.engine) as session:
        before = month_file(session, "2026-02", zone=ZONE, now=CLOSING_TIME)
        assert before.file_name == "spend_2026-02_closed.csv"
        assert before.total_usd == Decimal("280.00")  # 10 node-hours at 28
        assert amounts(session, "2026-02", CLOSING_TIME) == {
            ("usage", "acme"): Decimal("70.00"),  # a quarter of the places
            ("idle", ""): Decimal("210.00"),
        }
        rows = list(csv.DictReader(io.StringIO(before.body.decode(), newline="")))
        assert {row["status"] for row in rows} == {"closed"}
        assert month_close.verify(session, "2026-02", key_file=key_file).is_signed is True
    with session_scope(books.engine) as session:  # everything a month is made of changes
        pool = session.get_one(PoolRow, "a")
        pool.max_num_seqs = 1_000
        allocation_rules.set_rule(
            session,
            from_month="2026-03",
            basis="tokens",
            share="even",
            output_weight="2",
            reason="board of the tests",
            zone=ZONE,
            actor=FAY,
            now=CLOSING_TIME,
        )
        add_price(
            session,
            price_class="on_demand",
            usd_per_node_hour="99",
            effective_from=CLOSING_TIME,
            source="dearer",
            actor=FAY,
            now=CLOSING_TIME,
        )
        node_hours(session, FEBRUARY + timedelta(days=3), 2)
        deliver(session, a_record(12, FEBRUARY + timedelta(days=4), tenant="beta"), at=CLOSING_TIME)
    later = datetime(2027, 6, 1, tzinfo=UTC)
    with session_scope(books.engine) as session:
        after = month_file(session, "2026-02", zone=ZONE, now=later)
        assert (after.body, after.sha256) == (before.body, before.sha256)
        assert month_close.verify(session, "2026-02", key_file=key_file).holds


def test_late_use_moves_cost_in_the_next_month_and_is_linked(books: FreshDatabase, close: Close) -> None:
    close()
    with session_scope(books.engine) as session:
        # beta's late 20 engine-hours are half of February's 40: 140 USD, which idle had carried.
        late = [a_record(11 + n, FEBRUARY + timedelta(hours=n), tenant="beta") for n in range(1, 21)]
        assert deliver(session, *late, at=MARCH + timedelta(days=2)) == 20
    now = MARCH + timedelta(days=3)
    with session_scope(books.engine) as session:
        found = month_spend(session, "2026-03", zone=ZONE, now=now)
        late_lines = [line for line in found.lines if line.kind == "adjustment"]
        assert {(line.tenant, line.note, line.amount_usd) for line in late_lines} == {
            ("beta", "late use: usage", Decimal("140.00")),
            ("", "late use: idle", Decimal("-140.00")),
        }
        assert {line.adjusts for line in late_lines} == {"2026-02"}
        assert sum(line.requests for line in late_lines) == 20
        assert found.total_usd == Decimal("28.00")  # March's own node-hour: late use adds no cost
        linked = adjustments.late_records(session, "2026-02")
        assert [record.seq for record in linked] == list(range(12, 32))
        assert "beta" not in spend_by_tenant(session, now, zone=ZONE)  # a budget is for this month's use
    close("2026-03", APRIL + timedelta(hours=2), accept=True)
    with session_scope(books.engine) as session:
        assert adjustments.pending(session) == []  # settled once
        march = amounts(session, "2026-03", APRIL)
        assert march["adjustment", "beta"] == Decimal("140.00")
        made = month_in(session, "2026-03", "csv", "focus", zone=ZONE, now=APRIL)
        focus = csv.DictReader(io.StringIO(made.body.decode(), newline=""))
        corrected = {(r["SubAccountId"], r["ChargeCategory"]) for r in focus if r["ChargeClass"]}
        assert corrected == {
            ("beta", "Usage"),
            ("", "Usage"),
        }  # late use is use; it was not entered by hand
        # Later still: only what is new, 4 hours of 40.
        later = [a_record(40 + n, FEBRUARY + timedelta(days=9), tenant="beta") for n in range(4)]
        deliver(session, *later, at=APRIL + timedelta(days=1))
        assert {(line.tenant, line.amount_usd) for line in adjustments.pending(session)} == {
            ("beta", Decimal("28.00")),
            ("", Decimal("-28.00")),
        }


def test_a_correction_is_a_line_of_the_next_month(books: FreshDatabase, close: Close) -> None:
    with session_scope(books.engine) as session, pytest.raises(Conflict, match="not closed"):
        adjustments.correct(
            session,
            month="2026-02",
            tenant="acme",
            amount_usd="-7",
            reason="refund",
            actor=FAY,
            now=CLOSING_TIME,
        )
    close()
    with session_scope(books.engine) as session:
        for wrong in ("0", "1.001", "NaN", "1e30", "x"):
            with pytest.raises(InvalidInput):
                adjustments.correct(
                    session,
                    month="2026-02",
                    tenant="acme",
                    amount_usd=wrong,
                    reason="refund",
                    actor=FAY,
                    now=CLOSING_TIME,
                )
        adjustments.correct(
            session,
            month="2026-02",
            tenant="acme",
            amount_usd="-7.25",
            reason="outage of 9 February",
            actor=FAY,
            now=CLOSING_TIME,
        )
    with session_scope(books.engine) as session:
        march = month_spend(session, "2026-03", zone=ZONE, now=CLOSING_TIME)
        (line,) = [line for line in march.lines if line.kind == "adjustment"]
        assert (line.tenant, line.amount_usd, line.adjusts) == ("acme", Decimal("-7.25"), "2026-02")
        assert line.note.endswith("outage of 9 February")
        assert march.total_usd == Decimal("20.75")
    close("2026-03", APRIL + timedelta(hours=2), accept=True)
    with session_scope(books.engine) as session:
        assert adjustments.pending(session) == []


def test_what_is_closed_cannot_be_changed_and_a_forgery_does_not_verify(
    books: FreshDatabase, close: Close, key_file: Path, tmp_path: Path
) -> None:
    close()
    with psycopg.connect(books.dsn, autocommit=True) as connection:
        for change in (
            "UPDATE month_close SET total_usd = 1",
            "DELETE FROM month_line",
            "TRUNCATE month_close CASCADE",
            "INSERT INTO month_line SELECT month, 99, kind, tenant, tier, model, pool, requests, "
            "prompt_tokens, output_tokens, engine_s, node_hours, 1, adjusts, note FROM month_line LIMIT 1",
        ):
            with pytest.raises(psycopg.errors.RestrictViolation):
                connection.execute(change)
        # Somebody with all rights takes the triggers away and makes file, lines and checksum agree.
        connection.execute("ALTER TABLE month_close DISABLE TRIGGER ALL")
        connection.execute("ALTER TABLE month_line DISABLE TRIGGER ALL")
        connection.execute("UPDATE month_line SET amount_usd = 60 WHERE tenant = 'acme'")
    with session_scope(books.engine) as session:
        assert not month_close.verify(session, "2026-02", key_file=key_file).are_lines_whole
        forged = stored_body(session, "2026-02").replace(b",70.00,", b",60.00,")
        session.execute(
            text(
                "UPDATE month_close SET body = :body, total_usd = 270, "
                "sha256 = encode(sha256(:body), 'hex')"
            ),
            {"body": forged},
        )
    with session_scope(books.engine) as session:
        found = month_close.verify(session, "2026-02", key_file=key_file)
        assert (found.is_file_whole, found.are_lines_whole) == (True, True)
        assert found.is_signed is False
        assert not found.holds
        assert month_close.verify(session, "2026-02", key_file=tmp_path / "none").is_signed is None


@pytest.mark.parametrize(
    "forgery",
    [
        "tenant = 'globex' WHERE tenant = 'acme'",  # another pays: every amount stays
        "model = 'small' WHERE tenant = 'acme'",
        "requests = requests + 1 WHERE tenant = 'acme'",
        "node_hours = node_hours + 0.01 WHERE tenant = 'acme'",
        "kind = 'overhead' WHERE kind = 'idle'",
        "note = 'as agreed' WHERE tenant = 'acme'",
    ],
)
def test_lines_that_no_longer_are_the_signed_files_neither_verify_nor_leave(
    books: FreshDatabase, close: Close, key_file: Path, forgery: str
) -> None:
    close()
    with psycopg.connect(books.dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE month_line DISABLE TRIGGER ALL")
        assert connection.execute(f"UPDATE month_line SET {forgery}".encode()).rowcount == 1
    with session_scope(books.engine) as session:
        found = month_close.verify(session, "2026-02", key_file=key_file)
        assert (found.is_file_whole, found.is_signed, found.are_lines_whole) == (True, True, False)
        assert not found.holds
        with pytest.raises(Conflict, match="not those of the file it was closed with"):
            month_in(session, "2026-02", "xlsx", "plain", zone=ZONE, now=CLOSING_TIME)


def test_measured_times_of_many_decimals_leave_in_every_format(
    books: FreshDatabase, close: Close, key_file: Path
) -> None:
    with session_scope(books.engine) as session:
        for seq, engine_s in enumerate((1.0005, 1200.001499, 0.0015, 7.333333), start=20):
            deliver(
                session,
                a_record(seq, FEBRUARY + timedelta(hours=1), tenant=f"t{seq}", engine_s=engine_s),
                at=MARCH,
            )
    close()
    with session_scope(books.engine) as session:
        assert month_close.verify(session, "2026-02", key_file=key_file).are_lines_whole
        made = month_in(session, "2026-02", "parquet", "plain", zone=ZONE, now=CLOSING_TIME)
        kept = list(csv.DictReader(io.StringIO(stored_body(session, "2026-02").decode(), newline="")))
    held = parquet.read_table(io.BytesIO(made.body)).to_pylist()
    assert len(held) == len(kept) == 6  # five tenants and idle
    for name in ("engine_seconds", "node_hours", "amount_usd"):
        assert [str(row[name]) for row in held] == [row[name] for row in kept]


def test_the_key_is_a_private_file_and_nowhere_in_the_database(
    books: FreshDatabase, close: Close, key_file: Path
) -> None:
    close()
    assert key_file.stat().st_mode & 0o777 == 0o600
    assert make_key(key_file) == bytes.fromhex(key_file.read_text().strip())  # kept, not made anew
    with session_scope(books.engine) as session:
        row = session.scalars(select(MonthCloseRow)).one()
        kept = f"{row.basis}{row.checklist}{row.watermark}{row.key_id}{row.signature}{row.note}"
        assert key_file.read_text().strip() not in kept
    key_file.write_text("garbage")
    with session_scope(books.engine) as session, pytest.raises(Unavailable, match="no key in hex"):
        month_close.verify(session, "2026-02", key_file=key_file)


def test_a_month_that_is_not_ready_names_everything_that_is_missing(
    books: FreshDatabase, key_file: Path
) -> None:
    with session_scope(books.engine) as session:
        node_hours(session, FEBRUARY + timedelta(days=1), 1, "spot")  # nobody set a price of spot nodes
        session.add(SampleRow(at=MARCH - timedelta(seconds=5), node="n9", engine="0", flags=[]))
        session.execute(text("UPDATE node_quarter SET last_seen_at = '2026-02-20T00:00Z'"))
        month_close.start_closing(session, "2026-02", zone=ZONE, actor=FAY, now=CLOSING_TIME)

    def refused(name: str, now: datetime) -> str:
        with session_scope(books.engine) as session, pytest.raises(Conflict) as said:
            month_close.close_month(
                session, name, zone=ZONE, actor=FAY, now=now, key_file=key_file, accept=True
            )
        return said.value.message

    said = refused("2026-02", CLOSING_TIME)
    assert "1.00 node-hours without a price" in said
    assert "node time is counted" in said
    assert "month is over" in refused("2026-02", MARCH + timedelta(minutes=30))
    assert "is open" in refused("2026-03", APRIL + timedelta(hours=2))
    with session_scope(books.engine) as session:
        assert session.scalar(select(func.count()).select_from(MonthCloseRow)) == 0


def test_months_close_in_order_and_a_skipped_one_is_named(books: FreshDatabase, key_file: Path) -> None:
    now = APRIL + timedelta(hours=2)
    with session_scope(books.engine) as session:
        month_close.start_closing(session, "2026-03", zone=ZONE, actor=FAY, now=now)
    with session_scope(books.engine) as session, pytest.raises(Conflict, match="to close is 2026-02"):
        month_close.close_month(
            session, "2026-03", zone=ZONE, actor=FAY, now=now, key_file=key_file, accept=True
        )


def test_a_gateway_that_may_still_hold_use_needs_finances_consent(
    books: FreshDatabase, close: Close
) -> None:
    with session_scope(books.engine) as session:
        session.add(
            GatewayRow(name="gw-2", base_url="http://127.0.0.1:2", state="active", created_at=FEBRUARY)
        )
        session.flush()
        session.add(
            GatewayObservedRow(
                gateway="gw-2",
                seen_at=CLOSING_TIME,
                condition="converged",
                status={"usage_spool": "s9", "usage_last_seq": 7},
            )
        )
    with pytest.raises(Conflict, match="not drained since the end: gw-2"):
        close()
    close(accept=True)
    with session_scope(books.engine) as session:
        row = session.scalars(select(MonthCloseRow)).one()
        assert row.checklist["gateways' usage is drained"]["met"] is False  # kept with the month
        (audited,) = session.scalars(select(AuditRow).where(AuditRow.action == "month.close"))
        assert audited.detail["accepted"] == ["gateways' usage is drained"]


def test_what_no_gateway_holds_is_not_called_drained(books: FreshDatabase) -> None:
    def found(now: datetime) -> tuple[bool, str]:
        with session_scope(books.engine) as session:
            spend = month_spend(session, "2026-02", zone=ZONE, now=now)
            (check,) = (c for c in checklist(session, spend, ZONE, now) if c.name.endswith("is drained"))
            return check.is_met, check.found

    assert found(CLOSING_TIME) == (True, "all drained since the end")  # a record of March was taken
    with session_scope(books.engine) as session:
        session.execute(
            update(GatewayRow).where(GatewayRow.name == "gw-1").values(name="gw-9", state="removed")
        )
    assert found(CLOSING_TIME) == (True, "no gateway is registered that could hold any")
    with session_scope(books.engine) as session:
        session.add(
            GatewayRow(name="gw-2", base_url="http://127.0.0.1:2", state="active", created_at=FEBRUARY)
        )
    assert found(MARCH - timedelta(days=1)) == (False, "not before the month is over")
    assert found(CLOSING_TIME) == (False, "not drained since the end: gw-2")


def test_a_month_before_the_first_node_is_not_recorded(books: FreshDatabase) -> None:
    with session_scope(books.engine) as session:
        assert month_spend(session, "2026-01", zone=ZONE, now=CLOSING_TIME).state == "not recorded"
        export = month_file(session, "2026-01", zone=ZONE, now=CLOSING_TIME)
        assert "complete" not in export.file_name
        with pytest.raises(Conflict, match="not recorded"):
            month_close.start_closing(session, "2026-01", zone=ZONE, actor=FAY, now=CLOSING_TIME)
        listed = [each.name for each in month_close.months(session, zone=ZONE, now=CLOSING_TIME)]
        assert listed == ["2026-03", "2026-02"]


def test_the_zone_stays_once_a_month_is_closed(books: FreshDatabase, close: Close) -> None:
    kolkata = ZoneInfo("Asia/Kolkata")
    with session_scope(books.engine) as session:
        require_zone(session, kolkata)  # nothing is closed yet
    close()
    with session_scope(books.engine) as session, pytest.raises(Conflict, match="closed in UTC"):
        month_spend(session, "2026-03", zone=kolkata, now=CLOSING_TIME)


def test_only_finance_and_admin_close(books: FreshDatabase) -> None:
    with session_scope(books.engine) as session, pytest.raises(Forbidden):
        month_close.start_closing(
            session,
            "2026-02",
            zone=ZONE,
            actor=Actor("olga", Role.OPERATOR, "page"),
            now=CLOSING_TIME,
        )


def test_two_close_at_once_while_use_and_prices_come(books: FreshDatabase, key_file: Path) -> None:
    """Each record of February is in its lines or in an adjustment, none in both; one close wins."""
    with session_scope(books.engine) as session:
        month_close.start_closing(session, "2026-02", zone=ZONE, actor=FAY, now=CLOSING_TIME)
    start, outcomes = threading.Barrier(4), list[str]()

    def closer() -> None:
        start.wait(60)
        for _ in range(200):
            try:
                with session_scope(books.engine) as session:
                    month_close.close_month(
                        session, "2026-02", zone=ZONE, actor=FAY, now=CLOSING_TIME, key_file=key_file
                    )
            except Conflict as exc:
                if exc.retryable:
                    continue
                outcomes.append(exc.message)
            else:
                outcomes.append("closed")
            return

    def deliverer() -> None:
        start.wait(60)
        for number in range(30):
            record = a_record(100 + number, FEBRUARY + timedelta(hours=number), engine_s=60.0)
            with session_scope(books.engine) as session:
                deliver(session, record, at=CLOSING_TIME)

    def pricer() -> None:
        start.wait(60)
        for number in range(10):
            with session_scope(books.engine) as session:
                add_price(
                    session,
                    price_class="on_demand",
                    usd_per_node_hour=str(30 + number),
                    effective_from=CLOSING_TIME + timedelta(days=number),
                    source="offer",
                    actor=FAY,
                    now=CLOSING_TIME,
                )

    threads = [threading.Thread(target=each) for each in (closer, closer, deliverer, pricer)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(outcomes) == ["2026-02 is closed", "closed"]
    with session_scope(books.engine) as session:
        closed = closed_month(session, "2026-02")
        assert closed is not None
        assert closed.total_usd == Decimal("280.00")
        own = session.scalar(select(func.sum(MonthLineRow.requests))) or 0
        late = sum(line.requests for line in adjustments.pending(session))
        delivered = session.scalar(
            select(func.count()).select_from(UsageRecordRow).where(UsageRecordRow.finished_at < MARCH)
        )
        assert own + late == delivered == 40
        assert len(adjustments.late_records(session, "2026-02")) == late
        assert month_close.verify(session, "2026-02", key_file=key_file).holds


KILLED = """
import os, sys
from datetime import datetime, UTC
from pathlib import Path
from zoneinfo import ZoneInfo
from control import audit, month_close
from control.database import make_engine, session_scope
from control.roles import Actor, Role

def stop(*_args, **_kwargs):  # all rows of the month are written, nothing is committed
    print("written", flush=True)
    sys.stdin.read()

month_close.audit.append = stop
engine = make_engine(os.environ["DATABASE_URL"])
with session_scope(engine) as session:
    month_close.close_month(
        session, "2026-02", zone=ZoneInfo("UTC"), actor=Actor("fay", Role.FINANCE, "cli"),
        now=datetime(2026, 3, 1, 2, tzinfo=UTC), key_file=Path(sys.argv[1]),
    )
"""


def test_a_close_killed_in_the_middle_leaves_nothing_and_can_be_repeated(
    books: FreshDatabase, close: Close, key_file: Path
) -> None:
    with session_scope(books.engine) as session:
        month_close.start_closing(session, "2026-02", zone=ZONE, actor=FAY, now=CLOSING_TIME)
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(key_file)],
        cwd=ROOT,
        env=dict(os.environ) | {"DATABASE_URL": books.dsn},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    with session_scope(books.engine) as session:
        # Waits until the server has rolled the dead one's work back and freed the tables.
        session.execute(text("SET LOCAL lock_timeout = '60s'"))
        session.execute(text("LOCK TABLE month_close IN ACCESS EXCLUSIVE MODE"))
        assert session.scalar(select(func.count()).select_from(MonthCloseRow)) == 0
        assert session.scalar(select(func.count()).select_from(MonthLineRow)) == 0
        assert month_spend(session, "2026-02", zone=ZONE, now=CLOSING_TIME).state == "closing"
    close()
    with session_scope(books.engine) as session:
        assert month_close.verify(session, "2026-02", key_file=key_file).holds


def test_commitments_cover_reserved_nodes_and_what_is_unused_is_a_line(books: FreshDatabase) -> None:
    # 2 nodes committed for the first 10 h of March at 10 USD and 40 upfront (2 an hour of each): 240 USD.
    # One reserved node ran 5 h of it: 60 USD covered, 15 node-hours (180 USD) unused. Platform: 10 h at 3.
    with session_scope(books.engine) as session:
        node_hours(session, MARCH, 5, "reserved")
        for pool, nodes, usd, upfront in (("a", 2, "10", "40"), (None, 1, "3", "0")):
            allocation_rules.add_commitment(
                session,
                pool=pool,
                nodes=nodes,
                usd_per_hour=usd,
                upfront_usd=upfront,
                starts_at=MARCH,
                ends_at=MARCH + timedelta(hours=10),
                source="contract",
                actor=FAY,
                now=FEBRUARY,
            )
    with session_scope(books.engine) as session:
        march = month_spend(session, "2026-03", zone=ZONE, now=APRIL)
        by_kind = subtotals(march.lines, "kind")
        assert march.unpriced_node_hours == 0
        assert by_kind["commitment",] == Decimal("180.00")
        assert by_kind["overhead",] == Decimal("30.00")
        assert by_kind["usage",] + by_kind["idle",] == Decimal("88.00")  # 60 covered, 28 on demand
        assert march.total_usd == Decimal("298.00")


@pytest.mark.parametrize("basis", allocation_rules.BASES)
def test_a_rule_divides_the_used_part_by_its_own_measure(books: FreshDatabase, basis: str) -> None:
    with session_scope(books.engine) as session:
        # beta: one request of 2 engine-hours in February, 500 + 300 tokens like each of acme's ten.
        deliver(session, a_record(50, FEBRUARY, tenant="beta", engine_s=7_200.0), at=MARCH)
        allocation_rules.set_rule(
            session,
            from_month="2026-02",
            basis=basis,
            share="apart",
            output_weight="12",
            reason="board",
            zone=ZONE,
            actor=FAY,
            now=MARCH,
        )
    # Used: 12 of 40 engine-hours of 280 USD = 84 USD, divided 10:2 by time and KV x time, 10:1 by tokens.
    expected = {"tokens": ("76.36", "7.64")}.get(basis, ("70.00", "14.00"))
    with session_scope(books.engine) as session:
        found = amounts(session, "2026-02", CLOSING_TIME)
        assert (found["usage", "acme"], found["usage", "beta"]) == tuple(map(Decimal, expected))
        assert found["idle", ""] == Decimal("196.00")


def test_a_rule_cannot_begin_in_a_closed_month(books: FreshDatabase, close: Close) -> None:
    close()
    with session_scope(books.engine) as session, pytest.raises(Conflict, match="closed"):
        allocation_rules.set_rule(
            session,
            from_month="2026-02",
            basis="tokens",
            share="even",
            output_weight="2",
            reason="x",
            zone=ZONE,
            actor=FAY,
            now=CLOSING_TIME,
        )
    with session_scope(books.engine) as session, pytest.raises(Conflict, match="closed"):
        allocation_rules.add_commitment(
            session,
            usd_per_hour="1",
            starts_at=FEBRUARY,
            ends_at=APRIL,
            source="x",
            actor=FAY,
            now=CLOSING_TIME,
        )


def test_months_of_every_length_and_of_summer_time_hold_their_hours() -> None:
    berlin = ZoneInfo("Europe/Berlin")

    def hours(name: str, zone: ZoneInfo) -> float:
        month = month_of(name, zone)
        return (month.end - month.start).total_seconds() / 3600

    assert hours("2026-02", ZONE) == 28 * 24
    assert hours("2028-02", ZONE) == 29 * 24
    assert hours("2026-03", berlin) == 31 * 24 - 1
    assert hours("2026-10", berlin) == 31 * 24 + 1


def test_the_command_line_closes_lists_and_verifies(
    books: FreshDatabase,
    key_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DATABASE_URL", books.dsn)
    monkeypatch.setenv("RHODECK_FINANCE_KEY_FILE", str(key_file))

    def run(*arguments: str) -> tuple[int | str | None, str]:
        with pytest.raises(SystemExit) as ended:
            main(("months", *arguments))
        said = capsys.readouterr()
        return ended.value.code, said.out + said.err

    code, said = run("verify", "2026-02")
    assert code == 1
    assert "2026-02 is not closed" in said
    code, said = run("close", "2026-02", "--final")
    assert code == 1
    assert "2026-02 is open" in said
    code, said = run("close", "2026-02")
    assert code == 0
    assert "[ok  ] prices for all node time" in said
    code, said = run("close", "2026-02", "--final", "--accept", "--note", "first month")
    assert code == 0
    assert "closed, 280.00 USD in 2 rows" in said
    code, said = run("verify", "2026-02")
    assert code == 0
    assert "signature  holds" in said
    code, said = run("correct", "2026-02", "--tenant", "acme", "--reason", "refund", "--", "-7.25")
    assert (code, said) == (0, "correction 1 of 2026-02\n")
    code, said = run("list", "--json")
    closed = json.loads(said)[-1]
    assert (closed["month"], closed["state"], closed["total_usd"]) == ("2026-02", "closed", "280.00")
    assert closed["sha256"] in run("verify", "2026-02")[1]
    with psycopg.connect(books.dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE month_line DISABLE TRIGGER ALL")
        connection.execute("UPDATE month_line SET amount_usd = 60 WHERE tenant = 'acme'")
    code, said = run("verify", "2026-02")
    assert code == 1
    assert "ARE NOT THOSE OF THE FILE" in said
