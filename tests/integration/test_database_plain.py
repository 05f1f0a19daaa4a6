"""A Postgres that is not ours: over TCP, with a password, with a login that owns one database only.

Runs on the wheel's programs, and on each of Debian's Postgres versions that is installed.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError

from control.backup import backup, restore
from control.database import (
    READER,
    Role,
    check_declarations,
    downgrade,
    make_engine,
    require_head,
    session_scope,
    upgrade,
)
from control.tables import PoolRow
from fleet.clock import ManualClock
from tests.postgres_server import plain_server, program_sets

pytestmark = pytest.mark.postgres

PASSWORD = "operator's secret, 100%"


@pytest.fixture(scope="module", params=program_sets(), ids=lambda programs: programs.parent.name)
def administrator(request: pytest.FixtureRequest) -> Generator[str]:
    with plain_server(request.param) as dsn:
        yield dsn


def owned_database(administrator: str, login: str, *, rights: LiteralString) -> str:
    """Create `login` with `rights` and a database of its own; return the URL."""
    with psycopg.connect(administrator, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE ROLE {} LOGIN {} PASSWORD {}").format(
                sql.Identifier(login), sql.SQL(rights), sql.Literal(PASSWORD)
            )
        )
        connection.execute(sql.SQL("CREATE DATABASE {0} OWNER {0}").format(sql.Identifier(login)))
    url = make_url(administrator).set(username=login, password=PASSWORD, database=login)
    return url.render_as_string(hide_password=False)


@pytest.mark.parametrize("rights", ["CREATEROLE", "NOCREATEROLE"])
def test_migrate_write_read_and_protect_with_an_ordinary_login(
    administrator: str, clock: ManualClock, rights: LiteralString, tmp_path: Path
) -> None:
    login = f"login_{rights.lower()}"
    dsn = owned_database(administrator, login, rights=rights)
    upgrade(dsn)
    check_declarations(dsn)
    control, pages = make_engine(dsn), make_engine(dsn, role=Role.DASHBOARD)
    require_head(control)
    with session_scope(control) as session:
        session.add(PoolRow(name="h100", models=["m"], created_at=clock.now()))
        session.execute(
            text(
                "INSERT INTO price (price_class, usd_per_node_hour, effective_from, source, created_by, "
                "created_at) VALUES ('spot', 12.5, now(), 'list', 'me', now())"
            )
        )
    with pages.connect() as connection:
        assert connection.scalar(text("SELECT current_user")) == (
            READER if rights == "CREATEROLE" else login
        )
        assert connection.scalar(text("SELECT name FROM pool")) == "h100"
    with pytest.raises(DBAPIError) as caught, pages.begin() as connection:
        connection.execute(text("DELETE FROM pool"))
    assert getattr(caught.value.orig, "sqlstate", "") == "25006"  # read_only_sql_transaction
    with pytest.raises(DBAPIError, match="append-only"), control.begin() as connection:
        connection.execute(text("UPDATE price SET usd_per_node_hour = 0"))

    # the same through a backup, into a database of another login
    file = tmp_path / f"{login}.dump"
    backup(dsn, file)
    other = owned_database(administrator, f"{login}_2", rights=rights)
    restore(other, file)
    check_declarations(other)
    restored = make_engine(other, role=Role.DASHBOARD)
    with session_scope(restored) as session:
        assert session.scalar(text("SELECT usd_per_node_hour FROM price")) == pytest.approx(12.5)
    for opened in (control, pages, restored):
        opened.dispose()
    for each in (dsn, other):
        downgrade(each, "base")
    with psycopg.connect(administrator, autocommit=True) as connection:
        for name in (login, f"{login}_2"):
            connection.execute(f"DROP DATABASE {name}".encode())
        connection.execute(f"DROP ROLE IF EXISTS {READER}")
