"""`rhodeck flow` says whether queues are in balance, and its exit code lets a script act on it."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from click.testing import CliRunner

from control.cli_flow import flow
from control.database import session_scope
from fleet.clock import SystemClock
from tests.pages.flow_rows import add_flow
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres


def run(database: FreshDatabase, monkeypatch: pytest.MonkeyPatch, *arguments: str):
    monkeypatch.setenv("DATABASE_URL", database.dsn)
    return CliRunner().invoke(flow, list(arguments))


def test_a_queue_that_left_equilibrium_is_exit_code_1_with_its_evidence(
    database: FreshDatabase, monkeypatch: pytest.MonkeyPatch
):
    with session_scope(database.engine) as session:
        add_flow(session, SystemClock().now())
    found = run(database, monkeypatch)
    assert found.exit_code == 1, found.output
    assert "fleet" in found.output
    assert "unstable" in found.output
    assert "doubles every 15 minutes" in found.output
    said = json.loads(run(database, monkeypatch, "--json").output)
    assert [queue["is_stale"] for queue in said["queues"]] == [False, False]
    assert said["queues"][0]["p99_doubling_min"] == pytest.approx(15, rel=0.05)
    assert said["queues"][0]["detail"]["stages"][0]["name"] == "decode"


def test_nothing_and_old_states_are_unknown(database: FreshDatabase, monkeypatch: pytest.MonkeyPatch):
    found = run(database, monkeypatch)
    assert (found.exit_code, found.output.strip()) == (2, "no round has been judged yet")
    with session_scope(database.engine) as session:
        add_flow(session, SystemClock().now() - timedelta(minutes=10))
    old = run(database, monkeypatch)
    assert old.exit_code == 2
    assert "last known" in old.output
