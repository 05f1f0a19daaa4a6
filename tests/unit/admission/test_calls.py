"""Calls are counted for what they ask, and go on unchanged but for what policy says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from admission.calls import IMAGE_TOKENS, parse_call
from admission.estimate import PRIOR_BYTES_PER_TOKEN, PromptEstimator
from fleet.errors import InvalidInput


def chat(**extra: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hello"}], **extra}


def raw(document: object) -> bytes:
    return json.dumps(document).encode()


def test_a_plain_body_goes_on_byte_for_byte() -> None:
    body = b'{ "model":"m",  "messages":[{"role":"user","content":"\\u00e9 1.50"}], "temperature":1.50 }'
    assert parse_call("chat", body).body(priority=None) == body


def test_what_policy_adds_leaves_the_rest_byte_for_byte() -> None:
    body = (
        b'{ "model":"m", "messages":[{"role":"user","content":"a"}],"stream":true, "temperature":1.50 }\n'
    )
    sent = parse_call("chat", body).body(priority=10)
    assert sent.startswith(body.rstrip()[:-1])
    assert json.loads(sent)["priority"] == 10
    assert json.loads(sent)["stream_options"] == {"include_usage": True}
    assert json.loads(sent)["temperature"] == 1.5


@pytest.mark.parametrize("key", ["priority", "priorit\\u0079"])
def test_a_priority_of_the_client_never_passes(key: str) -> None:
    body = (
        b'{"model":"m","%s":-99,"messages":[{"role":"user","content":"a"}],"priority":-98}' % key.encode()
    )
    assert "priority" not in json.loads(parse_call("chat", body).body(priority=None))
    sent = parse_call("chat", body).body(priority=20)
    assert json.loads(sent)["priority"] == 20
    assert sent.count(b"priority") == 1


def test_doubled_keys_reach_the_engine_as_they_were_counted() -> None:
    body = b'{"model":"m","max_tokens":100000,"messages":[{"role":"user","content":"a"}],"max_tokens":5}'
    call = parse_call("chat", body)
    assert call.max_tokens == 5
    assert call.body(priority=None).count(b'"max_tokens"') == 1
    assert json.loads(call.body(priority=None))["max_tokens"] == 5


@pytest.mark.parametrize("turns", [1, 100])  # few quotes and many are looked through in different ways
def test_a_key_that_stands_once_leaves_the_body_as_it_is_and_one_doubled_does_not(turns: int) -> None:
    said = b",".join([b'{"role":"user","content":"say \\"n\\""}'] * turns)
    once = b'{"model":"m","max_tokens":5,"messages":[%s]}' % said
    assert parse_call("chat", once).body(None) == once
    for doubled in (b'"model":"x",', b'"max_tokens":100000,', b'"messages":[],'):
        sent = parse_call("chat", once.replace(b"{", b"{" + doubled, 1)).body(None)
        assert json.loads(sent) == json.loads(once)
        assert b"100000" not in sent
        assert sent.count(b'"model"') == sent.count(b'"messages"') == 1


@pytest.mark.parametrize("hidden", [b"max_tok\\u0065ns", b"\\u006dax_tokens", b"max\\u005Ftokens"])
def test_a_key_doubled_by_an_escaped_one_is_no_other(hidden: bytes) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"a"}],"%s":100000,"max_tokens":5}' % hidden
    sent = parse_call("chat", body).body(priority=None)
    assert b"100000" not in sent
    assert json.loads(sent)["max_tokens"] == 5
    plain = b'{"model":"m","messages":[{"role":"user","content":"caf\\u00e9"}]}'
    assert parse_call("chat", plain).body(priority=None) == plain  # it has to be


def test_usage_options_of_the_client_are_kept() -> None:
    options = {"include_usage": False, "continuous_usage_stats": False}
    call = parse_call("chat", raw(chat(stream=True, stream_options=options)))
    assert call.hides_usage
    sent = json.loads(call.body(priority=None))["stream_options"]
    assert sent == {"include_usage": True, "continuous_usage_stats": False}


def test_usage_asked_for_by_us_alone_is_in_no_event_that_the_client_sees() -> None:
    # vLLM counts in each event when both are true; a client that asks for the second alone gets none.
    for options, expected in (
        ({"continuous_usage_stats": True}, False),
        ({"continuous_usage_stats": True, "include_usage": False}, False),
        ({"continuous_usage_stats": True, "include_usage": True}, True),
    ):
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        call = parse_call("chat", json.dumps(body | {"stream_options": options}).encode())
        sent = json.loads(call.body(None))["stream_options"]
        assert sent == {"include_usage": True, "continuous_usage_stats": expected}


@pytest.mark.parametrize(
    ("endpoint", "document", "expected"),
    [
        ("chat", chat(), None),
        ("chat", chat(max_tokens=10), 10),
        ("chat", chat(max_tokens=10, max_completion_tokens=7), 7),
        ("chat", chat(max_tokens=10, n=3), 30),
        ("completions", {"model": "m", "prompt": "a"}, 16),
        ("completions", {"model": "m", "prompt": ["a", "b"], "max_tokens": 5, "n": 2}, 20),
        ("completions", {"model": "m", "prompt": "a", "max_tokens": 5, "best_of": 4}, 20),
        ("embeddings", {"model": "m", "input": "a"}, 0),
    ],
)
def test_the_bound_on_output_covers_every_choice(
    endpoint: str, document: object, expected: int | None
) -> None:
    assert parse_call(endpoint, raw(document)).max_tokens == expected


def test_token_ids_are_counted_exactly() -> None:
    estimator = PromptEstimator()
    for prompt, tokens in (([1] * 9, 9), ([[1, 2], [3]], 3)):
        call = parse_call("completions", raw({"model": "m", "prompt": prompt}))
        assert estimator.tokens("m", call.prompt) == tokens


def test_an_image_counts_as_an_image_not_by_its_bytes() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400_000}}
    content = [{"type": "text", "text": "abcd"}, image]
    call = parse_call("chat", raw({"model": "m", "messages": [{"role": "user", "content": content}]}))
    assert PromptEstimator().tokens("m", call.prompt) == 1 + 4 + IMAGE_TOKENS


@pytest.mark.parametrize(
    ("message", "extra"),
    [
        ({"tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "x" * 40_000}}]}, {}),
        ({"reasoning_content": "x" * 40_000}, {}),
        ({"content": [{"type": "refusal", "refusal": "x" * 40_000}]}, {}),
        ({"content": [{"type": "thinking", "thinking": "x" * 40_000}]}, {}),
        ({}, {"documents": [{"text": "x" * 40_000}]}),
        ({}, {"chat_template": "x" * 40_000}),
        ({}, {"tools": [{"type": "function", "function": {"description": "x" * 40_000}}]}),
    ],
)
def test_no_part_of_a_prompt_goes_uncounted(message: dict[str, Any], extra: dict[str, Any]) -> None:
    # 40,000 bytes at 4 bytes a token are 10,000 tokens, wherever a chat template finds them
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, **message}]
    call = parse_call("chat", raw({"model": "m", "messages": messages, **extra}))
    assert 10_000 <= PromptEstimator().tokens("m", call.prompt) < 10_100


def test_the_estimate_converges_to_what_engines_count() -> None:
    estimator = PromptEstimator()
    call = parse_call("completions", raw({"model": "m", "prompt": "x" * 3_000}))
    assert estimator.tokens("m", call.prompt) == 3_000 / PRIOR_BYTES_PER_TOKEN
    for _ in range(500):
        estimator.learn("m", call.prompt, 1_500)  # two bytes a token
    assert estimator.tokens("m", call.prompt) == pytest.approx(1_500, rel=0.01)
    assert estimator.tokens("other", call.prompt) == 750


def test_the_error_of_the_estimate_is_that_before_each_count_was_known() -> None:
    estimator = PromptEstimator()
    assert estimator.learned() == {}  # not known is not 0
    call = parse_call("completions", raw({"model": "m", "prompt": "x" * 8_000}))
    estimator.learn("m", call.prompt, 4_000)
    # 2,000 were expected at 4 bytes a token; the prior weighs 2,000 tokens, so (8,000 + 8,000) / 6,000
    ratio, error = estimator.learned()["m"]
    assert ratio == pytest.approx(16_000 / 6_000)
    assert error == pytest.approx(2_000 / 4_000)
    estimator.learn("m", call.prompt, 4_000)  # now 3,000 were expected
    assert estimator.learned()["m"][1] == pytest.approx((2_000 + 1_000) / 8_000, rel=0.001)
    ids = parse_call("completions", raw({"model": "m", "prompt": [1] * 500}))
    estimator.learn("m", ids.prompt, 500)  # exact: says nothing about the estimate
    assert estimator.learned()["m"][1] == pytest.approx((2_000 + 1_000) / 8_000, rel=0.001)


@pytest.mark.parametrize(
    ("endpoint", "document", "field"),
    [
        ("chat", [], None),
        ("chat", {}, "model"),
        ("chat", {"model": 3}, "model"),
        ("chat", {"model": "m"}, "messages"),
        ("chat", {"model": "m", "messages": []}, "messages"),
        ("chat", {"model": "m", "messages": ["a"]}, "messages"),
        ("chat", chat(stream="yes"), "stream"),
        ("chat", chat(stream_options=3), "stream_options"),
        ("chat", chat(max_tokens=-1), "max_tokens"),
        ("chat", chat(max_tokens=1.5), "max_tokens"),
        ("chat", chat(max_tokens=True), "max_tokens"),
        ("chat", chat(n=10**6), "n"),
        ("completions", {"model": "m"}, "prompt"),
        ("completions", {"model": "m", "prompt": [1.5]}, "prompt"),
        ("embeddings", {"model": "m", "input": {}}, "input"),
    ],
)
def test_a_call_that_cannot_be_counted_is_refused_by_name(
    endpoint: str, document: object, field: str | None
) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_call(endpoint, raw(document))
    assert caught.value.field == field


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"model":NaN}'])
def test_a_body_that_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        parse_call("chat", body)


@pytest.mark.parametrize(("opens", "closes"), [(b'{"a":', b"}"), (b"[", b"]")])
@pytest.mark.parametrize("levels", [7, 8, 9, 200])
def test_a_body_that_nests_by_one_bracket_only_is_read_as_it_is(
    opens: bytes, closes: bytes, levels: int
) -> None:
    inner = opens * levels + b"1" + closes * levels
    body = b'{"model":"m","prompt":"a","x":' + inner + b"}"
    assert parse_call("completions", body).body(None) == body
    deep = b'{"model":"m","prompt":"a","x":' + opens * 400 + b"1" + closes * 400 + b"}"
    with pytest.raises(InvalidInput, match="nested"):
        parse_call("completions", deep)


@pytest.mark.parametrize("endpoint", ["chat", "completions", "embeddings", "responses"])
@pytest.mark.parametrize("key", ["tools", "x", "stream_options", "vllm_xargs"])
def test_a_body_nested_deeper_than_it_can_be_written_is_refused(endpoint: str, key: str) -> None:
    inner = b'{"a":' * 400 + b"1" + b"}" * 400
    body = b'{"model":"m","messages":[{"role":"user","content":"a"}],"prompt":"a","input":"a","%s":%s}'
    with pytest.raises(InvalidInput, match="nested"):
        parse_call(endpoint, body % (key.encode(), inner))
    flat = b"[" + b",".join([b"{}"] * 2_000) + b"]"  # many, not deep
    value = b"{}" if key == "stream_options" else flat
    assert parse_call(endpoint, body % (key.encode(), value)).body(3)


@pytest.mark.parametrize(
    "messages",
    [
        b'[{"role":"user","content":"a"},{"role":"user","content":%s}]',
        b'[{"role":"user","content":"a","name":%s}]',
        b'[{"role":"user","content":"a"},%s]',
    ],
)
def test_a_message_nested_deeper_than_it_can_be_written_is_refused(messages: bytes) -> None:
    inner = b'[{"text":' * 200 + b"1" + b"}]" * 200
    with pytest.raises(InvalidInput, match=r"nested|messages"):
        parse_call("chat", b'{"model":"m","messages":%s}' % (messages % inner))
    call = parse_call("chat", b'{"model":"m","messages":%s}' % (messages % b'{"text":"b"}'))
    assert call.body(3).endswith(b',"priority":3}')


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "output", "a"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)
KEYS = ["messages", "prompt", "input", "instructions", "tools", "n", "best_of", "max_tokens", "stream",
        "stream_options", "max_output_tokens", "background", "text", "priority", "request_id",
        "vllm_xargs", "kv_transfer_params", "chat_template_kwargs"]  # fmt: skip


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    endpoint=st.sampled_from(["chat", "completions", "embeddings", "responses"]),
    body=st.dictionaries(st.sampled_from(KEYS), JSON_VALUES, max_size=5),
    base=st.sampled_from([{}, {"messages": [{"role": "user"}]}, {"prompt": "a", "input": "a"}]),
)
def test_whatever_a_client_sends_is_counted_or_refused_and_what_is_counted_can_be_sent(
    endpoint: str, body: dict[str, Any], base: dict[str, Any]
) -> None:
    try:
        call = parse_call(endpoint, json.dumps({"model": "m"} | body | base).encode())
    except InvalidInput:
        return
    assert PromptEstimator().tokens("m", call.prompt) >= 0
    for priority in (None, 5):
        sent = json.loads(call.body(priority))
        assert sent.get("priority") == priority
        assert "request_id" not in sent


def test_tokens_of_an_event_are_learned_by_model_and_endpoint() -> None:
    estimator = PromptEstimator()
    assert estimator.tokens_per_event("m", "chat") == 1.0
    for _ in range(50):  # one token an event: exactly what is believed before
        estimator.learn_events("m", "chat", output_tokens=30, events=30)
    assert estimator.tokens_per_event("m", "chat") == 1.0
    for _ in range(200):  # the first two carry a token each, the other 28 ten
        estimator.learn_events("m", "completions", output_tokens=282, events=30)
    assert estimator.tokens_per_event("m", "completions") == pytest.approx(10, rel=0.01)
    estimator.learn_events("m", "responses", output_tokens=7, events=2)  # tells nothing
    assert estimator.tokens_per_event("m", "responses") == 1.0
