"""Pages run by Streamlit's AppTest against a real Postgres.

- `show(page, ...)`: run the frame and one page; the database is the test's own.
- `as_role(role)`: sign in as the account of that role, with a real sign-in.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from control import accounts
from control.database import session_scope
from dashboard import access, data_studies
from dashboard.deps import deps
from fleet.clock import SystemClock
from tests.pages.fleet_rows import PASSWORD, add_accounts, fill
from tests.postgres_server import FreshDatabase

FRAME = Path(__file__).resolve().parents[2] / "dashboard" / "frame.py"
#: Nothing listens here: port 1 of this machine.
NOWHERE = "postgresql://nobody@127.0.0.1:1/rhodeck"

Show = Callable[..., AppTest]


def use(monkeypatch: pytest.MonkeyPatch, dsn: str) -> None:
    """Point the pages at a database, forgetting what they knew of another."""
    forget()
    for name in [name for name in os.environ if name.startswith("RHODECK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DATABASE_URL", dsn)


def forget() -> None:
    """Close the pages' connections and empty their caches."""
    data_studies.desk().close()
    try:
        of = deps()
    finally:
        st.cache_data.clear()
        st.cache_resource.clear()
    of.reader.dispose()
    of.writer.dispose()


def run_page(page: str, query: dict[str, str]) -> AppTest:
    """Run one page inside its frame."""
    at = AppTest.from_file(str(FRAME), default_timeout=120)
    for name, value in query.items():
        at.query_params[name] = value
    at.run()
    if page != "fleet":
        at.switch_page(f"app_pages/{page}.py")
        at.run()
    return at


@pytest.fixture
def dashboard_on(database: FreshDatabase, monkeypatch: pytest.MonkeyPatch) -> Generator[FreshDatabase]:
    monkeypatch.setenv("DATABASE_URL", database.dsn)
    use(monkeypatch, database.dsn)
    yield database
    forget()


@pytest.fixture
def empty(dashboard_on: FreshDatabase) -> Show:
    return lambda page, **query: run_page(page, query)


@pytest.fixture
def full(dashboard_on: FreshDatabase) -> Show:
    with session_scope(dashboard_on.engine) as session:
        fill(session, SystemClock().now())
    return lambda page, **query: run_page(page, query)


@pytest.fixture
def stale(dashboard_on: FreshDatabase) -> Show:
    """Everything stopped two minutes ago: nodes are stale, not yet silent."""
    with session_scope(dashboard_on.engine) as session:
        fill(session, SystemClock().now(), age_s=120)
    return lambda page, **query: run_page(page, query)


@pytest.fixture
def failing(dashboard_on: FreshDatabase, monkeypatch: pytest.MonkeyPatch) -> Show:
    """The database never answered."""
    use(monkeypatch, NOWHERE)
    return lambda page, **query: run_page(page, query)


@pytest.fixture
def as_role(
    full: Show, dashboard_on: FreshDatabase, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    """Sign in as the account named like its role; the pages see its token as the browser's cookie."""

    def sign_in(role: str) -> str:
        monkeypatch.setenv("RHODECK_SIGN_IN", "local")
        forget()
        with session_scope(dashboard_on.engine) as session:
            add_accounts(session, SystemClock().now())
            token = accounts.sign_in(session, name=role, password=PASSWORD, now=SystemClock().now())
        assert token is not None
        monkeypatch.setattr(access, "presented_token", lambda: token)
        return token

    return sign_in


def text(at: AppTest) -> str:
    """Return every sentence on the page, without Markdown's escapes."""
    kinds = ("title", "subheader", "markdown", "caption", "error", "warning", "info", "success")
    parts = [element.value for kind in kinds for element in getattr(at, kind)]
    return "\n".join(str(part) for part in parts).replace("\\", "")


def column(at: AppTest, name: str) -> list[object]:
    """Return a column of the first table that has it."""
    frame = next(d.value for d in at.dataframe if name in d.value.columns)
    return [None if value != value else value for value in frame[name].tolist()]
