"""Simulated nodes over real sockets, held against answers and counters captured from vLLM 0.32.0."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import orjson
import pytest

from fleet.clock import SystemClock
from fleet.dialects import read_page
from fleet.engine_profile import profile_named
from fleet.readings import EngineReading
from simfleet.server import NodeServer, SimFleet

CAPTURED = Path(__file__).parents[1] / "data" / "metrics" / "error-cases-vllm-0.32.0-cpu.json"
TINY = profile_named("tiny")
FOUR = [5, 6, 7, 8]

Work = Callable[[SimFleet, aiohttp.ClientSession], Awaitable[None]]


def with_fleet(work: Work, *, nodes: int = 1, speed: float = 20.0) -> None:
    async def run() -> None:
        fleet = SimFleet(TINY, SystemClock(), nodes=nodes, seed=1, speed=speed)
        await fleet.start()
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
                await work(fleet, session)
        finally:
            await fleet.stop()

    asyncio.run(run())


def first(fleet: SimFleet) -> NodeServer:
    return next(iter(fleet.servers.values()))


async def reading(session: aiohttp.ClientSession, server: NodeServer) -> EngineReading:
    async with session.get(server.base_url + "/metrics") as answer:
        (engine,) = read_page(await answer.read(), source=server.base_url).engines
        return engine


async def page_text(session: aiohttp.ClientSession, server: NodeServer) -> str:
    async with session.get(server.base_url + "/metrics") as answer:
        return await answer.text()


async def order(session: aiohttp.ClientSession, url: str, **fault) -> int:
    async with session.post(url + "/sim/fault", json=fault) as answer:
        return answer.status


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a state, not for a time; the deadline only ends a hang."""
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.02)


def captured(case: str) -> dict:
    return next(row for row in json.loads(CAPTURED.read_text()) if row["case"] == case)


#: The requests behind the captured cases, as far as their answers tell.
CASES = {
    "bad_model": {"model": "nope", "prompt": FOUR},
    "neg_max_tokens": {"prompt": FOUR, "max_tokens": -1},
    "bad_temp": {"prompt": FOUR, "temperature": -3},
    "too_long": {"prompt": [5] * 2000},
    "n5": {"prompt": FOUR, "n": 5, "max_tokens": 7, "ignore_eos": True},
    "no_max": {"prompt": FOUR, "ignore_eos": True},
    "two_prompts": {"prompt": [[5, 6, 7], [8, 9, 10]], "max_tokens": 4, "ignore_eos": True},
    "max1": {"prompt": FOUR, "max_tokens": 1},
}
#: Captured delta -> how to find it in a reading.
COUNTS: dict[str, Callable[[EngineReading], float | None]] = {
    "finished": lambda r: sum(r.finished.values()),
    "vllm:e2e_request_latency_seconds_count": lambda r: r.histograms["e2e_s"].count,
    "vllm:time_to_first_token_seconds_count": lambda r: r.histograms["ttft_s"].count,
    "vllm:inter_token_latency_seconds_count": lambda r: r.histograms["itl_s"].count,
    "vllm:request_params_n_count": lambda r: r.histograms["params_n"].count,
    "vllm:request_params_n_sum": lambda r: r.histograms["params_n"].sum,
    "vllm:generation_tokens_total": lambda r: r.generation_tokens,
    "vllm:prompt_tokens_total": lambda r: r.prompt_tokens,
}


@pytest.mark.parametrize("case", CASES)
def test_a_call_is_answered_and_counted_as_vllm_did(case):
    truth = captured(case)

    async def work(fleet, session):
        async with session.post(first(fleet).base_url + "/v1/completions", json=CASES[case]) as answer:
            assert answer.status == truth["status"]
            body = await answer.text()
        if truth["status"] != 200:
            error = json.loads(body)["error"]
            if truth["body"].endswith("}"):
                assert {"error": error} == json.loads(truth["body"])
            else:  # the capture was cut after 300 characters
                assert body[:200] == truth["body"][:200]
        after = await reading(session, first(fleet))
        deltas = dict(truth["deltas"])
        deltas["finished"] = deltas.pop("stop", 0) + deltas.pop("length", 0)
        for name, count in COUNTS.items():
            assert count(after) == deltas.get(name, 0), name

    with_fleet(work)


