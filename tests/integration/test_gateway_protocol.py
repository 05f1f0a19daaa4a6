"""Endpoints and endings beyond chat: responses, one model, tokenizing, redirects, refusals by engines."""

from __future__ import annotations

import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway_process import (
    MODEL,
    PROMPT_TOKENS,
    FakeEngine,
    GatewayProcess,
    assignment,
    chat,
    events,
    eventually,
)

SLASHED = "org/m-70b:lora"


@pytest.fixture(scope="module")
def engine() -> Generator[FakeEngine]:
    with FakeEngine("node-1").serving() as engine:
        yield engine


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Generator[GatewayProcess]:
    flags = ("--body-bytes", "100000")
    with GatewayProcess(tmp_path_factory.mktemp("protocol") / "gw", *flags).running() as gateway:
        yield gateway


@pytest.fixture
def gateway(shared: GatewayProcess, engine: FakeEngine) -> GatewayProcess:
    shared.begin_anew([engine])
    return shared


def is_idle(gateway: GatewayProcess) -> bool:
    status = gateway.status()
    return (status["in_flight_requests"], status["in_flight_tokens"]) == (0, 0)


def ask(text: str, **extra: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": text, "max_output_tokens": 64, **extra}


# -- responses --------------------------------------------------------------------------------------


def test_a_response_is_admitted_metered_and_relayed(gateway: GatewayProcess, engine: FakeEngine) -> None:
    items = [{"role": "user", "content": "tokens=5"}]
    with gateway.client() as client:
        response = client.post("/v1/responses", json=ask("") | {"input": items, "instructions": "be short"})
    assert response.status_code == 200
    assert response.json()["output"][0]["content"][0]["text"] == "word " * 5
    assert "stream_options" not in engine.served[0].body
    [record] = gateway.usage()
    assert (record["endpoint"], record["outcome"], record["exact"]) == ("responses", "completed", True)
    assert (record["prompt_tokens"], record["output_tokens"]) == (PROMPT_TOKENS, 5)
    assert record["cached_tokens"] == 2
    assert is_idle(gateway)


@pytest.mark.parametrize(
    ("fault", "outcome", "exact", "output_tokens", "last"),
    [
        ("none", "completed", True, 6, "response.completed"),
        ("incomplete", "completed", True, 6, "response.incomplete"),
        ("failed", "upstream_error", True, 6, "response.failed"),
        ("cut", "upstream_error", False, 3, "error"),
    ],
)
def test_a_stream_of_typed_events_passes_and_its_ending_is_told_right(
    gateway: GatewayProcess, fault: str, outcome: str, exact: bool, output_tokens: int, last: str
) -> None:
    with gateway.client() as client:
        response = client.post("/v1/responses", json=ask(f"tokens=6 fault={fault}", stream=True))
    assert response.status_code == 200
    seen = events(response.text)
    assert seen[0]["type"] == "response.created"
    deltas = [event["delta"] for event in seen if event["type"] == "response.output_text.delta"]
    assert len(deltas) == output_tokens
    assert seen[-1]["type"] == last
    [record] = gateway.usage()
    assert (record["outcome"], record["exact"]) == (outcome, exact)
    assert record["output_tokens"] == output_tokens
    assert is_idle(gateway)


def test_a_client_that_leaves_its_response_aborts_the_engine(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    body = ask("tokens=1000 pause=0.02", stream=True)
    with gateway.client() as client, client.stream("POST", "/v1/responses", json=body) as response:
        next(response.iter_raw())
    eventually(lambda: [served.ending for served in engine.served] == ["aborted"])
    eventually(lambda: is_idle(gateway) and len(gateway.usage()) == 1)
    assert gateway.usage()[0]["outcome"] == "client_gone"


def test_a_whole_answer_that_tells_of_a_failure_is_no_success(gateway: GatewayProcess) -> None:
    with gateway.client() as client:
        response = client.post("/v1/responses", json=ask("tokens=2 fault=failed"))
    assert response.json()["status"] == "failed"  # relayed as it is
    [record] = gateway.usage()
    assert record["outcome"] == "upstream_error"


@pytest.mark.parametrize("extra", [{"background": True}, {"previous_response_id": "resp_1"}, {"input": 3}])
def test_what_no_engine_can_serve_is_refused_by_name_and_burns_nothing(
    gateway: GatewayProcess, engine: FakeEngine, extra: dict[str, Any]
) -> None:
    with gateway.client() as client:
        response = client.post("/v1/responses", json=ask("tokens=1", **extra))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == next(iter(extra))
    assert engine.served == []
    assert gateway.metric("rhodeck_gateway_offered_total") == 0


# -- headers of clients ------------------------------------------------------------------------------

HOSTILE = {
    "system": {"X-Rhodeck-Tenant": "globex", "X-Rhodeck-Node": "node-9", "X-Rhodeck-Would-Refuse": "a"},
    "request id": {"X-Request-Id": "req-of-somebody-else", "X-Correlation-Id": "a"},
    "priority": {"X-Priority": "-99", "Priority": "u=0", "X-Vllm-Priority": "-99"},
    "engine's own": {"X-Data-Parallel-Rank": "3", "X-Session-Id": "s", "X-Prefiller-Host-Port": "h:1"},
    "hop by hop": {
        "Connection": "close, X-Secret-Hop",
        "X-Secret-Hop": "a",
        "Keep-Alive": "timeout=999",
        "TE": "trailers",
        "Upgrade": "h2c",
        "Proxy-Authorization": "Basic a",
        "Proxy-Connection": "keep-alive",
    },
    "forwarded": {
        "Forwarded": "for=127.0.0.1;host=admin",
        "X-Forwarded-For": "127.0.0.1",
        "X-Forwarded-Host": "admin",
        "X-Forwarded-Proto": "https",
        "X-Real-Ip": "127.0.0.1",
        "Via": "1.1 admin",
        "X-Original-Url": "/admin/status",
        "X-Http-Method-Override": "DELETE",
    },
    "cookies": {"Cookie": "session=1", "Origin": "http://evil.example", "Referer": "http://evil.example"},
    "openai's": {"OpenAI-Organization": "org", "X-Stainless-Retry-Count": "3", "Idempotency-Key": "k"},
}


@pytest.mark.parametrize("headers", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_header_of_a_client_reaches_an_engine(
    gateway: GatewayProcess, engine: FakeEngine, headers: dict[str, str]
) -> None:
    with gateway.client(**headers) as client:
        answer = client.post("/v1/chat/completions", json=chat())
    assert answer.status_code == 200
    [served] = engine.served
    ours = {"host", "accept-encoding", "user-agent", "content-type", "content-length", "x-request-id"}
    sent = {name.lower(): value for name, value in served.headers.items()}
    assert sent.keys() == ours
    assert sent["x-request-id"] == served.request_id == answer.headers["x-request-id"]
    assert sent["x-request-id"].startswith("req-")
    assert not set(headers.values()) & set(sent.values())
    [record] = gateway.usage()
    assert (record["tenant"], record["tier"]) == ("acme", "interactive")


# -- models and paths -------------------------------------------------------------------------------


def test_one_model_is_found_by_its_name_slashes_and_all(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    document = assignment([engine], generation=2)
    document["nodes"][0]["models"] = [MODEL, SLASHED]
    assert gateway.push(document).status_code == 200
    with gateway.client() as client:
        for path in (MODEL, SLASHED, SLASHED.replace("/", "%2F").replace(":", "%3A")):
            answer = client.get(f"/v1/models/{path}")
            assert answer.status_code == 200, path
            assert answer.json()["id"] in (MODEL, SLASHED)
        missing = client.get("/v1/models/nobodys-model")
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "model_not_found"
    assert httpx.get(f"{gateway.base_url}/v1/models/{MODEL}").status_code == 401


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/files", "/v1/moderations", "/invocations"])
def test_a_path_that_is_not_served_says_what_is(gateway: GatewayProcess, path: str) -> None:
    with gateway.client() as client:
        answer = client.post(path, json={"model": MODEL})
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["code"] == "no_such_path"
    assert path in error["message"]
    assert "POST /v1/chat/completions" in error["message"]


def test_answers_are_not_kept_and_that_is_said(gateway: GatewayProcess) -> None:
    with gateway.client() as client:
        for answer in (client.get("/v1/responses/resp_1"), client.post("/v1/responses/resp_1/cancel")):
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "not_kept"


def test_a_wrong_method_names_the_right_one(gateway: GatewayProcess) -> None:
    assert httpx.get(f"{gateway.base_url}/v1/responses").headers["allow"] == "POST"
    assert httpx.delete(f"{gateway.base_url}/tokenize").status_code == 405
    assert httpx.delete(f"{gateway.base_url}/v1/models/{MODEL}").headers["allow"] == "GET, HEAD"


# -- tokenizing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_tokenizing_is_passed_counted_and_neither_booked_nor_metered(
    gateway: GatewayProcess, engine: FakeEngine, prefix: str
) -> None:
    with gateway.client() as client:
        there = client.post(f"{prefix}/tokenize", json={"model": MODEL, "prompt": "hé"})
        assert there.json()["tokens"] == list("hé".encode())
        back = client.post(f"{prefix}/detokenize", json={"model": MODEL, "tokens": there.json()["tokens"]})
        assert back.json() == {"prompt": "hé"}
    assert [body["model"] for body in engine.tokenized] == [MODEL, MODEL]
    for path in ("tokenize", "detokenize"):
        labels = {"tenant": "acme", "path": path, "status": "2xx"}
        assert gateway.metric("rhodeck_gateway_passed_total", **labels) == 1
    assert gateway.usage() == []
    assert gateway.metric("rhodeck_gateway_offered_total") == 0
    assert gateway.metric("rhodeck_gateway_tokens_total") == 0
    assert is_idle(gateway)


def test_tokenizing_needs_a_key_a_model_and_a_bounded_body(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    body = {"model": MODEL, "prompt": "a"}
    assert httpx.post(f"{gateway.base_url}/tokenize", json=body).status_code == 401
    with gateway.client() as client:
        assert client.post("/tokenize", json={"prompt": "a"}).status_code == 400
        assert client.post("/tokenize", json=[1]).status_code == 400
        assert client.post("/tokenize", content=b"{").status_code == 400
        twice = b'{"model":"%s","model":"other","prompt":"a"}' % MODEL.encode()
        assert client.post("/tokenize", content=twice).status_code == 404
        assert client.post("/tokenize", json=body | {"model": "other"}).status_code == 404
        large = client.post("/tokenize", json=body | {"prompt": "a" * 200_000})
        assert large.status_code == 413
    assert engine.tokenized == []


def test_a_model_named_twice_reaches_the_tokenizer_once_and_a_tool_may_have_a_model(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"model": {"type": "string"}}}}
    with gateway.client() as client:
        body = {"model": MODEL, "prompt": "a", "tools": [tool]}
        assert client.post("/tokenize", json=body).status_code == 200
        for first in (b"model", b"mod\\u0065l"):
            twice = b'{"%s":"other","model":"%s","prompt":"a"}' % (first, MODEL.encode())
            assert client.post("/tokenize", content=twice).status_code == 200
        deep = b'{"model":"%s","prompt":"a","x":%s}' % (MODEL.encode(), b"[" * 300 + b"]" * 300)
        assert client.post("/tokenize", content=deep).status_code == 400
    assert engine.tokenized == [body, *[{"model": MODEL, "prompt": "a"}] * 2]


def test_a_tenant_tokenizes_as_often_at_once_as_it_may_have_requests(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    document = assignment([engine], generation=2)
    document["shares"]["acme"]["max_concurrent_requests"] = 2
    assert gateway.push(document).status_code == 200
    release = threading.Event()
    engine.holds_tokenize = release
    codes: list[int] = []

    def run(client: httpx.Client) -> None:
        codes.append(client.post("/tokenize", json={"model": MODEL, "prompt": "a"}).status_code)

    with gateway.client() as client, gateway.client("globex") as other:
        threads = [threading.Thread(target=run, args=(client,)) for _ in range(2)]
        try:
            for thread in threads:
                thread.start()
            eventually(lambda: len(engine.tokenized) == 2)
            refused = client.post("/tokenize", json={"model": MODEL, "prompt": "a"})
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "rejected_quota_requests"
            assert int(refused.headers["retry-after"]) >= 1
        finally:
            release.set()
            engine.holds_tokenize = None
            for thread in threads:
                thread.join()
        assert codes == [200, 200]
        assert other.post("/tokenize", json={"model": MODEL, "prompt": "a"}).status_code == 200
        assert client.post("/tokenize", json={"model": MODEL, "prompt": "a"}).status_code == 200


def test_a_gateway_that_drains_tokenizes_no_more(tmp_path: Path, engine: FakeEngine) -> None:
    with GatewayProcess(tmp_path / "gw").running() as gateway:
        gateway.push_and_open([engine])
        assert gateway.admin.post("/admin/drain").status_code == 200
        with gateway.client() as client:
            answer = client.post("/tokenize", json={"model": MODEL, "prompt": "a"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")


def test_no_node_to_tokenize_is_503(gateway: GatewayProcess, engine: FakeEngine) -> None:
    document = assignment([engine], generation=2)
    document["nodes"][0]["draining"] = True
    assert gateway.push(document).status_code == 200
    with gateway.client() as client:
        answer = client.post("/tokenize", json={"model": MODEL, "prompt": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_nodes")


# -- engines that send away, and that refuse ---------------------------------------------------------


@pytest.mark.parametrize("fault", ["302", "401"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_redirect_or_a_refusal_of_our_key_is_the_engines_failure(
    gateway: GatewayProcess, engine: FakeEngine, fault: str, stream: bool
) -> None:
    with gateway.client() as client:
        answer = client.post("/v1/chat/completions", json=chat(f"fault={fault}", stream=stream))
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "upstream_error"
    assert "location" not in answer.headers
    assert "www-authenticate" not in answer.headers
    assert len(engine.served) == 1  # not followed, though the address leads to this very engine
    [record] = gateway.usage()
    assert (record["outcome"], record["output_tokens"]) == ("upstream_error", 0)
    assert is_idle(gateway)


@pytest.mark.parametrize("stream", [False, True])
def test_an_engines_refusal_is_relayed_and_is_no_success(gateway: GatewayProcess, stream: bool) -> None:
    with gateway.client() as client:
        answer = client.post("/v1/chat/completions", json=chat("fault=400", stream=stream))
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "bad max_tokens"
        for _ in range(5):  # refusals are no fault of the node: it is not ejected for them
            assert client.post("/v1/chat/completions", json=chat("fault=400")).status_code == 400
        assert client.post("/v1/chat/completions", json=chat("tokens=1")).status_code == 200
    outcomes = [record["outcome"] for record in gateway.usage()]
    assert outcomes == ["engine_refused"] * 6 + ["completed"]
    told = gateway.admin.get(f"/admin/decisions/{answer.headers['x-request-id']}").json()["ending"]
    assert (told["outcome"], told["reason"]) == ("engine_refused", "The engine answered 400.")
    name = "rhodeck_gateway_requests_total"
    assert gateway.metric(name, outcome="completed") == 1
    assert gateway.metric(name, outcome="engine_refused") == 6
    assert is_idle(gateway)


@pytest.mark.parametrize(("status", "outcome"), [(299, "completed"), (460, "engine_refused")])
def test_a_status_that_no_standard_names_is_relayed(
    gateway: GatewayProcess, status: int, outcome: str
) -> None:
    with gateway.client() as client:
        answer = client.post("/v1/chat/completions", json=chat(f"fault={status}"))
    assert answer.status_code == status
    assert "usage" in answer.json()
    assert [record["outcome"] for record in gateway.usage()] == [outcome]
    assert is_idle(gateway)


@pytest.mark.parametrize("fault", ["late_cut", "late_stall"])
@pytest.mark.parametrize("hides_usage", [True, False])
def test_an_answer_that_said_all_is_complete_however_its_connection_ends(
    gateway: GatewayProcess, fault: str, hides_usage: bool
) -> None:
    options = {} if hides_usage else {"stream_options": {"include_usage": True}}
    body = chat(f"tokens=4 fault={fault}", stream=True, **options)
    with gateway.client() as client:
        answer = client.post("/v1/chat/completions", json=body)
    said = events(answer.text)
    assert said[-1] == "[DONE]"  # and no error behind it
    assert len(said) == (5 if hides_usage else 6)
    [record] = gateway.usage()
    assert (record["outcome"], record["output_tokens"], record["exact"]) == ("completed", 4, True)
    assert is_idle(gateway)
