"""Traces go through the gateway to engines; spans reach a collector, which never holds anybody up."""

from __future__ import annotations

import re
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.gateway_process import (
    KEYS,
    MODEL,
    PROMPT_TOKENS,
    FakeEngine,
    GatewayProcess,
    assignment,
    chat,
    eventually,
)
from tests.span_collector import SpanCollector

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{SPAN}-01"
CANARY = "canary-5e1d"


@pytest.fixture(scope="module")
def engine() -> Generator[FakeEngine]:
    with FakeEngine("node-1").serving() as engine:
        yield engine


@pytest.fixture(scope="module")
def collector() -> Generator[SpanCollector]:
    with SpanCollector().serving() as collector:
        yield collector


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Generator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("plain") / "gw").running() as gateway:
        yield gateway


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory, collector: SpanCollector) -> Generator[GatewayProcess]:
    flags = ("--otlp-endpoint", collector.url)
    with GatewayProcess(tmp_path_factory.mktemp("traced") / "gw", *flags).running() as gateway:
        yield gateway


def asked(engine: FakeEngine) -> dict[str, str]:
    """Return the headers of the engine's last request, names in lower case."""
    return {name.lower(): value for name, value in engine.served[-1].headers.items()}


def total(gateway: GatewayProcess, result: str) -> float:
    """Return how many spans came to that, since the process began."""
    page = gateway.admin.get("/metrics").text
    found = re.search(rf'rhodeck_gateway_spans_total{{result="{result}"}} (\d+)', page)
    return float(found[1]) if found else 0.0


# -- passed on --------------------------------------------------------------------------------------


def test_a_trace_is_passed_on_and_none_is_made(plain: GatewayProcess, engine: FakeEngine) -> None:
    plain.begin_anew([engine])
    with plain.client() as client:
        headers = {"traceparent": SAMPLED, "tracestate": "vendor=1,other=2"}
        client.post("/v1/chat/completions", json=chat(), headers=headers)
        seen = asked(engine)
        assert (seen["traceparent"], seen["tracestate"]) == (SAMPLED, "vendor=1,other=2")
        client.post("/v1/chat/completions", json=chat())
        assert not {"traceparent", "tracestate"} & asked(engine).keys()


@pytest.mark.parametrize(
    "headers",
    [
        [("traceparent", "x" * 60)],
        [("traceparent", f"00-{'0' * 32}-{SPAN}-01")],
        [("traceparent", f"00-{TRACE}-{'0' * 16}-01")],
        [("traceparent", f"ff-{TRACE}-{SPAN}-01")],
        [("traceparent", f"00-{TRACE}-{SPAN}-01-more")],
        [("traceparent", SAMPLED.upper())],
        [("traceparent", SAMPLED), ("traceparent", SAMPLED)],
        [("tracestate", "vendor=1")],
    ],
)
def test_what_is_no_trace_is_dropped(
    plain: GatewayProcess, engine: FakeEngine, headers: list[tuple[str, str]]
) -> None:
    plain.begin_anew([engine])
    with plain.client() as client:
        assert client.post("/v1/chat/completions", json=chat(), headers=headers).status_code == 200
    assert not {"traceparent", "tracestate"} & asked(engine).keys()


def test_a_state_that_cannot_be_read_leaves_the_trace(plain: GatewayProcess, engine: FakeEngine) -> None:
    plain.begin_anew([engine])
    with plain.client() as client:
        headers = {"traceparent": SAMPLED, "tracestate": "a=" + "x" * 600}
        client.post("/v1/chat/completions", json=chat(), headers=headers)
    assert asked(engine)["traceparent"] == SAMPLED
    assert "tracestate" not in asked(engine)


# -- spans ------------------------------------------------------------------------------------------


def test_spans_tell_the_request_and_its_try_below_the_clients_span(
    traced: GatewayProcess, engine: FakeEngine, collector: SpanCollector
) -> None:
    traced.begin_anew([engine])
    begun_ns = time.time_ns()
    with traced.client() as client:
        headers = {"traceparent": SAMPLED, "tracestate": "vendor=1"}
        body = chat(f"{CANARY} tokens=5 pause=0.002", stream=True)
        answer = client.post("/v1/chat/completions", json=body, headers=headers)
    request_id = answer.headers["x-request-id"]
    eventually(lambda: {one.kind for one in collector.named(request_id)} >= {2, 3})
    spans = collector.named(request_id)
    whole, attempt = (next(one for one in spans if one.kind == kind) for kind in (2, 3))
    assert {one.trace_id for one in spans} == {TRACE}
    assert whole.parent_id == SPAN
    assert {one.parent_id for one in spans if one is not whole} == {whole.span_id}
    assert asked(engine)["traceparent"] == f"00-{TRACE}-{attempt.span_id}-01"
    assert asked(engine)["tracestate"] == "vendor=1"
    assert whole.name == attempt.name == f"chat {MODEL}"
    assert begun_ns <= whole.start_ns <= attempt.start_ns < attempt.end_ns <= time.time_ns()
    for one in (whole, attempt):
        assert one.attributes["gen_ai.operation.name"] == "chat"
        assert one.attributes["gen_ai.request.model"] == MODEL
        assert one.attributes["gen_ai.request.max_tokens"] == 64
        assert one.attributes["gen_ai.usage.input_tokens"] == PROMPT_TOKENS
        assert one.attributes["gen_ai.usage.output_tokens"] == 5
        assert one.attributes["rhodeck.outcome"] == "completed"
        assert not one.is_error
    assert attempt.attributes["rhodeck.node"] == "node-1"
    assert collector.paths[-1] == "/v1/traces"
    assert collector.resources[-1]["service.name"] == "rhodeck-gateway"
    assert collector.resources[-1]["service.instance.id"] == "gw-test"
    everything = b"".join(collector.bodies)
    assert request_id.encode() in everything
    assert CANARY.encode() not in everything
    assert KEYS["acme"].encode() not in everything
    assert engine.base_url.encode() not in everything


