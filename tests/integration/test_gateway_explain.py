"""What a gateway says about one request: against what the client sent and saw, and through the command."""

from __future__ import annotations

import re
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from control import cli, gateway_registry
from control.database import session_scope
from control.roles import Actor, Role
from fleet.clock import SystemClock
from fleet.decision import Decision, in_words
from fleet.outcomes import Outcome
from tests.gateway_process import (
    ADMIN_TOKEN,
    MODEL,
    PROMPT_TOKENS,
    FakeEngine,
    GatewayProcess,
    assignment,
    chat,
    eventually,
)
from tests.postgres_server import FreshDatabase


@pytest.fixture(scope="module")
def engine() -> Generator[FakeEngine]:
    with FakeEngine("node-1").serving() as engine:
        yield engine


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Generator[GatewayProcess]:
    with GatewayProcess(
        tmp_path_factory.mktemp("explain") / "gw", "--decisions", "20"
    ).running() as gateway:
        yield gateway


@pytest.fixture
def gateway(shared: GatewayProcess, engine: FakeEngine) -> GatewayProcess:
    shared.begin_anew([engine])
    return shared


def decision(gateway: GatewayProcess, request_id: str) -> Decision:
    response = gateway.admin.get(f"/admin/decisions/{request_id}")
    assert response.status_code == 200, response.text
    assert response.json()["schema"] == "rhodeck.decision/1"
    return Decision.model_validate_json(response.content)


def ask(gateway: GatewayProcess, body: dict[str, Any], **headers: str) -> tuple[int, str]:
    """Return status and request id of one call."""
    with gateway.client(**headers) as client:
        response = client.post("/v1/chat/completions", json=body)
    return response.status_code, response.headers["x-request-id"]


def test_a_served_request_says_what_was_booked_and_where_it_went(gateway: GatewayProcess):
    text = "tokens=5 " + "x" * 391  # 400 bytes: 100 tokens at 4 bytes a token, and 4 for the message
    status, request_id = ask(gateway, chat(text, max_tokens=64))
    assert status == 200
    said = decision(gateway, request_id)
    assert (said.tenant, said.key_id, said.endpoint, said.gateway) == ("acme", "k-acme", "chat", "gw-test")
    assert said.revision == 1
    assert said.estimate.prompt_bytes == 400
    assert said.estimate.prompt_tokens == pytest.approx(400 / said.estimate.bytes_per_token + 4, abs=1)
    assert (said.estimate.output_tokens, said.estimate.output_basis) == (64, "the client's max_tokens")
    assert said.wait is None
    [attempt] = said.attempts
    assert (attempt.node, attempt.candidates, attempt.failure) == ("node-1", 1, None)
    # 4,000 blocks of 16 tokens, 0.85 of them, less what this request holds
    assert attempt.room_tokens == int(64_000 * 0.85) - said.estimate.prompt_tokens - 64
    assert said.ending is not None
    assert said.ending.outcome is Outcome.COMPLETED
    assert (said.ending.prompt_tokens, said.ending.output_tokens) == (PROMPT_TOKENS, 5)
    assert said.ending.is_exact


@pytest.mark.parametrize(
    ("path", "given", "output", "basis"),
    [
        ("embeddings", {"input": "word"}, 0, "embeddings have none"),
        ("completions", {"prompt": "tokens=1"}, 16, "max_tokens, 16 where the client names none"),
        ("completions", {"prompt": "tokens=1", "max_tokens": 7}, 7, "the client's max_tokens"),
    ],
)
def test_a_bound_that_the_client_did_not_name_is_not_called_the_clients(
    gateway: GatewayProcess, path: str, given: dict[str, Any], output: int, basis: str
):
    with gateway.client() as client:
        answer = client.post(f"/v1/{path}", json={"model": MODEL, **given})
    assert answer.status_code == 200
    estimate = decision(gateway, answer.headers["x-request-id"]).estimate
    assert (estimate.output_tokens, estimate.output_basis) == (output, basis)


def test_a_refused_request_names_the_limit_with_its_numbers(gateway: GatewayProcess, engine: FakeEngine):
    document = assignment([engine], generation=2)
    document["shares"]["acme"]["max_in_flight_tokens"] = 10
    assert gateway.push(document).status_code == 200
    status, request_id = ask(gateway, chat(max_tokens=64))
    assert status == 429
    said = decision(gateway, request_id)
    assert said.attempts == ()
    assert said.ending is not None
    assert said.ending.outcome is Outcome.REJECTED_QUOTA_TOKENS
    limit = said.ending.limit
    assert limit is not None
    assert said.estimate.output_tokens is not None
    needed = said.estimate.prompt_tokens + said.estimate.output_tokens
    assert (limit.name, limit.quota, limit.needed) == ("in_flight_tokens", 10, needed)
    assert said.ending.retry_after_s is not None


