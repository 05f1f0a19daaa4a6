"""Seals cover all that is kept of a month; a lost key is never replaced unseen; books are not emptied."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import select, text

from control import month_close, month_keys
from control.cli import main
from control.database import session_scope
from control.month_seal import key_id, make_key, read_key, sealed
from control.roles import Actor, Role
from control.tables import AuditRow, MonthCloseRow, MonthKeyRow
from fleet.errors import Forbidden, InvalidInput, Unavailable
from tests.month_books import APRIL, CLOSING_TIME, FAY, ZONE, write_books
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

LATER = APRIL + timedelta(hours=2)
Close = Callable[..., None]


@pytest.fixture
def books(database: FreshDatabase) -> FreshDatabase:
    with session_scope(database.engine) as session:
        write_books(session)
    return database


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return tmp_path / "secrets" / "finance.key"


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


def verified(books: FreshDatabase, key_file: Path, name: str = "2026-02") -> month_close.Verified:
    with session_scope(books.engine) as session:
        return month_close.verify(session, name, key_file=key_file)


def declare(books: FreshDatabase, key_file: Path, reason: str = "disk of fin-1 died") -> str:
    with session_scope(books.engine) as session:
        change = month_keys.new_key(session, key_file, reason=reason, actor=FAY, now=CLOSING_TIME)
    return change.key_id


@pytest.mark.parametrize(
    "forgery",
    [
        "starts_at = starts_at - interval '1 hour'",
        "ends_at = ends_at + interval '1 day'",
        "number = 7",
        "watermark = jsonb_set(watermark, '{usage}', '[]')",
        "checklist = '{}'",
        "method = 'as we like'",
        "node_hours = node_hours + 0.000001",
        "closed_at = closed_at - interval '1 microsecond'",
        "closed_by = 'someone else'",
        "note = 'approved by the board'",
        "basis = jsonb_set(basis, '{slots,a}', '400')",
        "zone = 'Europe/Berlin'",
        "key_id = repeat('0', 16)",
        "seal_version = 2",
    ],
)
def test_nothing_kept_of_a_month_can_be_forged(
    books: FreshDatabase, close: Close, key_file: Path, forgery: str
) -> None:
    close()
    before = verified(books, key_file)
    assert (before.holds, before.seal_version) == (True, 3)
    with psycopg.connect(books.dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE month_close DISABLE TRIGGER ALL")
        connection.execute(f"UPDATE month_close SET {forgery}".encode())
    assert verified(books, key_file).is_signed is False


def test_a_month_signs_the_one_closed_before_it(books: FreshDatabase, close: Close, key_file: Path) -> None:
    close()
    close("2026-03", LATER)
    assert verified(books, key_file, "2026-03").holds
    with psycopg.connect(books.dsn, autocommit=True) as connection:  # February is gone as if it never was
        for table in ("month_close", "month_line"):
            connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER ALL")
        connection.execute("DELETE FROM month_line WHERE month = '2026-02'")
        connection.execute("DELETE FROM month_close WHERE month = '2026-02'")
    assert verified(books, key_file, "2026-03").is_signed is False


@pytest.mark.parametrize("version", [1, 2])
def test_months_sealed_before_verify_as_what_they_are(
    books: FreshDatabase, close: Close, key_file: Path, version: int
) -> None:
    close()
    with session_scope(books.engine) as session:
        row = session.scalars(select(MonthCloseRow)).one()
        old = sealed(row, "", version).signed_by(read_key(key_file))
        session.execute(text("ALTER TABLE month_close DISABLE TRIGGER ALL"))
        session.execute(
            text("UPDATE month_close SET signature = :s, seal_version = :v"), {"s": old, "v": version}
        )
        session.execute(text("ALTER TABLE month_close ENABLE TRIGGER ALL"))
    found = verified(books, key_file)
    assert (found.holds, found.seal_version) == (True, version)
    close("2026-03", LATER)  # the next one is sealed as now
    assert verified(books, key_file, "2026-03").seal_version == 3
    assert verified(books, key_file, "2026-03").holds


@pytest.mark.parametrize("table", ["node_quarter", "usage_quarter", "usage_cursor"])
@pytest.mark.parametrize("statement", ["TRUNCATE {}", "TRUNCATE {} CASCADE", "TRUNCATE month_closing, {}"])
def test_books_cannot_be_emptied_behind_the_back_of_their_triggers(
    books: FreshDatabase, table: str, statement: str
) -> None:
    with psycopg.connect(books.dsn, autocommit=True) as connection:
        before = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
        with pytest.raises(psycopg.errors.RestrictViolation, match=f"{table} is a book"):
            connection.execute(statement.format(table).encode())
        assert connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone() == before != (0,)


def test_a_lost_key_is_not_replaced_unseen(books: FreshDatabase, close: Close, key_file: Path) -> None:
    close()
    lost = key_id(read_key(key_file))
    safe = key_file.read_bytes()
    key_file.unlink()
    with pytest.raises(Unavailable, match=f"signed with key {lost}.*does not exist") as refused:
        close("2026-03", LATER)
    assert "rhodeck months new-key" in refused.value.hint
    assert not key_file.exists()
    other = key_id(make_key(key_file))  # nor does any other key do
    with pytest.raises(Unavailable, match=f"holds key {other}"):
        close("2026-03", LATER)
    key_file.write_bytes(safe)
    close("2026-03", LATER)
    assert verified(books, key_file, "2026-03").holds


def test_a_declared_key_vouches_for_what_it_found_closed(
    books: FreshDatabase, close: Close, key_file: Path
) -> None:
    close()
    lost = key_id(read_key(key_file))
    key_file.unlink()
    assert verified(books, key_file).is_signed is None
    named = declare(books, key_file)
    found = verified(books, key_file)
    assert found.holds
    assert found.is_signed is True
    assert named in found.signature_by
    assert lost in found.signature_by
    close("2026-03", LATER)
    assert verified(books, key_file, "2026-03").signature_by == month_keys.BY_OWN
    with session_scope(books.engine) as session:
        audited = session.scalars(select(AuditRow).where(AuditRow.action == "month.new_key")).one()
        assert (audited.actor, audited.note) == ("fay", "disk of fin-1 died")
        assert audited.detail == {"key_id": named, "replaces": lost, "months": 1}
    with psycopg.connect(books.dsn, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.RestrictViolation):
            connection.execute("UPDATE month_key SET reason = 'none'")
        connection.execute("ALTER TABLE month_close DISABLE TRIGGER ALL")
        connection.execute("UPDATE month_close SET note = 'approved' WHERE month = '2026-02'")
    assert verified(books, key_file).is_signed is False


@pytest.mark.parametrize(
    "forgery",
    [
        "reason = 'none'",
        "created_by = 'ada'",
        "closed = jsonb_set(closed, '{2026-02}', '\"0\"')",
        "replaces = ''",
    ],
)
def test_a_declaration_cannot_be_forged(
    books: FreshDatabase, close: Close, key_file: Path, forgery: str
) -> None:
    close()
    key_file.unlink()
    declare(books, key_file)
    with psycopg.connect(books.dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE month_key DISABLE TRIGGER ALL")
        connection.execute(f"UPDATE month_key SET {forgery}".encode())
    assert verified(books, key_file).is_signed is False


def test_keys_are_changed_without_losing_the_one_before(
    books: FreshDatabase, close: Close, key_file: Path
) -> None:
    close()
    first = key_file.read_bytes()
    named = declare(books, key_file, "yearly change")
    assert key_file.read_bytes() == first
    beside = key_file.with_name(f"finance.key.{named}")
    assert beside.stat().st_mode & 0o777 == 0o600
    close("2026-03", LATER)
    for name in ("2026-02", "2026-03"):  # each by its own key
        assert verified(books, key_file, name).signature_by == month_keys.BY_OWN
        assert verified(books, key_file, name).holds
    with session_scope(books.engine) as session:
        assert session.scalars(select(MonthCloseRow.key_id).order_by(MonthCloseRow.number)).all() == [
            key_id(bytes.fromhex(first.decode().strip())),
            named,
        ]


def test_a_folder_that_cannot_be_listed_still_gives_its_key(tmp_path: Path) -> None:
    """As a secret is mounted: the file can be read by its name. Root reads everything, so a name that is
    no folder stands for it."""
    path = tmp_path / "nothing" / "finance.key"
    assert not path.parent.exists()
    assert month_keys.keys_at(path) == {}
    key = make_key(tmp_path / "finance.key")
    (tmp_path / f"finance.key.{'0' * 15}").write_text("not sixteen digits: no key of ours")
    (tmp_path / "finance.key.bak").write_text("nor is a copy by hand")
    assert month_keys.keys_at(tmp_path / "finance.key") == {key_id(key): key}


def test_a_key_put_in_place_by_hand_is_declared_not_replaced(
    books: FreshDatabase, close: Close, key_file: Path
) -> None:
    close()
    key_file.write_text("ab" * 32 + "\n")
    assert verified(books, key_file).is_signed is False  # nobody declared it
    assert declare(books, key_file) == key_id(bytes.fromhex("ab" * 32))
    assert verified(books, key_file).holds
    assert sorted(each.name for each in key_file.parent.iterdir()) == ["finance.key"]


def test_only_finance_declares_a_key_and_says_why(books: FreshDatabase, key_file: Path) -> None:
    with session_scope(books.engine) as session:
        for reason in ("", "  ", "x" * 301, "a\nb"):
            with pytest.raises(InvalidInput, match="reason of 1 to 300"):
                month_keys.new_key(session, key_file, reason=reason, actor=FAY, now=CLOSING_TIME)
        with pytest.raises(Forbidden):
            month_keys.new_key(
                session, key_file, reason="mine", actor=Actor("vic", Role.VIEWER, "page"), now=CLOSING_TIME
            )
        assert session.scalars(select(MonthKeyRow)).all() == []
    assert not key_file.exists()


def test_the_command_line_declares_and_verify_names_version_and_key(
    books: FreshDatabase,
    close: Close,
    key_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DATABASE_URL", books.dsn)
    monkeypatch.setenv("RHODECK_FINANCE_KEY_FILE", str(key_file))
    close()
    key_file.unlink()

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(("months", *arguments))
        assert isinstance(ended.value.code, int)
        return ended.value.code, capsys.readouterr().out

    code, said = run("new-key", "--reason", "disk of fin-1 died")
    assert (code, said[:34]) == (0, "months are signed with key " + key_id(read_key(key_file))[:7])
    code, said = run("verify", "2026-02")
    assert code == 0
    assert "signature  holds: as key" in said
    assert "seal       version 3: all that is kept of the month" in said
    assert "disk of fin-1 died" in said
