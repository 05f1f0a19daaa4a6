"""The gateway against real engines over real sockets: what clients see and what is booked."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from fleet.messages import UsageRecord
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


@pytest.fixture(scope="module")
def engine() -> Generator[FakeEngine]:
    with FakeEngine("node-1").serving() as engine:
        yield engine


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Generator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("requests") / "gw").running() as gateway:
        yield gateway


@pytest.fixture
def gateway(shared: GatewayProcess, engine: FakeEngine) -> GatewayProcess:
    shared.begin_anew([engine])
    return shared


def is_idle(gateway: GatewayProcess) -> bool:
    status = gateway.status()
    return status["in_flight_requests"] == 0 and status["in_flight_tokens"] == 0


def test_each_record_says_just_what_its_message_has(gateway: GatewayProcess, engine: FakeEngine) -> None:
    # records are written without the model: that must not tell on them
    with gateway.client() as client:
        for body in (
            chat("tokens=2"),
            chat("tokens=2", stream=True),
            chat("tokens=2 fault=no_usage", stream=True),
            chat("fault=400"),
            chat("fault=500"),
        ):
            client.post("/v1/chat/completions", json=body)
    records = gateway.usage()
    assert len(records) == 5
    for record in records:
        assert UsageRecord.model_validate(record, strict=False).model_dump(mode="json") == record


def test_whole_answer_passes_through_and_is_booked(gateway: GatewayProcess, engine: FakeEngine) -> None:
    with gateway.client() as client:
        response = client.post("/v1/chat/completions", json=chat("tokens=5"))
    assert response.status_code == 200
    assert response.json()["choices"][0]["message"]["content"] == "word " * 5
    [record] = gateway.usage()
    assert record["tenant"] == "acme"
    assert record["key_id"] == "k-acme"
    assert record["outcome"] == "completed"
    assert (record["prompt_tokens"], record["output_tokens"]) == (PROMPT_TOKENS, 5)
    assert record["cached_tokens"] == 2
    assert record["exact"] is True
    assert record["node"] == "node-1"
    assert record["pool"] == "main"
    assert is_idle(gateway)
    assert gateway.metric("rhodeck_gateway_tokens_total", tenant="acme", kind="output") == 5


def test_stream_hides_the_usage_chunk_it_asked_for(gateway: GatewayProcess, engine: FakeEngine) -> None:
    with gateway.client() as client:
        response = client.post("/v1/chat/completions", json=chat("tokens=4", stream=True))
    assert engine.served[0].body["stream_options"] == {"include_usage": True}
    seen = events(response.text)
    assert [event["choices"][0]["delta"]["content"] for event in seen[:-1]] == ["w0", "w1", "w2", "w3"]
    assert seen[-1] == "[DONE]"
    [record] = gateway.usage()
    assert record["output_tokens"] == 4
    assert record["exact"] is True
    assert record["ttft_s"] is not None


def test_stream_shows_the_usage_chunk_to_a_client_that_asked(gateway: GatewayProcess) -> None:
    body = chat("tokens=2", stream=True, stream_options={"include_usage": True})
    with gateway.client() as client:
        seen = events(client.post("/v1/chat/completions", json=body).text)
    assert seen[-2]["usage"]["completion_tokens"] == 2


def test_models_are_those_of_the_assignment(gateway: GatewayProcess) -> None:
    with gateway.client() as client:
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == [MODEL]


def test_embeddings_pass(gateway: GatewayProcess) -> None:
    with gateway.client() as client:
        response = client.post("/v1/embeddings", json={"model": MODEL, "input": ["a", "b"]})
    assert response.status_code == 200
    [record] = gateway.usage()
    assert record["endpoint"] == "embeddings"
    assert (record["prompt_tokens"], record["output_tokens"]) == (PROMPT_TOKENS, 0)


def test_unknown_key_is_401_and_reaches_no_engine(gateway: GatewayProcess, engine: FakeEngine) -> None:
    with gateway.client() as client:
        response = client.post(
            "/v1/chat/completions", json=chat(), headers={"Authorization": "Bearer rk-key-nobody-00000000"}
        )
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert engine.served == []
    assert gateway.metric("rhodeck_gateway_auth_failures_total") == 1
    assert gateway.metric("rhodeck_gateway_offered_total") == 0


def test_killed_engine_ends_the_stream_with_an_error_and_no_lease(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    with gateway.client() as client:
        response = client.post("/v1/chat/completions", json=chat("tokens=10 fault=cut", stream=True))
    seen = events(response.text)
    assert response.status_code == 200
    assert seen[-1]["error"]["code"] == "upstream_error"
    assert len(seen) == 6  # five tokens of ten, then the error; no end mark
    [record] = gateway.usage()
    assert record["outcome"] == "upstream_error"
    assert record["exact"] is False
    assert record["output_tokens"] == 5
    eventually(lambda: is_idle(gateway))


def test_zero_quota_is_429_with_the_limit_and_burns_nothing(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    document = assignment([engine], generation=2)
    document["shares"]["acme"]["max_concurrent_requests"] = 0
    assert gateway.push(document).status_code == 200
    with gateway.client() as client:
        response = client.post("/v1/chat/completions", json=chat())
    assert response.status_code == 429
    error = response.json()["error"]
    assert error["code"] == "rejected_quota_requests"
    assert error["limit"] == 0
    assert int(response.headers["retry-after"]) >= 1
    assert engine.served == []
    assert gateway.usage() == []
    assert is_idle(gateway)


def test_what_a_client_sends_again_after_a_refusal_is_counted_as_repeated(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    document = assignment([engine], generation=2)
    document["shares"]["acme"]["max_concurrent_requests"] = 0
    assert gateway.push(document).status_code == 200
    with gateway.client() as client:
        for _ in range(3):  # one request, tried three times
            assert client.post("/v1/chat/completions", json=chat("again tokens=3")).status_code == 429
        assert client.post("/v1/chat/completions", json=chat("new tokens=3")).status_code == 429
    assert gateway.metric("rhodeck_gateway_offered_total", tenant="acme") == 4
    assert gateway.metric("rhodeck_gateway_repeated_total", tenant="acme") == 2
    assert gateway.metric("rhodeck_gateway_oldest_wait_seconds", tier="interactive") == 0


def test_a_limit_in_shadow_lets_requests_through_and_says_what_it_would_have_refused(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    document = assignment([engine], generation=2)
    document["shares"]["acme"]["max_concurrent_requests"] = 0
    document["policy"]["limiters"] = {"concurrent_requests": "shadow"}
    assert gateway.push(document).status_code == 200
    with gateway.client() as client:
        whole = client.post("/v1/chat/completions", json=chat())
        streamed = client.post("/v1/chat/completions", json=chat(stream=True))
    for response in (whole, streamed):
        assert response.status_code == 200
        assert response.headers["x-rhodeck-would-refuse"] == "concurrent_requests"
    counted = gateway.metric(
        "rhodeck_gateway_would_refuse_total", tenant="acme", limiter="concurrent_requests"
    )
    assert counted == 2


def test_every_answer_carries_the_requests_id(gateway: GatewayProcess, engine: FakeEngine) -> None:
    document = assignment([engine], generation=2)
    document["shares"]["acme"]["max_concurrent_requests"] = 0
    with gateway.client() as client:
        served = client.post("/v1/chat/completions", json=chat())
        assert gateway.push(document).status_code == 200
        refused = client.post("/v1/chat/completions", json=chat())
    ids = [response.headers["x-request-id"] for response in (served, refused)]
    assert [response.status_code for response in (served, refused)] == [200, 429]
    assert len(set(ids)) == 2
    assert [record["request_id"] for record in gateway.usage()] == ids[:1]


def test_what_was_booked_stands_beside_what_was_used(gateway: GatewayProcess) -> None:
    with gateway.client() as client:
        for _ in range(2):
            assert (
                client.post("/v1/chat/completions", json=chat("tokens=5", max_tokens=4)).status_code == 200
            )
        assert client.post("/v1/chat/completions", json=chat("tokens=5", max_tokens=64)).status_code == 200
    prefix, of = "rhodeck_gateway_", {"endpoint": "chat", "kind": "output"}
    assert gateway.metric(prefix + "predicted_tokens_total", **of) == 4 + 4 + 64
    assert gateway.metric(prefix + "actual_tokens_total", **of) == 3 * 5
    assert gateway.metric(prefix + "prediction_error_tokens_total", **of) == 1 + 1 + 59
    assert gateway.metric(prefix + "outgrown_total", endpoint="chat") == 2
    assert (
        gateway.metric(prefix + "actual_tokens_total", endpoint="chat", kind="prompt") == 3 * PROMPT_TOKENS
    )


def test_bounds_and_switches_are_exported_and_what_is_unknown_is_absent(gateway: GatewayProcess) -> None:
    page = gateway.admin.get("/metrics").text
    assert gateway.metric("rhodeck_gateway_wait_bound_seconds", tier="interactive") == 1.5
    assert gateway.metric("rhodeck_gateway_wait_bound_seconds", tier="batch") == 30
    assert gateway.metric("rhodeck_gateway_limiter", mode="enforce") == 7
    assert gateway.metric("rhodeck_gateway_node_kv_tokens", kind="budget") == int(4_000 * 16 * 0.85)
    assert "rhodeck_gateway_tenant_jain_index{" not in page
