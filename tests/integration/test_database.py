"""The schema, its migrations, and what a connection may do, on a real server."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

from control.database import (
    MIGRATION_LOCK,
    READER,
    Role,
    check_declarations,
    downgrade,
    make_engine,
    redacted,
    require_head,
    schema_revision,
    session_scope,
    upgrade,
)
from control.embedded import EmbeddedPostgres, socket_dsn
from control.tables import APPEND_ONLY, Base, PoolRow
from fleet.clock import ManualClock
from fleet.errors import Conflict, InvalidInput, Unavailable
from tests.postgres_server import DatabaseFactory, FreshDatabase

pytestmark = pytest.mark.postgres

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def pages(database: FreshDatabase) -> Generator[Engine]:
    engine = make_engine(database.dsn, role=Role.DASHBOARD)
    yield engine
    engine.dispose()


def sqlstate(error: pytest.ExceptionInfo[DBAPIError]) -> str:
    return getattr(error.value.orig, "sqlstate", "")


def test_the_migrated_schema_is_the_declared_one(database: FreshDatabase) -> None:
    check_declarations(database.dsn)
    require_head(database.engine)


def test_a_difference_between_schema_and_declarations_is_named(database: FreshDatabase) -> None:
    with database.engine.begin() as connection:
        connection.execute(text("ALTER TABLE pool ADD COLUMN surplus int"))
    with pytest.raises(Conflict, match="surplus"):
        check_declarations(database.dsn)


def test_partitions_made_by_the_day_are_no_difference(database: FreshDatabase) -> None:
    with database.engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE sample_d1 PARTITION OF sample "
                "FOR VALUES FROM ('2026-03-02') TO ('2026-03-03')"
            )
        )
    check_declarations(database.dsn)


def test_up_down_up_leaves_nothing_and_ends_where_it_began(empty_database: FreshDatabase) -> None:
    upgrade(empty_database.dsn)
    assert downgrade(empty_database.dsn, "base") == "base"
    with empty_database.engine.connect() as connection:
        tables = connection.scalars(
            text(
                "SELECT relname FROM pg_class "
                "WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'S', 'm')"
            )
        ).all()
        functions = connection.scalars(
            text("SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace")
        ).all()
    assert tables == ["alembic_version"]
    assert functions == []
    upgrade(empty_database.dsn)
    check_declarations(empty_database.dsn)


def test_each_revision_goes_down_one_step_and_up_again(empty_database: FreshDatabase) -> None:
    upgrade(empty_database.dsn)
    steps = 0
    with empty_database.engine.connect() as connection:
        current = schema_revision(connection)
    while current not in (None, "base"):
        below = downgrade(empty_database.dsn, "-1")
        assert upgrade(empty_database.dsn, "+1") == current
        current = downgrade(empty_database.dsn, "-1")
        assert current == below
        steps += 1
    assert steps == len(list((REPOSITORY / "migrations" / "versions").glob("[0-9]*.py")))


UPGRADER = "import sys; from control.database import upgrade; print(upgrade(sys.argv[1]))"


def test_four_processes_upgrade_at_once_and_none_fails(database_factory: DatabaseFactory) -> None:
    for _ in range(2):
        with database_factory.fresh(migrated=False) as fresh:
            # hold the lock until all four wait for it, so that they meet for certain
            with psycopg.connect(fresh.dsn) as gate, psycopg.connect(fresh.dsn, autocommit=True) as watch:
                gate.execute("SELECT pg_advisory_xact_lock(%s)", [MIGRATION_LOCK])
                processes = [
                    subprocess.Popen(
                        [sys.executable, "-c", UPGRADER, fresh.dsn],
                        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        text=True,
                    )
                    for _ in range(4)
                ]
                waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
                while watch.execute(waiting).fetchone() != (4,):
                    assert all(process.poll() is None for process in processes)
                    threading.Event().wait(0.02)
            ends = [process.communicate(timeout=120) for process in processes]
            assert [process.returncode for process in processes] == [0] * 4, ends
            assert len({output for output, _ in ends}) == 1
            check_declarations(fresh.dsn)


def test_an_upgrade_that_meets_a_locked_table_gives_up_and_changes_nothing(
    empty_database: FreshDatabase,
) -> None:
    upgrade(empty_database.dsn, "0006")
    with psycopg.connect(empty_database.dsn) as writer:
        writer.execute("LOCK TABLE audit IN ROW EXCLUSIVE MODE")
        with pytest.raises(Unavailable, match="lock") as caught:
            upgrade(empty_database.dsn)
        assert caught.value.retryable
    with empty_database.engine.connect() as connection:
        assert schema_revision(connection) == "0006"
    upgrade(empty_database.dsn)
    check_declarations(empty_database.dsn)


def test_a_schema_of_another_release_is_refused(database: FreshDatabase) -> None:
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(Conflict, match="9999"):
        require_head(database.engine)
    with pytest.raises(Conflict, match="9999"):
        upgrade(database.dsn)


def test_a_database_that_cannot_hold_every_name_is_refused(postgres_server: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE ascii_only ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(Conflict, match="SQL_ASCII") as caught:
        upgrade(socket_dsn(postgres_server.folder, database="ascii_only"))
    assert "UTF8" in caught.value.hint


def test_an_unmigrated_database_says_which_command_to_run(empty_database: FreshDatabase) -> None:
    with pytest.raises(Conflict) as caught:
        require_head(empty_database.engine)
    assert "rhodeck db upgrade" in caught.value.hint


def insert_one_row(connection: psycopg.Connection, table: str) -> None:
    """Insert a row that satisfies types and checks are switched off for; triggers fire all the same."""
    columns = connection.execute(
        "SELECT column_name, udt_name FROM information_schema.columns "
        "WHERE table_name = %s AND is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO'",
        [table],
    ).fetchall()
    checks = connection.execute(
        "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype IN ('c', 'f')", [table]
    ).fetchall()
    for (check,) in checks:
        connection.execute(f'ALTER TABLE {table} DROP CONSTRAINT "{check}"'.encode())
    samples = {"text": "'x'", "int8": "1", "int4": "1", "int2": "1", "float8": "1", "numeric": "1"}
    samples |= {"timestamptz": "now()", "jsonb": "'{}'", "_text": "'{}'", "bool": "true", "date": "now()"}
    samples |= {"bytea": "''"}
    names = ", ".join(name for name, _ in columns)
    if table == "month_line":  # only a closed month takes lines, as many as it was closed with
        insert_one_row(connection, "month_close")
    connection.execute(
        f"INSERT INTO {table} ({names}) VALUES ({', '.join(samples[t] for _, t in columns)})".encode()
    )


@pytest.mark.parametrize("table", APPEND_ONLY)
@pytest.mark.parametrize("change", ["UPDATE {} SET {} = {}", "DELETE FROM {}", "TRUNCATE {} CASCADE"])
def test_history_cannot_be_changed(database: FreshDatabase, table: str, change: str) -> None:
    column = Base.metadata.tables[table].primary_key.columns[0].name
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        insert_one_row(connection, table)
        with pytest.raises(psycopg.errors.RestrictViolation, match=f"{table} is append-only"):
            connection.execute(change.format(table, column, column).encode())
        assert connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone() == (1,)


def test_a_page_reads_but_cannot_write_even_if_it_lifts_its_own_setting(pages: Engine) -> None:
    with pages.connect() as connection:
        assert connection.scalar(text("SELECT current_user")) == READER
        assert connection.scalar(text("SELECT count(*) FROM pool")) == 0
    with pytest.raises(DBAPIError) as caught, pages.begin() as connection:
        connection.execute(text("DELETE FROM pool"))
    assert sqlstate(caught) == "25006"  # read_only_sql_transaction
    with pytest.raises(ProgrammingError) as denied, pages.begin() as connection:
        connection.execute(text("SET TRANSACTION READ WRITE; DELETE FROM pool"))
    assert sqlstate(denied) == "42501"  # insufficient_privilege


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("account", "password_hash"),
        ("sign_in", "token_sha256"),
        ("api_token", "sha256"),
        ("tenant_key", "sha256"),
        ("assignment", "document"),  # what a gateway needs to know its tenants' keys
    ],
)
def test_a_page_cannot_read_hashes_of_secrets(pages: Engine, table: str, column: str) -> None:
    assert column in Base.metadata.tables[table].columns
    with pytest.raises(ProgrammingError) as denied, pages.connect() as connection:
        connection.execute(text(f"SELECT {column} FROM {table}"))
    assert sqlstate(denied) == "42501"


def test_a_page_also_reads_partitions_and_tables_made_later(database: FreshDatabase, pages: Engine) -> None:
    with database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE later (n int)"))
    with pages.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM later")) == 0
        assert connection.scalar(text("SELECT count(*) FROM sample")) == 0


@pytest.mark.parametrize(
    ("role", "statement", "lock", "idle"),
    [
        (Role.CONTROL, "10s", "2s", "10s"),
        (Role.DASHBOARD, "3s", "2s", "10s"),
        (Role.MIGRATION, "0", "5s", "0"),
    ],
)
def test_each_role_has_its_limits_at_the_server(
    database: FreshDatabase, role: Role, statement: str, lock: str, idle: str
) -> None:
    engine = make_engine(database.dsn, role=role)
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "TimeZone")
    with engine.connect() as connection:
        shown = [connection.scalar(text(f"SHOW {name}")) for name in names]
        assert connection.scalar(text("SHOW application_name")) == f"rhodeck-{role}"
    engine.dispose()
    assert shown == [statement, lock, idle, "UTC"]


def test_a_slow_page_query_is_cut_off_by_the_server(pages: Engine) -> None:
    with pytest.raises(OperationalError) as caught, pages.connect() as connection:
        connection.execute(text("SELECT pg_sleep(60)"))
    assert sqlstate(caught) == "57014"  # query_canceled


def test_a_transaction_commits_whole_or_not_at_all(database: FreshDatabase, clock: ManualClock) -> None:
    with session_scope(database.engine) as session:
        session.add(PoolRow(name="kept", models=[], created_at=clock.now()))

    def break_off() -> None:
        with session_scope(database.engine) as session:
            session.add(PoolRow(name="dropped", models=[], created_at=clock.now()))
            session.flush()
            raise InterruptedError

    with pytest.raises(InterruptedError):
        break_off()
    with session_scope(database.engine) as session:
        assert session.scalars(text("SELECT name FROM pool")).all() == ["kept"]


def test_a_killed_connection_is_reported_as_unavailable_and_the_next_one_works(
    database: FreshDatabase,
) -> None:
    def lose_the_connection() -> None:
        with session_scope(database.engine) as session:
            pid = session.scalar(text("SELECT pg_backend_pid()"))
            with psycopg.connect(database.dsn) as killer:
                killer.execute("SELECT pg_terminate_backend(%s)", [pid])
            session.execute(text("SELECT 1"))

    with pytest.raises(Unavailable) as caught:
        lose_the_connection()
    assert caught.value.retryable
    with session_scope(database.engine) as session:
        assert session.scalar(text("SELECT 1")) == 1


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:canary-5a1@127.0.0.1:1/rhodeck",  # nothing listens on port 1
        "postgresql://u:canary-5a1@/rhodeck?host=/nonexistent",
        "postgresql://u:canary-5a1@name.invalid/rhodeck",
        "postgresql://127.0.0.1:1/rhodeck?user=u&password=canary-5a1",
    ],
)
def test_an_unreachable_server_says_where_and_what_to_check_without_the_password(dsn: str) -> None:
    for attempt in (lambda: upgrade(dsn), lambda: require_head(make_engine(dsn))):
        with pytest.raises(Unavailable) as caught:
            attempt()
        assert "DATABASE_URL" in caught.value.hint
        assert "canary" not in str(caught.value.as_dict())
    assert "canary" not in redacted(dsn)
    assert "***" in redacted(dsn)


def test_a_wrong_query_is_not_called_an_outage(database: FreshDatabase) -> None:
    with pytest.raises(ProgrammingError), session_scope(database.engine) as session:
        session.execute(text("SELECT * FROM no_such_table"))


@pytest.mark.parametrize(
    "dsn", ["", "rhodeck", "sqlite:///file", "postgresql://host", "postgresql://h:x/db"]
)
def test_what_is_no_postgres_url_is_refused(dsn: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make_engine(dsn)
    assert caught.value.field == "DATABASE_URL"


def test_the_short_scheme_some_hosts_hand_out_is_accepted() -> None:
    engine = make_engine("postgres://u@host/db")
    assert engine.url.drivername == "postgresql+psycopg"
