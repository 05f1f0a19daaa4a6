"""What `rhodeck status` learns from a controller while Postgres is gone: rounds held back, rounds lost."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from control.cli_control import serve_own_pages
from control.cli_status import status
from control.controller_page import Waiting, read_waiting, waiting_rounds
from control.jobs import Loop, Step
from control.own_metrics import ControlMetrics
from fleet.clock import ManualClock


async def nothing() -> str:
    return ""


def holding(rounds: int, size: int, lost: int) -> ControlMetrics:
    metrics = ControlMetrics()
    metrics.rounds_buffered.set(rounds)
    metrics.buffer_bytes.set(size)
    if lost:
        metrics.rounds_dropped.labels(why="buffer_full").inc(lost)
    return metrics


def test_the_rounds_a_controller_holds_are_read_from_its_own_page() -> None:
    page = holding(37, 3 * 1_048_576, 2).page().decode()
    assert read_waiting(page, "h:1") == Waiting("h:1", 37, 3 * 1_048_576, 2)
    assert (
        str(read_waiting(page, "h:1"))
        == "h:1 holds 37 rounds (3.0 MiB) for Postgres, 2 lost since it started"
    )
    calm = read_waiting(holding(0, 0, 0).page().decode(), "h:1")
    assert (calm.rounds, calm.dropped) == (0, 0)


@pytest.mark.parametrize("page", ["", "<html>no metrics</html>", "other_metric 4\n", "{\n"])
def test_another_servers_page_is_no_zero(page: str) -> None:
    found = read_waiting(page, "h:1")
    assert (found.rounds, found.bytes, found.dropped) == (None, None, None)
    assert str(found) == "h:1 is no controller's page"


def test_status_says_what_is_held_back_while_the_database_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> str:
        metrics = holding(12, 1_048_576, 0)
        steps = (Step("lease", 5.0, 15.0, nothing),)
        loop = Loop(ManualClock(datetime(2026, 3, 1, tzinfo=UTC)), steps, metrics, lambda _when: True)
        server = await serve_own_pages(metrics, loop, "127.0.0.1", 0)
        try:
            monkeypatch.setenv("RHODECK_CONTROL_PORT", str(server.addresses[0][1]))
            monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/rhodeck")
            result = await asyncio.to_thread(CliRunner().invoke, status, ["--json"])
        finally:
            await server.cleanup()
        assert result.exit_code == 2
        assert "holds 12 rounds (1.0 MiB) for Postgres, none lost" in result.stderr
        return result.stdout

    said = json.loads(asyncio.run(scenario()))
    assert said["healthy"] is None
    assert (said["controller"]["rounds"], said["controller"]["dropped"]) == (12, 0)


def test_where_no_controller_answers_nothing_is_said_to_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waiting_rounds("127.0.0.1", 0) is None
    monkeypatch.setenv("RHODECK_CONTROL_PORT", "1")
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/rhodeck")
    result = CliRunner().invoke(status, [])
    assert result.exit_code == 2
    assert "whether rounds are kept is not known" in result.stderr