def test_a_request_that_waited_says_behind_whom_and_one_that_waits_that_it_is_inside(
    gateway: GatewayProcess, engine: FakeEngine
):
    document = assignment([engine], generation=2)
    document["nodes"][0]["max_num_seqs"] = 1
    assert gateway.push(document).status_code == 200
    slow = chat("tokens=60 pause=0.05")
    with ThreadPoolExecutor(3) as pool:
        batch = {"X-Rhodeck-Tier": "batch"}
        running = pool.submit(ask, gateway, slow, **batch)
        eventually(lambda: gateway.status()["in_flight_requests"] == 1)
        first = pool.submit(ask, gateway, chat("tokens=1"), **batch)
        eventually(lambda: gateway.status()["queues"]["batch"]["requests"] == 1)
        second = pool.submit(ask, gateway, chat("tokens=1"), **batch)
        answers = [future.result(60) for future in (running, first, second)]
    assert [status for status, _ in answers] == [200, 200, 200]
    waits = [decision(gateway, request_id).wait for _, request_id in answers]
    assert waits[0] is None
    behind = [wait.ahead_requests for wait in waits[1:] if wait is not None]
    assert behind == [0, 1]
    assert all(wait is not None and wait.waited_s > 0 for wait in waits[1:])
    assert all(len(decision(gateway, request_id).attempts) == 1 for _, request_id in answers)


def test_what_waits_for_a_model_whose_last_node_a_push_takes_is_answered_and_says_why(
    gateway: GatewayProcess, engine: FakeEngine
):
    document = assignment([engine], generation=2)
    document["nodes"][0]["max_num_seqs"] = 1
    for tier in ("batch", "best_effort"):
        document["policy"]["tiers"][tier]["queue_timeout_s"] = 600  # longer than anybody waits here
    assert gateway.push(document).status_code == 200
    with ThreadPoolExecutor(2) as pool:
        batch = {"X-Rhodeck-Tier": "batch"}
        running = pool.submit(ask, gateway, chat("tokens=400 pause=0.05"), **batch)
        eventually(lambda: gateway.status()["in_flight_requests"] == 1)
        waiting = pool.submit(ask, gateway, chat("tokens=1"), **batch)
        eventually(lambda: gateway.status()["queues"]["batch"]["requests"] == 1)
        lost = document | {"generation": 3, "nodes": [document["nodes"][0] | {"models": ["other"]}]}
        assert gateway.push(lost).status_code == 200
        status, request_id = waiting.result(120)
        assert status == 503
        assert running.result(120)[0] == 200  # what runs goes on
    said = decision(gateway, request_id)
    assert said.wait is not None
    assert said.attempts == ()
    assert said.ending is not None
    assert said.ending.outcome is Outcome.NO_NODES
    assert "no node takes batch requests for m-70b" in said.ending.reason
    assert gateway.metric("rhodeck_gateway_requests_total", outcome="no_nodes", tier="batch") == 1
    with gateway.client() as client:  # nobody lists the model any more
        assert client.post("/v1/chat/completions", json=chat("tokens=1")).status_code == 404


def test_a_request_inside_has_no_ending_yet(gateway: GatewayProcess):
    with (
        gateway.client() as client,
        client.stream(
            "POST", "/v1/chat/completions", json=chat("tokens=40 pause=0.1", stream=True)
        ) as answer,
    ):
        said = decision(gateway, answer.headers["x-request-id"])
        assert said.ending is None
        assert [attempt.node for attempt in said.attempts] == ["node-1"]
    eventually(lambda: decision(gateway, said.request_id).ending is not None)
    ending = decision(gateway, said.request_id).ending
    assert ending is not None
    assert ending.outcome is Outcome.CLIENT_GONE


def test_a_node_that_failed_stands_beside_the_one_that_answered(gateway: GatewayProcess):
    status, request_id = ask(gateway, chat("fault=500"))
    assert status == 502
    said = decision(gateway, request_id)
    assert said.attempts
    assert all(attempt.failure == "it answered 500" for attempt in said.attempts)


def test_only_the_last_requests_are_kept_and_unknown_ids_are_404(gateway: GatewayProcess):
    _, oldest = ask(gateway, chat())
    for _ in range(20):
        _, newest = ask(gateway, chat())
    assert gateway.admin.get(f"/admin/decisions/{oldest}").status_code == 404
    assert decision(gateway, newest).request_id == newest
    for hostile in ("", "..%2f..%2fetc", "%00", "x" * 5_000):
        assert gateway.admin.get(f"/admin/decisions/{hostile}").status_code == 404


def test_nobody_reads_decisions_without_the_admin_token(gateway: GatewayProcess):
    _, request_id = ask(gateway, chat())
    with gateway.client() as client:  # with a tenant's key
        assert client.get(f"/admin/decisions/{request_id}").status_code == 401


@pytest.mark.postgres
def test_the_command_asks_every_gateway_and_says_it_in_words(
    gateway: GatewayProcess,
    database: FreshDatabase,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
):
    token = tmp_path / "token"
    token.write_text(ADMIN_TOKEN)
    monkeypatch.setenv("DATABASE_URL", database.dsn)
    monkeypatch.setenv("RHODECK_ADMIN_TOKEN_FILE", str(token))
    with session_scope(database.engine) as session:
        for name, url in (("gw-test", gateway.base_url), ("gw-gone", "http://127.0.0.1:9")):
            gateway_registry.add_gateway(
                session, name=name, url=url, actor=Actor("ann", Role.ADMIN, "cli"), now=SystemClock().now()
            )
    _, request_id = ask(gateway, chat("tokens=5"))
    assert run("gateway", "explain", request_id) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines() == in_words(decision(gateway, request_id))
    assert re.search(r"used 7 \+ 5 tokens, counted by the engine", printed)
    assert run("gateway", "explain", "req-unknown") == 1
    said = capsys.readouterr().err
    assert "gw-test: request 'req-unknown' is not among the last 20" in said
    assert "gw-gone: cannot be connected to" in said


def run(*arguments: str) -> int:
    """Return the exit code of `rhodeck` with these arguments."""
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    return int(ended.value.code or 0)
