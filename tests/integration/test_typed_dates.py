"""Dates a person types, at every door finance has: in range, or refused before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import psycopg
import pytest

from control import allocation_rules, prices
from control.cli import main
from control.database import session_scope
from control.day_spend import range_days
from control.node_life import correct_node_life
from fleet.errors import InvalidInput
from tests.month_books import CLOSING_TIME, FAY, FEBRUARY, ZONE, write_books
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

BOOKS = ("price", "commitment", "node_quarter", "audit")
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(
    database: FreshDatabase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """`rhodeck ...` on the books of February: exit code, and what it said on both streams."""
    monkeypatch.setenv("DATABASE_URL", database.dsn)
    with session_scope(database.engine) as session:
        write_books(session)

    def start(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert isinstance(ended.value.code, int)
        said = capsys.readouterr()
        return ended.value.code, said.out + said.err

    return start


def counts(database: FreshDatabase) -> list[int]:
    with psycopg.connect(database.dsn) as connection:
        rows = [connection.execute(f"SELECT count(*) FROM {table}").fetchone() for table in BOOKS]
    return [int(row[0]) for row in rows if row is not None]


@pytest.mark.parametrize(
    ("early", "late"),
    [
        ("0001-01-01T00:00+14:00", "2027-01-01"),  # before the first instant there is
        ("2026-12-01T00:00Z", "9999-12-31T23:45-12:00"),  # after the last
        ("1999-12-31T23:45Z", "2027-01-01"),
        ("2026-12-01", "2200-01-01T00:00Z"),
    ],
)
def test_every_command_refuses_a_date_out_of_range_and_writes_nothing(
    run: Run, database: FreshDatabase, early: str, late: str
) -> None:
    before = counts(database)
    span = ("--from", early, "--to", late)
    odd = early if not early.startswith("2026") else late
    for arguments in (
        ("months", "commit", "18.80", "--pool", "a", "--source", "c", *span),
        ("months", "commit", "3.50", "--source", "platform", *span),
        ("months", "node-time", "n1", "--up", "--reason", "r", *span),
        ("prices", "add", "spot", "16", "--source", "s", "--from", odd),
        ("spend", "days", "--from", early[:10], "--to", late[:10]),
    ):
        code, said = run(*arguments)
        assert code != 0, arguments
        assert "out of range" in said, (arguments, said)
        assert "2000 to 2199" in said
        assert "Traceback" not in said
    assert counts(database) == before


@pytest.mark.parametrize("month", ["0001-01", "1969-12", "2200-01", "9998-12", "9999-12"])
def test_every_command_refuses_a_month_out_of_range(run: Run, month: str) -> None:
    for arguments in (
        ("spend", "show", month),
        ("spend", "days", month),
        ("spend", "export", month),
        ("months", "show", month),
        ("months", "close", month),
        ("months", "rule", "--from", month, "--reason", "r"),
        ("invoices", "show", month),
    ):
        code, said = run(*arguments)
        assert code != 0, arguments
        assert "is not a month" in said, (arguments, said)


def test_reports_hold_with_the_widest_dates_that_are_taken(run: Run, database: FreshDatabase) -> None:
    """What is let in at the edges is read back by every report, in the zones furthest from UTC."""
    wide = ("--from", "2026-12-01", "--to", "2199-12-31T23:45Z")
    assert run("months", "commit", "1", "--pool", "a", "--source", "edge", *wide)[0] == 0
    assert run("prices", "add", "spot", "16", "--source", "edge", "--from", "2000-01-01T00:00Z")[0] == 0
    assert run("prices", "add", "reserved", "9", "--source", "edge", "--from", "2199-12-31")[0] == 0
    for zone in ("Pacific/Kiritimati", "Etc/GMT+12", "Asia/Kolkata"):
        code, said = run("spend", "days", "2026-02", "--zone", zone)
        assert code == 0
        assert "280.00 USD" in said
    for arguments in (("prices", "list"), ("months", "list"), ("spend", "show", "2026-02")):
        assert run(*arguments)[0] == 0


def test_the_functions_behind_pages_and_api_refuse_them_too(database: FreshDatabase) -> None:
    edge = datetime(1, 1, 1, tzinfo=UTC)
    far = datetime(9999, 12, 31, tzinfo=UTC)
    with session_scope(database.engine) as session:
        write_books(session)
        for at in (edge, far):
            with pytest.raises(InvalidInput, match="out of range"):
                prices.add_price(
                    session,
                    price_class="spot",
                    usd_per_node_hour="16",
                    effective_from=at,
                    source="s",
                    actor=FAY,
                    now=CLOSING_TIME,
                )
        for start, end in ((edge, FEBRUARY), (FEBRUARY, far)):
            with pytest.raises(InvalidInput, match="out of range"):
                allocation_rules.add_commitment(
                    session,
                    usd_per_hour="1",
                    starts_at=start,
                    ends_at=end,
                    source="s",
                    actor=FAY,
                    now=CLOSING_TIME,
                )
            with pytest.raises(InvalidInput, match="out of range"):
                correct_node_life(
                    session,
                    node="n1",
                    start=start,
                    end=end,
                    was_up=True,
                    reason="r",
                    actor=FAY,
                    now=CLOSING_TIME,
                )
            with pytest.raises(InvalidInput, match="out of range"):
                range_days(session, start.date(), end.date(), zone=ZONE, now=CLOSING_TIME)


@pytest.mark.parametrize(
    ("table", "change"),
    [
        (
            "price",
            "INSERT INTO price (price_class, usd_per_node_hour, effective_from, source, created_by, "
            "created_at) VALUES ('spot', 1, '0001-01-01T00:00+14', 's', 'x', now())",
        ),
        (
            "commitment",
            "INSERT INTO commitment (kind, nodes, usd_per_hour, upfront_usd, starts_at, ends_at, source, "
            "created_by, created_at) VALUES ('platform', 1, 1, 0, '2026-01-01', '9999-12-31', 's', 'x', "
            "now())",
        ),
    ],
)
def test_the_database_refuses_such_rows_itself(database: FreshDatabase, table: str, change: str) -> None:
    with (
        psycopg.connect(database.dsn) as connection,
        pytest.raises(psycopg.errors.CheckViolation, match=f"ck_{table}_dates"),
    ):
        connection.execute(change.encode())
