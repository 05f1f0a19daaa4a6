"""Who writes the books while a month closes, or another writes the same, waits and is judged afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from control import adjustments, allocation_rules, month_close
from control.closed_months import closed_months
from control.database import session_scope
from control.late_node_time import late_node_time
from control.prices import add_price, prices
from fleet.errors import Conflict, FleetError, InvalidInput
from tests.month_books import APRIL, CLOSING_TIME, FAY, FEBRUARY, MARCH, ZONE, node_hours, write_books
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

PATIENCE_S = 60.0
WAITING = """
SELECT count(*) FROM pg_locks
WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
Work = Callable[[Session], object]


@pytest.fixture
def books(database: FreshDatabase) -> FreshDatabase:
    with session_scope(database.engine) as session:
        write_books(session)
        month_close.start_closing(session, "2026-02", zone=ZONE, actor=FAY, now=CLOSING_TIME)
    return database


def meet(books: FreshDatabase, first: Work, second: Work) -> FleetError | None:
    """Let `second` begin before `first` commits and end after it; return what it was refused with."""
    refused: list[FleetError] = []

    def run() -> None:
        try:
            with session_scope(books.engine) as session:
                session.execute(text("SET LOCAL lock_timeout = '60s'"))
                session.execute(text("SET LOCAL statement_timeout = '60s'"))
                second(session)
        except FleetError as exc:
            refused.append(exc)

    thread = threading.Thread(target=run)
    with psycopg.connect(books.dsn, autocommit=True) as watch:
        with session_scope(books.engine) as session:
            first(session)
            session.flush()
            thread.start()
            for _ in range(int(PATIENCE_S / 0.02)):
                thread.join(0.02)
                waiting = watch.execute(WAITING).fetchone()
                if not thread.is_alive() or (waiting is not None and waiting[0]):
                    break
        thread.join(PATIENCE_S)
    assert not thread.is_alive()
    return refused[0] if refused else None


def closer(key_file: Path) -> Work:
    def close(session: Session) -> None:
        month_close.close_month(
            session, "2026-02", zone=ZONE, actor=FAY, now=CLOSING_TIME, key_file=key_file, accept=True
        )

    return close


def spot(usd: str, start: datetime = FEBRUARY) -> Work:
    def add(session: Session) -> None:
        add_price(
            session,
            price_class="spot",
            usd_per_node_hour=usd,
            effective_from=start,
            source="contract of the tests",
            actor=FAY,
            now=CLOSING_TIME,
        )

    return add


def commitment(session: Session) -> None:
    allocation_rules.add_commitment(
        session,
        pool="a",
        usd_per_hour="18.8",
        starts_at=FEBRUARY + timedelta(days=1),
        ends_at=datetime(2027, 2, 1, tzinfo=UTC),
        source="contract of the tests",
        actor=FAY,
        now=CLOSING_TIME,
    )


def rule(session: Session) -> None:
    allocation_rules.set_rule(
        session,
        from_month="2026-02",
        basis="tokens",
        share="even",
        output_weight="12",
        reason="board of the tests",
        zone=ZONE,
        actor=FAY,
        now=CLOSING_TIME,
    )


@pytest.mark.parametrize("declared", [commitment, rule])
def test_what_is_declared_for_a_month_while_it_closes_is_refused(
    books: FreshDatabase, tmp_path: Path, declared: Work
) -> None:
    refused = meet(books, closer(tmp_path / "finance.key"), declared)
    assert isinstance(refused, Conflict)
    assert "closed" in refused.message


def test_of_two_first_prices_of_the_same_past_one_is_refused(books: FreshDatabase) -> None:
    """Were both taken, the later one would change what a month that closed in between was divided by."""
    refused = meet(books, spot("16"), spot("99"))
    assert isinstance(refused, InvalidInput)
    assert refused.field == "effective_from"
    with session_scope(books.engine) as session:
        assert [p.usd_per_node_hour for p in prices(session) if p.price_class == "spot"] == [16]


def test_node_time_that_waited_for_a_close_is_late(books: FreshDatabase, tmp_path: Path) -> None:
    def write(session: Session) -> None:
        session.execute(
            text("UPDATE node_quarter SET up_s = up_s / 2 WHERE quarter = :at"), {"at": FEBRUARY}
        )

    assert meet(books, closer(tmp_path / "finance.key"), write) is None
    with session_scope(books.engine) as session:
        (late,) = late_node_time(session, "2026-02")
        assert late.change_s == -450
        assert sum(line.amount_usd for line in adjustments.pending(session)) == Decimal("-3.50")  # 28 / 8


def test_a_month_of_nodes_that_cost_nothing_closes(books: FreshDatabase, tmp_path: Path) -> None:
    """A price of 0 is a price: nodes lent for a trial, say."""
    with session_scope(books.engine) as session:
        spot("0")(session)
        session.execute(
            text("UPDATE node_quarter SET price_class = 'spot' WHERE quarter = :at"), {"at": FEBRUARY}
        )
    key_file = tmp_path / "finance.key"
    with session_scope(books.engine) as session:
        closer(key_file)(session)
    with session_scope(books.engine) as session:
        assert month_close.verify(session, "2026-02", key_file=key_file).holds
        session.execute(text("UPDATE node_quarter SET up_s = 0 WHERE quarter = :at"), {"at": FEBRUARY})
        # A free quarter-hour went: what was paid for stays paid for.
        assert sum(line.amount_usd for line in adjustments.pending(session)) == 0


def test_a_month_in_which_no_node_ran_closes_with_consent_and_so_do_those_after_it(
    database: FreshDatabase, tmp_path: Path
) -> None:
    """A fleet that was off from February to April: the months between must not stop all that follow."""
    with session_scope(database.engine) as session:
        write_books(session)
        session.execute(text("DELETE FROM node_quarter WHERE quarter >= :march"), {"march": MARCH})
        node_hours(session, APRIL, 1)
    key_file = tmp_path / "finance.key"
    for name, end in (("2026-02", MARCH), ("2026-03", APRIL), ("2026-04", APRIL + timedelta(days=30))):
        now = end + timedelta(hours=2)
        with session_scope(database.engine) as session:
            month_close.start_closing(session, name, zone=ZONE, actor=FAY, now=now)
        if name == "2026-03":
            with (
                pytest.raises(Conflict, match="no node time is counted"),
                session_scope(database.engine) as session,
            ):
                month_close.close_month(session, name, zone=ZONE, actor=FAY, now=now, key_file=key_file)
        with session_scope(database.engine) as session:
            month_close.close_month(
                session, name, zone=ZONE, actor=FAY, now=now, key_file=key_file, accept=True
            )
    with session_scope(database.engine) as session:
        totals = {closed.name: closed.total_usd for closed in closed_months(session)}
        assert totals == {"2026-02": 280, "2026-03": 0, "2026-04": 28}
