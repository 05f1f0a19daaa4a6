"""Engines that fall silent or never end: cut off at the limit that is set, told, booked, and freed."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from tests.gateway_process import MODEL, FakeEngine, GatewayProcess, chat, events, eventually


@pytest.fixture(scope="module")
def engine() -> Generator[FakeEngine]:
    with FakeEngine("node-1").serving() as engine:
        yield engine


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Generator[GatewayProcess]:
    flags = ("--first-byte-timeout-s", "5", "--idle-timeout-s", "3", "--total-timeout-s", "8")
    with GatewayProcess(tmp_path_factory.mktemp("idle") / "gw", *flags).running() as gateway:
        yield gateway


@pytest.fixture
def gateway(shared: GatewayProcess, engine: FakeEngine) -> GatewayProcess:
    shared.begin_anew([engine])
    return shared


def ended(gateway: GatewayProcess, engine: FakeEngine) -> dict[str, Any]:
    """Return the one record once nothing is held and the engine was told to stop."""
    eventually(lambda: [served.ending for served in engine.served] == ["aborted"])

    def is_idle() -> bool:
        status = gateway.status()
        return (status["in_flight_requests"], status["in_flight_tokens"]) == (0, 0)

    eventually(lambda: is_idle() and len(gateway.usage()) == 1)
    return gateway.usage()[0]


def test_an_engine_that_never_begins_is_504_and_is_aborted(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    with gateway.client() as client:
        answer = client.post("/v1/chat/completions", json=chat("tokens=2 pause=3600"))
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "upstream_timeout"
    record = ended(gateway, engine)
    assert (record["outcome"], record["exact"]) == ("upstream_timeout", False)
    assert len(engine.served) == 1  # no other node gets it: its time is over


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_stream_that_falls_silent_ends_with_an_error_event(
    gateway: GatewayProcess, engine: FakeEngine, path: str
) -> None:
    text = "tokens=8 fault=stall"
    body = chat(text) if "chat" in path else {"model": MODEL, "input": text, "max_output_tokens": 64}
    with gateway.client() as client:
        answer = client.post(path, json=body | {"stream": True})
    assert answer.status_code == 200
    seen = events(answer.text)
    assert "[DONE]" not in seen
    assert seen[-1]["error"]["code"] == "upstream_timeout"
    record = ended(gateway, engine)
    assert (record["outcome"], record["exact"]) == ("upstream_timeout", False)
    assert record["output_tokens"] == 4  # the half that came


def test_a_stream_that_never_ends_is_cut_at_the_total_limit(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    with gateway.client() as client:
        body = chat("tokens=1000000 pause=0.05", stream=True, max_tokens=4_000)
        seen = events(client.post("/v1/chat/completions", json=body).text)
    assert seen[-1]["error"]["code"] == "upstream_timeout"
    assert len(seen) < 4_000  # nobody is booked more than it asked for at most
    record = ended(gateway, engine)
    assert record["outcome"] == "upstream_timeout"
    assert record["output_tokens"] == len(seen) - 1
