"""Runs migrations on the connection `control.database` hands in.

One transaction for all revisions, one process at a time. Prevents: four replicas that start together
and crash on each other's half-made tables.
"""

from alembic import context
from sqlalchemy import Connection, text

from control.database import MIGRATION_LOCK, MIGRATION_WAIT_S
from control.tables import Base


def partitions(connection: Connection) -> frozenset[str]:
    """Names of tables that are parts of another: made by the day, unknown to the declarations."""
    return frozenset(connection.scalars(text("SELECT relname FROM pg_class WHERE relispartition")))


def run() -> None:
    """Take the lock, then migrate or compare."""
    connection: Connection = context.config.attributes["connection"]
    connection.execute(text(f"SET LOCAL lock_timeout = '{MIGRATION_WAIT_S}s'"))
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
    connection.execute(text("SET LOCAL lock_timeout = '5s'"))
    parts = partitions(connection)
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        compare_type=True,
        compare_server_default=True,
        include_name=lambda name, kind, _parents: kind != "table" or name not in parts,
    )
    context.run_migrations()


run()
