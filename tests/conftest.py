"""Fixtures every test may use.

- `database`: a `FreshDatabase` (`.dsn`, `.engine`) on a real Postgres: migrated to head, empty, this
  test's own, dropped afterwards. A copy of a template, so it costs tens of milliseconds.
- `empty_database`: the same, but never migrated.
- `session`: a SQLAlchemy `Session` on `database`; commit yourself, it is closed afterwards.
- `database_factory`: for tests that need several databases (`with database_factory.fresh() as db`).
- `postgres_server`: the `EmbeddedPostgres` of this worker: one a pytest-xdist worker, started at the
  first use, fast instead of durable, stopped at the end (and by the kernel if the worker is killed).
- `clock`: a `ManualClock` at 2026-03-02 12:00 UTC, a Monday. It moves only when told.

Mark tests that use Postgres with `pytest.mark.postgres`.
"""

from __future__ import annotations

import os
import sys

# Tests run in plain Python, and so do the processes they start, unless they say otherwise: `tests/compiled`
# runs those that matter once more. Before anything of ours is imported.
os.environ.setdefault("RHODECK_COMPILED", "0")

from collections.abc import Generator
from datetime import UTC, datetime

import pytest
from hypothesis import settings
from sqlalchemy.orm import Session

from control.embedded import EmbeddedPostgres
from fleet.clock import ManualClock
from tests import suite
from tests.postgres_server import THROW_AWAY, DatabaseFactory, FreshDatabase, open_folder

# A slow machine is no counter-example.
settings.register_profile("rhodeck", deadline=None)
settings.load_profile("rhodeck")

suite.keep_files_in_memory()

MAIN = sys.modules["__main__"]


def pytest_configure(config: pytest.Config) -> None:
    suite.keep_order(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    suite.longest_first(config, items)


def pytest_collection_finish() -> None:
    suite.leave_out_of_collections()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name no test after bytes: packed ones hold the time they were packed at, and workers must agree."""
    return argname if isinstance(val, bytes) else None


def pytest_runtest_teardown() -> None:
    """Undo what AppTest of Streamlit does: a process spawned later would run the page as its main."""
    sys.modules["__main__"] = MAIN


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 3, 2, 12, 0, tzinfo=UTC))


@pytest.fixture(scope="session")
def postgres_server() -> Generator[EmbeddedPostgres]:
    with open_folder() as folder, EmbeddedPostgres(folder / "pg", options=THROW_AWAY) as server:
        yield server


@pytest.fixture(scope="session")
def database_factory(postgres_server: EmbeddedPostgres) -> DatabaseFactory:
    return DatabaseFactory(postgres_server)


@pytest.fixture
def database(database_factory: DatabaseFactory) -> Generator[FreshDatabase]:
    with database_factory.fresh() as fresh:
        yield fresh


@pytest.fixture
def empty_database(database_factory: DatabaseFactory) -> Generator[FreshDatabase]:
    with database_factory.fresh(migrated=False) as fresh:
        yield fresh


@pytest.fixture
def session(database: FreshDatabase) -> Generator[Session]:
    with Session(database.engine, expire_on_commit=False) as opened:
        yield opened