def test_a_stream_carries_role_tokens_usage_and_end():
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 120, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip

    async def work(fleet, session):
        async with session.post(first(fleet).base_url + "/v1/chat/completions", json=body) as answer:
            assert answer.content_type == "text/event-stream"
            lines = [line for line in (await answer.text()).split("\n\n") if line]
        assert lines[-1] == "data: [DONE]"
        events = [orjson.loads(line.removeprefix("data: ")) for line in lines[:-1]]
        assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        content = "".join(e["choices"][0]["delta"]["content"] for e in events if e["choices"])
        assert len(content.split()) == 120
        reasons = [e["choices"][0]["finish_reason"] for e in events if e["choices"]]
        assert reasons[-1] == "length"
        assert set(reasons[:-1]) == {None}
        assert events[-1]["choices"] == []
        # one message: 4 tokens and one more for two characters
        assert events[-1]["usage"]["prompt_tokens"] == 5
        assert events[-1]["usage"]["completion_tokens"] == 120

    with_fleet(work, speed=5)


def test_every_choice_of_every_prompt_comes_back_under_its_index():
    body = {"prompt": ["one two", "three"], "n": 2, "max_tokens": 9, "ignore_eos": True}

    async def work(fleet, session):
        for stream in (False, True):
            async with session.post(
                first(fleet).base_url + "/v1/completions", json=body | {"stream": stream}
            ) as answer:
                text = await answer.text()
            if stream:
                events = [orjson.loads(x[6:]) for x in text.split("\n\n") if x.startswith("data: {")]
                choices = [choice for event in events for choice in event["choices"]]
            else:
                choices = orjson.loads(text)["choices"]
            words = {i: "".join(c["text"] for c in choices if c["index"] == i).split() for i in range(4)}
            assert [len(words[i]) for i in range(4)] == [9, 9, 9, 9]

    with_fleet(work)


def test_a_client_that_leaves_frees_its_slot_and_is_in_no_success_counter():
    body = {"prompt": FOUR, "max_tokens": 1000, "ignore_eos": True, "stream": True}

    async def work(fleet, session):
        server = first(fleet)
        for stream in (True, False):
            call = asyncio.create_task(
                _read_all(session, server.base_url + "/v1/completions", body | {"stream": stream})
            )
            await until(lambda: _running(session, server, 1))
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await until(lambda: _running(session, server, 0))
        after = await reading(session, server)
        assert sum(after.finished.values()) == 0
        assert after.histograms["ttft_s"].count == 2
        text = await page_text(session, server)
        assert 'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 2.0' in text

    with_fleet(work, speed=0.5)


async def _running(session: aiohttp.ClientSession, server: NodeServer, count: int) -> bool:
    return (await reading(session, server)).running == count


async def _read_all(session: aiohttp.ClientSession, url: str, body: dict) -> int:
    async with session.post(url, json=body) as answer:
        await answer.read()
        return answer.status


def test_a_frozen_node_answers_health_while_every_series_stands_still():
    body = {"prompt": FOUR, "max_tokens": 1000, "ignore_eos": True}

    async def work(fleet, session):
        server = first(fleet)
        calls = [asyncio.create_task(_read_all(session, server.base_url + "/v1/completions", body))]
        await until(lambda: _running(session, server, 1))
        assert await order(session, server.base_url, kind="freeze") == 200
        before = await reading(session, server)
        calls += [
            asyncio.create_task(_read_all(session, server.base_url + "/v1/completions", body))
            for _ in range(5)
        ]

        async def load_climbed() -> bool:
            async with session.get(server.base_url + "/load") as answer:
                return (await answer.json()) == {"server_load": 6}

        await until(load_climbed)
        async with session.get(server.base_url + "/health") as answer:
            assert answer.status == 200
        assert await reading(session, server) == before
        assert await order(session, server.base_url, kind="unfreeze") == 200
        assert await asyncio.gather(*calls) == [200] * 6
        assert (await reading(session, server)).finished["length"] == 6

    with_fleet(work, speed=5)


def test_a_killed_node_refuses_and_a_restarted_one_starts_from_zero_on_the_same_port():
    body = {"prompt": FOUR, "max_tokens": 5, "ignore_eos": True}

    async def work(fleet, session):
        alive, victim = fleet.servers.values()
        url = victim.base_url
        assert await _read_all(session, url + "/v1/completions", body) == 200
        born = read_page((await page_text(session, victim)).encode(), source="x").process_start_time_s
        hanging = asyncio.create_task(
            _read_all(session, url + "/v1/completions", body | {"max_tokens": 1000})
        )
        await until(lambda: _running(session, victim, 1))
        assert await order(session, alive.base_url, node=victim.node.name, kind="kill") == 200

        async def refuses() -> bool:
            try:
                async with aiohttp.ClientSession() as fresh, fresh.get(url + "/health"):
                    return False
            except aiohttp.ClientConnectorError:
                return True

        await until(refuses)
        assert isinstance((await asyncio.gather(hanging, return_exceptions=True))[0], aiohttp.ClientError)
        assert await order(session, alive.base_url, node=victim.node.name, kind="restart") == 200

        async def answers() -> bool:
            return not await refuses()

        await until(answers)
        page = read_page((await page_text(session, victim)).encode(), source="x")
        assert page.engines[0].generation_tokens == 0
        assert page.process_start_time_s > born

    with_fleet(work, nodes=2, speed=0.5)


