"""The official `openai` client works against a gateway unmodified: calls, streams, errors, retries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from tests.gateway_process import KEYS, MODEL, FakeEngine, GatewayProcess, assignment, eventually

PATIENT_S = 60.0


@pytest.fixture(scope="module")
def engine() -> Generator[FakeEngine]:
    with FakeEngine("n1").serving() as engine:
        yield engine


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Generator[GatewayProcess]:
    folder: Path = tmp_path_factory.mktemp("openai")
    with GatewayProcess(folder / "gw").running() as process:
        yield process


@pytest.fixture
def gateway(process: GatewayProcess, engine: FakeEngine) -> GatewayProcess:
    process.begin_anew([engine])
    return process


def client(gateway: GatewayProcess, tenant: str = "acme", **options: Any) -> openai.OpenAI:
    options = {"max_retries": 0, "timeout": PATIENT_S, **options}
    return openai.OpenAI(base_url=f"{gateway.base_url}/v1", api_key=KEYS[tenant], **options)


def says(text: str) -> list[ChatCompletionUserMessageParam]:
    return [{"role": "user", "content": text}]


def settled(gateway: GatewayProcess) -> bool:
    status = gateway.status()
    return (status["in_flight_requests"], status["in_flight_tokens"]) == (0, 0)


def test_a_chat_is_answered_and_its_usage_is_the_engines(gateway: GatewayProcess) -> None:
    with client(gateway) as ai:
        answer = ai.chat.completions.create(model=MODEL, messages=says("tokens=4"), max_tokens=20)
    assert answer.choices[0].message.content == "word word word word "
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    (record,) = eventually(gateway.usage)
    assert (record["output_tokens"], record["exact"]) == (4, True)


def test_models_completions_and_embeddings(gateway: GatewayProcess, engine: FakeEngine) -> None:
    with client(gateway) as ai:
        assert [model.id for model in ai.models.list()] == [MODEL]
        assert ai.completions.create(model=MODEL, prompt="tokens=2", max_tokens=9).usage is not None
        embedded = ai.embeddings.create(model=MODEL, input="a few words", encoding_format="float")
    assert embedded.usage.prompt_tokens == engine_prompt_tokens(engine)


def engine_prompt_tokens(engine: FakeEngine) -> int:
    return 7 if engine.served else 0  # what it counts for any prompt


@pytest.mark.parametrize("wants_usage", [False, True])
def test_a_stream_comes_piece_by_piece_and_usage_only_if_asked_for(
    gateway: GatewayProcess, *, wants_usage: bool
) -> None:
    options: Any = {"stream_options": {"include_usage": True}} if wants_usage else {}
    with client(gateway) as ai:
        stream = ai.chat.completions.create(
            model=MODEL, messages=says("tokens=5"), max_tokens=20, stream=True, **options
        )
        chunks = list(stream)
    words = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert words == ["w0", "w1", "w2", "w3", "w4"]
    usages = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage is not None]
    assert usages == ([5] if wants_usage else [])
    assert eventually(gateway.usage)[0]["output_tokens"] == 5  # counted exactly, asked for or not


def test_many_streams_at_once_by_the_asynchronous_client(gateway: GatewayProcess) -> None:
    async def words_of(ai: openai.AsyncOpenAI, tokens: int) -> int:
        stream = await ai.chat.completions.create(
            model=MODEL, messages=says(f"tokens={tokens} pause=0.002"), max_tokens=64, stream=True
        )
        return len([chunk async for chunk in stream if chunk.choices])

    async def run() -> list[int]:
        async with openai.AsyncOpenAI(
            base_url=f"{gateway.base_url}/v1", api_key=KEYS["globex"], max_retries=0, timeout=PATIENT_S
        ) as ai:
            return await asyncio.gather(*(words_of(ai, 1 + number) for number in range(40)))

    assert asyncio.run(run()) == [1 + number for number in range(40)]
    eventually(lambda: settled(gateway))
    assert sum(record["output_tokens"] for record in gateway.usage()) == sum(range(1, 41))


def test_a_client_that_closes_its_stream_frees_what_it_held(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    with client(gateway) as ai:
        stream = ai.chat.completions.create(
            model=MODEL, messages=says("tokens=10000 pause=0.01"), max_tokens=10_000, stream=True
        )
        next(iter(stream))
        stream.close()
    eventually(lambda: settled(gateway))
    eventually(lambda: engine.served[0].ending == "aborted")


def test_errors_arrive_as_the_clients_own_kinds(gateway: GatewayProcess, engine: FakeEngine) -> None:
    with (
        client(gateway) as ai,
        openai.OpenAI(base_url=f"{gateway.base_url}/v1", api_key="rk-wrong", max_retries=0) as stranger,
    ):
        with pytest.raises(openai.AuthenticationError):
            stranger.models.list()
        with pytest.raises(openai.NotFoundError) as unknown:
            ai.chat.completions.create(model="another", messages=says("tokens=1"))
        assert "another" in str(unknown.value)
        with pytest.raises(openai.BadRequestError) as bad:
            ai.chat.completions.create(model=MODEL, messages=says("fault=400"), max_tokens=5)
        assert bad.value.message  # the engine's own complaint
        nothing = assignment([engine], generation=2)
        nothing["shares"]["acme"]["max_concurrent_requests"] = 0
        assert gateway.push(nothing).status_code == 200
        with pytest.raises(openai.RateLimitError) as refused:
            ai.chat.completions.create(model=MODEL, messages=says("tokens=1"), max_tokens=5)
    assert refused.value.response.headers["retry-after"].isdigit()
    assert refused.value.code
    assert refused.value.request_id


def test_its_retries_wait_as_long_as_they_are_told_and_then_succeed(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    # 20 tokens a second and room for 80 at once: each of these requests takes about 70.
    scarce = assignment([engine], generation=2)
    scarce["shares"]["acme"] |= {"tokens_per_minute": 1_200, "burst_tokens": 80}
    assert gateway.push(scarce).status_code == 200
    told, asked = list[tuple[float, float]](), list[float]()

    def on_request(_request: Any) -> None:
        asked.append(time.monotonic())

    def on_answer(answer: Any) -> None:
        if answer.status_code == 429:
            told.append((time.monotonic(), float(answer.headers["retry-after-ms"]) / 1000))

    http = openai.DefaultHttpxClient(event_hooks={"request": [on_request], "response": [on_answer]})
    with client(gateway, max_retries=10, http_client=http) as ai:
        for _ in range(3):
            answer = ai.chat.completions.create(model=MODEL, messages=says("tokens=60"), max_tokens=64)
            assert answer.usage is not None
    assert told, "the quota never bit"
    for at, wait_s in told:
        following = min(moment for moment in asked if moment > at)
        assert following - at >= 0.99 * wait_s  # a lower bound: no load on the machine can break it
    assert len(asked) == 3 + len(told)
    assert gateway.metric("rhodeck_gateway_requests_total", tenant="acme", outcome="completed") == 3


# -- responses, one model, tokenizing ---------------------------------------------------------------


def test_responses_whole_and_streamed(gateway: GatewayProcess) -> None:
    with client(gateway) as ai:
        whole = ai.responses.create(model=MODEL, input="tokens=4", max_output_tokens=20)
        assert whole.output_text == "word word word word "
        assert whole.usage is not None
        assert (whole.usage.output_tokens, whole.usage.input_tokens_details.cached_tokens) == (4, 2)
        events = list(ai.responses.create(model=MODEL, input="tokens=5", max_output_tokens=20, stream=True))
    assert events[0].type == "response.created"
    assert [event.type for event in events].count("response.output_text.delta") == 5
    assert events[-1].type == "response.completed"
    assert events[-1].response.usage is not None
    assert events[-1].response.usage.output_tokens == 5
    records = eventually(lambda: gateway.usage() if len(gateway.usage()) == 2 else None)
    assert [(record["endpoint"], record["output_tokens"]) for record in records] == [
        ("responses", 4),
        ("responses", 5),
    ]


def test_a_response_that_breaks_off_raises_in_the_client(gateway: GatewayProcess) -> None:
    with client(gateway) as ai:
        stream = ai.responses.create(
            model=MODEL, input="tokens=6 fault=cut", max_output_tokens=20, stream=True
        )
        with pytest.raises(openai.APIError) as broken:
            list(stream)
        with pytest.raises(openai.BadRequestError) as refused:
            ai.responses.create(model=MODEL, input="a", previous_response_id="resp_1")
        with pytest.raises(openai.NotFoundError):
            ai.responses.retrieve("resp_1")
    assert broken.value.code == "upstream_error"
    assert refused.value.param == "previous_response_id"


def test_many_responses_at_once_by_the_asynchronous_client(gateway: GatewayProcess) -> None:
    async def tokens_of(ai: openai.AsyncOpenAI, tokens: int) -> int:
        stream = await ai.responses.create(
            model=MODEL, input=f"tokens={tokens} pause=0.002", max_output_tokens=64, stream=True
        )
        return len([event async for event in stream if event.type == "response.output_text.delta"])

    async def run() -> list[int]:
        async with openai.AsyncOpenAI(
            base_url=f"{gateway.base_url}/v1", api_key=KEYS["globex"], max_retries=0, timeout=PATIENT_S
        ) as ai:
            return await asyncio.gather(*(tokens_of(ai, 1 + number) for number in range(30)))

    assert asyncio.run(run()) == [1 + number for number in range(30)]
    eventually(lambda: settled(gateway))
    assert sum(record["output_tokens"] for record in gateway.usage()) == sum(range(1, 31))


def test_one_model_is_retrieved_and_a_missing_one_is_not_found(gateway: GatewayProcess) -> None:
    with client(gateway) as ai:
        assert ai.models.retrieve(MODEL).id == MODEL
        with pytest.raises(openai.NotFoundError):
            ai.models.retrieve("nobody/of-this-name")


def test_embeddings_of_several_texts_and_of_token_ids(gateway: GatewayProcess, engine: FakeEngine) -> None:
    with client(gateway) as ai:
        two = ai.embeddings.create(model=MODEL, input=["one", "two"])  # it asks for base64 by itself
        ai.embeddings.create(model=MODEL, input=[[1, 2, 3], [4]])
    assert [list(one.embedding) for one in two.data] == [[0.5, -1.0]] * 2
    assert [served.body["input"] for served in engine.served] == [["one", "two"], [[1, 2, 3], [4]]]
    assert engine.served[0].body["encoding_format"] == "base64"
    assert [record["endpoint"] for record in gateway.usage()] == ["embeddings"] * 2


def test_a_client_that_retries_after_an_outage_is_served_when_it_is_over(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    nothing = assignment([engine], generation=2)
    nothing["nodes"][0]["draining"] = True
    assert gateway.push(nothing).status_code == 200
    codes = list[int]()

    def on_answer(answer: Any) -> None:
        codes.append(answer.status_code)
        if len(codes) == 1:
            assert gateway.push(assignment([engine], generation=3)).status_code == 200
            eventually(lambda: gateway.status()["nodes_usable"] == 1)

    http = openai.DefaultHttpxClient(event_hooks={"response": [on_answer]})
    with client(gateway, max_retries=5, http_client=http) as ai:
        answer = ai.responses.create(model=MODEL, input="tokens=2", max_output_tokens=20)
    assert answer.output_text == "word word "
    assert codes == [503, 200]