def test_a_trace_is_begun_where_the_client_has_none(
    traced: GatewayProcess, engine: FakeEngine, collector: SpanCollector
) -> None:
    traced.begin_anew([engine])
    with traced.client() as client:
        answer = client.post("/v1/completions", json={"model": MODEL, "prompt": "tokens=2"})
    request_id = answer.headers["x-request-id"]
    eventually(lambda: {one.kind for one in collector.named(request_id)} >= {2, 3})
    whole = collector.named(request_id)[0]
    assert whole.parent_id == ""
    assert whole.name == f"text_completion {MODEL}"
    assert asked(engine)["traceparent"].split("-")[1] == whole.trace_id
    assert int(asked(engine)["traceparent"][-2:], 16) & 1  # kept


def test_a_trace_its_client_does_not_keep_is_passed_on_without_spans(
    traced: GatewayProcess, engine: FakeEngine, collector: SpanCollector
) -> None:
    traced.begin_anew([engine])
    with traced.client() as client:
        headers = {"traceparent": SAMPLED[:-1] + "0"}
        unkept = client.post("/v1/chat/completions", json=chat(), headers=headers)
        _, trace, _, flags = asked(engine)["traceparent"].split("-")
        assert (trace, flags) == (TRACE, "00")
        kept = client.post("/v1/chat/completions", json=chat())
    eventually(lambda: collector.named(kept.headers["x-request-id"]))
    assert collector.named(unkept.headers["x-request-id"]) == []


def test_refusals_and_failures_are_errors_with_their_outcome(
    traced: GatewayProcess, engine: FakeEngine, collector: SpanCollector
) -> None:
    traced.begin_anew([engine])
    with traced.client() as client:
        failed = client.post("/v1/chat/completions", json=chat("fault=500"))
        document = assignment([engine], generation=2)
        document["shares"]["acme"]["max_concurrent_requests"] = 0
        assert traced.push(document).status_code == 200
        refused = client.post("/v1/chat/completions", json=chat())
    ids = [answer.headers["x-request-id"] for answer in (failed, refused)]
    eventually(lambda: all(any(one.kind == 2 for one in collector.named(one_id)) for one_id in ids))
    failure, refusal = (next(one for one in collector.named(one_id) if one.kind == 2) for one_id in ids)
    assert failure.is_error
    assert failure.attributes["error.type"] == "upstream_error"
    assert refusal.is_error
    assert refusal.attributes["error.type"] == "rejected_quota_requests"
    assert [one.kind for one in collector.named(ids[1]) if one.kind == 3] == []  # no engine saw it
    assert "gen_ai.usage.input_tokens" not in refusal.attributes  # not counted is not 0
    [attempt] = [one for one in collector.named(ids[0]) if one.kind == 3]
    assert attempt.is_error
    eventually(lambda: total(traced, "ended") == total(traced, "exported") > 0)


@pytest.mark.parametrize("answers", [None, 503, "gone"])
def test_a_collector_that_fails_touches_no_request_and_no_exit(
    tmp_path: Path, engine: FakeEngine, answers: int | str | None
) -> None:
    with SpanCollector(answers=answers if isinstance(answers, int) else None).serving() as collector:
        url = collector.url if answers != "gone" else "http://127.0.0.1:1"
        gateway = GatewayProcess(tmp_path / "gw", "--otlp-endpoint", url)
        with gateway.running():
            gateway.push_and_open([engine])
            with gateway.client() as client:
                codes = {client.post("/v1/chat/completions", json=chat()).status_code for _ in range(30)}
            assert codes == {200}
            eventually(lambda: gateway.metric("rhodeck_gateway_spans_total", result="ended") >= 60)
            gateway.terminate()
            assert gateway.process.wait(60) == 0
        assert "Traceback" not in gateway.log_path.read_text()