def test_slow_metrics_hold_the_page_and_nothing_else():
    async def work(fleet, session):
        server = first(fleet)
        assert await order(session, server.base_url, kind="slow_metrics", delay_s=3000) == 200
        page = asyncio.create_task(page_text(session, server))
        async with session.get(server.base_url + "/health") as answer:
            assert answer.status == 200
        assert not page.done()
        page.cancel()
        assert await order(session, server.base_url, kind="clear") == 200
        assert "vllm:num_requests_running" in await page_text(session, server)

    with_fleet(work)


def test_a_fault_with_a_length_ends_by_itself():
    async def work(fleet, session):
        server = first(fleet)
        assert await order(session, server.base_url, kind="kv_shortage", ratio=0.5, for_s=0.2) == 200
        assert (await reading(session, server)).kv_used_ratio == pytest.approx(0.5)

        async def healed() -> bool:
            return (await reading(session, server)).kv_used_ratio == 0

        await until(healed)

    with_fleet(work)


def test_orders_from_web_pages_and_for_unknown_nodes_are_refused():
    async def work(fleet, session):
        url = first(fleet).base_url
        async with session.post(
            url + "/sim/fault", json={"kind": "kill"}, headers={"Origin": "http://evil.example"}
        ) as answer:
            assert answer.status == 403
        async with session.post(url + "/sim/fault", json={"kind": "freeze", "node": "node-99"}) as answer:
            assert answer.status == 400
            assert "node-99" in (await answer.json())["message"]
        for bad in (b"{", b"[]", b'{"kind": "melt"}'):
            async with session.post(url + "/sim/fault", data=bad) as answer:
                assert answer.status == 400
        async with session.get(url + "/health") as answer:
            assert answer.status == 200

    with_fleet(work)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", b"{"),
        ("/v1/completions", b"[]"),
        ("/v1/completions", b"{}"),
        ("/v1/completions", b'{"prompt": []}'),
        ("/v1/completions", b'{"prompt": {"a": 1}}'),
        ("/v1/completions", b'{"prompt": [1, "a"]}'),
        ("/v1/completions", b'{"prompt": "a", "n": 0}'),
        ("/v1/completions", b'{"prompt": "a", "n": 1000000}'),
        ("/v1/completions", b'{"prompt": "a", "max_tokens": "many"}'),
        ("/v1/completions", b'{"prompt": "a", "max_tokens": 5000}'),
        ("/v1/completions", b'{"prompt": "a", "stream": "yes"}'),
        ("/v1/chat/completions", b'{"messages": []}'),
        ("/v1/chat/completions", b'{"messages": ["hi"]}'),
        ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": 5}]}'),
    ],
)
def test_unusable_bodies_get_a_400_in_vllms_shape_and_touch_no_engine_series(path, body):
    async def work(fleet, session):
        async with session.post(first(fleet).base_url + path, data=body) as answer:
            assert answer.status == 400
            error = (await answer.json())["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["type"], error["code"]) == ("BadRequestError", 400)
        assert sum((await reading(session, first(fleet))).finished.values()) == 0

    with_fleet(work)


def test_small_paths_answer_as_vllm_does():
    async def work(fleet, session):
        url = first(fleet).base_url
        expected = {
            "/health": "",
            "/ping": "",
            "/load": '{"server_load":0}',
            "/version": '{"version":"0.32.0"}',
        }
        for path, body in expected.items():
            async with session.get(url + path) as answer:
                assert (answer.status, await answer.text()) == (200, body)
        async with session.get(url + "/v1/models") as answer:
            (model,) = (await answer.json())["data"]
            assert (model["id"], model["max_model_len"]) == ("tiny", 1024)
        async with session.get(url + "/nope") as answer:
            assert (answer.status, await answer.text()) == (404, '{"detail":"Not Found"}')
        async with session.get(url + "/metrics") as answer:
            assert answer.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
        text = await page_text(session, first(fleet))
        assert 'http_requests_total{handler="/v1/models",method="GET",status="2xx"} 1.0' in text
        assert 'http_requests_total{handler="none",method="GET",status="4xx"} 1.0' in text
        assert 'handler="/health"' not in text

    with_fleet(work)
