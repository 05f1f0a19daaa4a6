"""Calls of `/v1/responses` are counted for what they ask, and their endings are told apart."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.calls import IMAGE_TOKENS, parse_call
from admission.endings import broken_stream, reader_of, whole_outcome
from admission.estimate import PromptEstimator
from admission.responses_call import ResponsesReader
from admission.sse import Usage, usage_in
from fleet.errors import InvalidInput
from fleet.outcomes import Outcome


def call(**extra: Any) -> Any:
    return parse_call("responses", json.dumps({"model": "m", "input": "hello", **extra}).encode())


def event(kind: str, end: str = "\n", **fields: Any) -> bytes:
    return f"event: {kind}{end}data: {json.dumps({'type': kind, **fields})}{end}{end}".encode()


def delta(text: str, end: str = "\n") -> bytes:
    return event("response.output_text.delta", end, delta=text)


USAGE = {"input_tokens": 7, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 3}}


def test_the_body_goes_on_byte_for_byte_without_options_the_endpoint_does_not_know() -> None:
    body = b'{ "model":"m", "input":"a",  "stream":true, "temperature":1.50 }'
    streamed = parse_call("responses", body)
    assert streamed.body(None) == body
    assert not streamed.hides_usage


def test_a_request_id_of_the_client_never_reaches_an_engine() -> None:
    sent = json.loads(call(request_id="resp_of_somebody_else", priority=-5).body(10))
    assert "request_id" not in sent
    assert sent["priority"] == 10


@pytest.mark.parametrize(("bound", "expected"), [({}, None), ({"max_output_tokens": 9}, 9)])
def test_the_bound_on_output_is_its_own_key(bound: dict[str, int], expected: int | None) -> None:
    assert call(max_tokens=5, **bound).max_tokens == expected


@pytest.mark.parametrize(
    "extra",
    [
        {"input": "x" * 40_000},
        {"instructions": "x" * 40_000},
        {"input": [{"role": "user", "content": "x" * 40_000}]},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x" * 40_000}]}]},
        {"input": [{"type": "function_call", "name": "f", "arguments": "x" * 40_000}]},
        {"input": [{"type": "function_call_output", "call_id": "c", "output": "x" * 40_000}]},
        {"input": [{"type": "function_call_output", "output": [{"text": "x" * 40_000}]}]},
        {"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "x" * 40_000}]}]},
        {"input": [{"type": "reasoning", "encrypted_content": "x" * 40_000}]},
        {"tools": [{"type": "function", "name": "f", "description": "x" * 40_000}]},
        {"text": {"format": {"type": "json_schema", "schema": {"title": "x" * 40_000}}}},
        {"previous_input_messages": [{"role": "user", "content": "x" * 40_000}]},
    ],
)  # fmt: skip
def test_no_part_of_a_prompt_goes_uncounted(extra: dict[str, Any]) -> None:
    # 40,000 bytes at 4 bytes a token are 10,000 tokens, wherever an engine finds them
    assert 10_000 <= PromptEstimator().tokens("m", call(**extra).prompt) < 10_100


def test_an_image_counts_as_an_image() -> None:
    parts = [{"type": "input_image", "image_url": "data:," + "A" * 400_000}]
    prompt = call(input=[{"role": "user", "content": parts}]).prompt
    assert PromptEstimator().tokens("m", prompt) == 4 + IMAGE_TOKENS


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [3]}, "input"),
        ({"instructions": 3}, "instructions"),
        ({"background": True}, "background"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
    ],
)
def test_what_cannot_be_counted_or_needs_kept_state_is_refused_by_name(
    extra: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        call(**extra)
    assert caught.value.field == field


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("kind", ["completed", "incomplete"])
@given(cuts=st.lists(st.integers(0, 10_000), max_size=30))
def test_a_stream_passes_as_it_is_and_its_end_is_seen_however_reads_fall(
    end: str, kind: str, cuts: list[int]
) -> None:
    said = 'event: response.failed\ndata: [DONE] "error"'  # a text that looks like an ending
    data = event("response.created", end, response={"usage": None}) + delta(said, end) + delta("b", end)
    data += event(f"response.{kind}", end, response={"status": kind, "usage": USAGE})
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    reader = ResponsesReader()
    seen = b"".join(reader.feed(data[a:b]) for a, b in itertools.pairwise(places)) + reader.rest()
    assert seen == data
    assert (reader.is_done, reader.has_error, reader.events) == (True, False, 2)
    assert reader.usage == Usage(7, 2, 3)


@pytest.mark.parametrize(
    "last",
    [
        event("response.failed", response={"status": "failed", "usage": USAGE}),
        event("error", message="overloaded"),
        b'data: {"error": {"message": "overloaded", "code": 503}}\n\n',
    ],
)
def test_a_failure_inside_the_stream_is_seen(last: bytes) -> None:
    reader = ResponsesReader()
    reader.feed(delta("a") + last)
    assert (reader.has_error, reader.is_done) == (True, False)


def test_a_stream_without_its_last_event_is_not_done() -> None:
    reader = ResponsesReader()
    reader.feed(delta("a") + delta("b") + event("response.completed", response={})[:-1])
    assert (reader.has_error, reader.is_done, reader.events) == (False, False, 2)


def test_an_endless_event_passes_unread() -> None:
    reader = ResponsesReader()
    assert sum(len(reader.feed(b"x" * 100_000)) for _ in range(60)) == 6_000_000
    assert not reader.is_done


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b'{"status":"completed","output":"failed"}', Outcome.COMPLETED),
        (200, b'{"status":"incomplete"}', Outcome.COMPLETED),
        (200, b'{"status":"failed"}', Outcome.UPSTREAM_ERROR),
        (200, b'{"failed"', Outcome.COMPLETED),
        (400, b"{}", Outcome.ENGINE_REFUSED),
    ],
)
def test_a_whole_answer_is_told_by_its_status(status: int, body: bytes, expected: Outcome) -> None:
    assert whole_outcome(call(), status, body) is expected


def test_usage_is_read_by_this_endpoints_names() -> None:
    assert usage_in(json.dumps({"usage": USAGE}).encode()) == Usage(7, 2, 3)
    assert usage_in(b'{"usage":{"input_tokens":-1}}') is None


def test_a_broken_stream_ends_with_a_typed_event_that_holds_the_reason() -> None:
    told = broken_stream(call(stream=True), Outcome.UPSTREAM_ERROR, "It broke off.")
    reader = reader_of(call(stream=True))
    reader.feed(told)
    assert reader.has_error
    kind, data = told.decode().strip().split("\n")
    document = json.loads(data.removeprefix("data: "))
    assert kind == "event: error"
    assert (document["type"], document["code"]) == ("error", "upstream_error")
    assert document["error"]["message"] == document["message"] == "It broke off."
