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
