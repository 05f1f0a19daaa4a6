"""The schema and its connections, on a real server."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from control.database import check_declarations, downgrade, require_head, upgrade
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres


def test_the_migrated_schema_is_the_declared_one(database: FreshDatabase) -> None:
    check_declarations(database.dsn)
    require_head(database.engine)


def test_up_down_up_ends_where_it_began(empty_database: FreshDatabase) -> None:
    upgrade(empty_database.dsn)
    downgrade(empty_database.dsn, "base")
    with empty_database.engine.connect() as connection:
        left = connection.scalars(
            text(
                "SELECT relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace "
                "WHERE nspname = 'public' AND relkind IN ('r', 'p', 'v', 'S', 'm')"
            )
        ).all()
    assert left == ["alembic_version"]
    upgrade(empty_database.dsn)
    check_declarations(empty_database.dsn)
