"""`rhodeck discovery` and `rhodeck nodes` as a person types them, on a real database."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from control.cli_discovery import discovery
from control.cli_nodes import nodes, pools
from fleet.errors import FleetError
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

Run = Callable[..., str]


@pytest.fixture
def run(database: FreshDatabase, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("DATABASE_URL", database.dsn)
    commands = {"discovery": discovery, "nodes": nodes, "pools": pools}

    def call(line: str) -> str:
        name, *arguments = line.split()
        result: Result = CliRunner().invoke(commands[name], arguments)
        if isinstance(result.exception, FleetError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    call("pools add p --model m")
    return call


def test_a_source_is_checked_without_changing_anything(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    targets = ["10.0.0.1:8000", "10.0.0.1:8001", "169.254.169.254:80"]
    path.write_text(json.dumps([{"targets": targets}]))
    run(f"discovery add rack file --pool p --path {path} --gpu-port 9400 --interval 5")
    said = run("discovery check rack")
    assert "10.0.0.1  http://10.0.0.1:8000/metrics  and 1 further engines" in said
    assert "left out: 169.254.169.254:80" in said
    assert "1 node: 1 new" in said
    assert "no nodes" in run("nodes list")
    found = json.loads(run("discovery check rack --json"))
    assert (found["add"], found["nodes"][0]["gpu_url"]) == (["10.0.0.1"], "http://10.0.0.1:9400/metrics")
    assert "not asked yet" in run("discovery list")
    (row,) = json.loads(run("discovery list --json"))
    assert (row["found"], row["tried_at"]) == (None, None)


def test_mistakes_are_refused_and_nothing_is_written(run: Run) -> None:
    for line, words in (
        ("discovery add s file --pool p --path relative", "absolute path"),
        ("discovery add s file --pool nowhere --path /a", "no pool"),
        ("discovery add s file --pool p", "path"),
        ("discovery add s dns_srv --pool p --service _a._b.c --name-rule {x}", "naming rule"),
        ("discovery check nobody", "no source"),
        ("discovery remove nobody", "no source"),
    ):
        with pytest.raises(FleetError, match=words):
            run(line)
    with pytest.raises(AssertionError, match="--url does not belong to file"):
        run("discovery add s file --pool p --path /a --url http://a/")
    assert "no sources" in run("discovery list")


def test_pages_of_a_node_are_added_shown_and_removed(run: Run) -> None:
    run("nodes add n http://10.0.0.1:8000 --pool p")
    run("nodes add-page n http://10.0.0.1:8001 --kind engine")
    run("nodes add-page n http://10.0.0.1:9400/metrics --kind gpu --host gpu-1 --gpu GPU-1")
    shown = run("nodes show n")
    assert "engine  http://10.0.0.1:8001/metrics  not asked yet" in shown
    assert "gpu  http://10.0.0.1:9400/metrics  not asked yet" in shown
    for line, words in (
        ("nodes add-page n http://10.0.0.1:8000/metrics --kind engine", "already"),
        ("nodes add-page n http://169.254.169.254/metrics --kind gpu", "not allowed"),
        ("nodes add-page nobody http://10.0.0.1:9 --kind gpu", "no node"),
        ("nodes show nobody", "no node"),
    ):
        with pytest.raises(FleetError, match=words):
            run(line)
    run("nodes remove-page n http://10.0.0.1:8001")
    assert "8001" not in run("nodes show n")
    assert len(json.loads(run("nodes show n --json"))["pages"]) == 2


def test_states_of_a_node_by_the_command_line(run: Run) -> None:
    run("nodes add n http://10.0.0.1:8000 --pool p")
    for verb, state in (("drain", "draining"), ("rest", "maintenance"), ("resume", "active")):
        run(f"nodes {verb} n --note fan")
        assert json.loads(run("nodes list --json"))[0]["state"] == state
    run("nodes remove n")
    assert "no nodes" in run("nodes list")
