"""Throw-away Postgres servers for tests: where they may live, and fresh databases in milliseconds.

Owns the temp folders of servers. Prevents: a test database in a folder the server's account cannot
enter when the tests run as root, and tests that share rows.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from sqlalchemy import Engine

from control.database import make_engine, upgrade
from control.embedded import EmbeddedPostgres, socket_dsn

#: Fast instead of durable: the databases die with the test run.
THROW_AWAY = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "60",
    "autovacuum": "off",
}
TEMPLATE = "rhodeck_template"


@contextmanager
def open_folder() -> Generator[Path]:
    """A temporary folder other accounts may pass through (root's server runs under another one)."""
    with tempfile.TemporaryDirectory(prefix="rhodeck-test-") as name:
        os.chmod(name, 0o711)
        yield Path(name)


@dataclass(frozen=True)
class FreshDatabase:
    """A migrated, empty database of one test. `engine` has the role "control"."""

    dsn: str
    engine: Engine


class DatabaseFactory:
    """Copies of one migrated template in one throw-away server."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self._server = server
        self._numbers = itertools.count(1)
        self._run(f"CREATE DATABASE {TEMPLATE}")
        upgrade(self.dsn(TEMPLATE))

    def dsn(self, database: str) -> str:
        return socket_dsn(self._server.folder, database=database)

    @contextmanager
    def fresh(self, *, migrated: bool = True) -> Generator[FreshDatabase]:
        """Create a database, yield it, drop it whatever still is connected."""
        name = f"test_{next(self._numbers)}"
        self._run(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE if migrated else 'template0'}")
        engine = make_engine(self.dsn(name))
        try:
            yield FreshDatabase(self.dsn(name), engine)
        finally:
            engine.dispose()
            self._run(f"DROP DATABASE {name} WITH (FORCE)")

    def _run(self, statement: str) -> None:
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[arg-type]
