"""A gateway of machine code answers, streams, books and refuses as a plain one: the same suites hold."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from compiled import load
from tests.compiled.conftest import RunSuite
from tests.gateway_process import GatewayProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SUITES = ("endings", "phases", "protocol", "pushes", "requests", "requeue", "tokens")


@pytest.mark.parametrize(
    ("switch", "way", "label"), [("1", load.COMPILED, "true"), ("0", load.SWITCHED_OFF, "false")]
)
def test_a_gateway_says_which_way_it_runs(
    compiled_build: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch: str, way: str, label: str
) -> None:
    monkeypatch.setenv(load.SWITCH, switch)
    with GatewayProcess(tmp_path / "gw").running() as gateway:
        labels = {"compiled": label, "python": platform.python_version()}
        assert gateway.metric("rhodeck_gateway_build_info", **labels) == 1
        lines = [json.loads(line) for line in gateway.log_path.read_text().splitlines()]
    assert [line["run"] for line in lines if line["message"] == "hot modules"] == [way]


def test_the_suites_of_the_gateway_hold(run_suite: RunSuite) -> None:
    suites = [f"tests/integration/test_gateway_{name}.py" for name in SUITES]
    assert run_suite(*suites, "tests/integration/test_http_server.py") >= 100
