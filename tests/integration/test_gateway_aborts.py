"""A thousand requests end in every way over real sockets: nothing stays held, usage is the engines own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import json
import random
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleet.clock import SystemClock
from fleet.engine_profile import profile_named
from simfleet.app import NodeApp
from simfleet.faults import Fault, FaultKind
from simfleet.node import Answer, SimNode
from simfleet.server import SimFleet
from tests.gateway_process import KEYS, GatewayProcess, assignment, eventually

REQUESTS = 1_000
AT_ONCE = 60
PROFILE = dataclasses.replace(profile_named("tiny"), max_num_seqs=64, num_gpu_blocks=8_193)
KILLED = "node-03"  # twice, while it streams
WAYS = {"finish": 40, "before": 25, "mid": 25, "slow": 5, "half": 5}  # how clients go, of 100


@dataclass
class Engines:
    """Three nodes on a thread of their own, and what each really did for each request."""

    fleet: SimFleet | None = None
    answers: dict[str, list[tuple[str, Answer]]] = field(default_factory=dict)
    _loop: asyncio.AbstractEventLoop | None = None
    _stop: asyncio.Event | None = None

    def run(self, ready: threading.Event) -> None:
        asyncio.run(self._run(ready))

    async def _run(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.fleet = SimFleet(PROFILE, SystemClock(), nodes=3, seed=5)
        await self.fleet.start()
        ready.set()
        await self._stop.wait()
        await self.fleet.stop()
        await asyncio.sleep(0.1)  # transports close in the next turns of the loop

    def stop(self) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)

    def restart(self, name: str) -> None:
        """Kill a node and let it begin a new life: what it streams breaks off."""
        assert self._loop is not None
        assert self.fleet is not None
        order = self.fleet.apply(name, Fault(FaultKind.RESTART, delay_s=0.2))
        asyncio.run_coroutine_threadsafe(order, self._loop).result(60)


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Generator[Engines]:
    """The nodes, watched: which request each answer belongs to is told by the header the gateway sends."""
    engines = Engines()
    current = contextvars.ContextVar[str]("current")
    generate, start = NodeApp._generate, SimNode.start

    async def watched_generate(self: NodeApp, path: str, scope: Any, receive: Any, send: Any) -> None:
        current.set(dict(scope["headers"])[b"x-request-id"].decode())
        await generate(self, path, scope, receive, send)

    def watched_start(self: SimNode, call: Any) -> Answer:
        answer = start(self, call)
        engines.answers.setdefault(current.get(), []).append((self.name, answer))
        return answer

    monkeypatch.setattr(NodeApp, "_generate", watched_generate)
    monkeypatch.setattr(SimNode, "start", watched_start)
    ready = threading.Event()
    thread = threading.Thread(target=engines.run, args=(ready,))
    thread.start()
    assert ready.wait(60)
    try:
        yield engines
    finally:
        engines.stop()
        thread.join(60)


@dataclass(frozen=True)
class Plan:
    """One request and how its client goes."""

    path: str
    body: bytes
    way: str
    leaves_s: float
    events: int


def plans(rng: random.Random) -> list[Plan]:
    found: list[Plan] = []
    for _ in range(REQUESTS):
        words, tokens = "word " * rng.randint(1, 60), rng.randint(1, 40)
        body: dict[str, Any] = {
            "model": PROFILE.model,
            "stream": rng.random() < 0.7,
            "vllm_xargs": {"sim_output_tokens": tokens},
        }
        path = rng.choice(("/v1/chat/completions", "/v1/completions", "/v1/responses"))
        match path:
            case "/v1/chat/completions":
                body |= {"messages": [{"role": "user", "content": words}], "max_tokens": 64}
            case "/v1/completions":
                body |= {"prompt": words, "max_tokens": 64}
            case _:
                body |= {"input": words, "max_output_tokens": 64}
        (way,) = rng.choices(list(WAYS), list(WAYS.values()))
        found.append(Plan(path, json.dumps(body).encode(), way, rng.uniform(0, 0.12), rng.randint(1, 4)))
    return found


async def go(port: int, plan: Plan) -> str:
    """Send one request and end it as planned. Return its id where the client learned it."""
    head = (
        f"POST {plan.path} HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {KEYS['acme']}\r\n"
        f"X-Rhodeck-Tier: batch\r\nConnection: close\r\nContent-Length: {len(plan.body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    seen = b""
    try:
        if plan.way == "half":
            writer.write(head.encode() + plan.body[:-5])
            await asyncio.sleep(plan.leaves_s)
            return ""
        writer.write(head.encode() + plan.body)
        if plan.way == "before":
            await asyncio.sleep(plan.leaves_s)
            return ""
        while chunk := await reader.read(512 if plan.way == "slow" else 65_536):
            seen += chunk
            if plan.way == "mid" and seen.count(b"\n\n") >= plan.events:
                break
            if plan.way == "slow":
                await asyncio.sleep(plan.leaves_s)
                if seen.count(b"\n\n") >= 2 * plan.events:
                    break
    except ConnectionError:
        pass
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    found = re.search(rb"(?i)x-request-id: (\S+)", seen)
    return found[1].decode() if found else ""


async def run_all(gateway: GatewayProcess, engines: Engines, todo: list[Plan]) -> list[str]:
    """Run the plans; the node is killed after a third and after two thirds of them."""
    waiting = list(reversed(todo))
    ids: list[str] = []

    async def work() -> None:
        while waiting:
            if len(waiting) in (REQUESTS // 3, 2 * REQUESTS // 3):
                engines.restart(KILLED)
            ids.append(await go(gateway.port, waiting.pop()))

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return ids


def counters(url: str) -> dict[str, float]:
    """Return a node's own counters of finished requests."""
    sums = defaultdict[str, float](float)
    for line in httpx.get(f"{url}/metrics", trust_env=False).text.splitlines():
        name = line.partition("{")[0]
        if name in (
            "vllm:request_success_total",
            "vllm:request_prompt_tokens_sum",
            "vllm:request_generation_tokens_sum",
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:kv_cache_usage_perc",
        ):
            sums[name.removeprefix("vllm:")] += float(line.rpartition(" ")[2])
    return dict(sums)


def is_idle(gateway: GatewayProcess) -> bool:
    status = gateway.status()
    return (
        (status["in_flight_requests"], status["in_flight_tokens"]) == (0, 0)
        and all(queue["requests"] == 0 for queue in status["queues"].values())
        and gateway.metric("rhodeck_gateway_in_flight_requests") == 0
        and gateway.metric("rhodeck_gateway_in_flight_tokens") == 0
        and gateway.metric("rhodeck_gateway_queued_requests") == 0
        and gateway.metric("rhodeck_gateway_held_body_bytes") == 0
    )


@pytest.mark.slow
def test_a_thousand_endings_leave_nothing_held_and_usage_is_the_engines_own(
    tmp_path: Path, engines: Engines
) -> None:
    assert engines.fleet is not None
    servers = engines.fleet.servers
    document = assignment([])
    document["nodes"] = [
        {"name": name, "pool": "sim", "base_url": server.base_url, "models": [PROFILE.model]}
        for name, server in servers.items()
    ]
    with GatewayProcess(tmp_path / "gw").running() as gateway:
        assert gateway.push(document).status_code == 200
        eventually(lambda: gateway.status()["nodes_usable"] == 3)
        todo = plans(random.Random(20_251))
        ids = asyncio.run(run_all(gateway, engines, todo))
        eventually(lambda: is_idle(gateway))
        idle = {"num_requests_running": 0.0, "num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}
        for name, server in servers.items():
            eventually(lambda server=server: idle.items() <= counters(server.base_url).items())
            assert engines.fleet.servers[name].node.in_flight == 0
        records = {record["request_id"]: record for record in gateway.usage()}
        assert len(records) == len(gateway.usage())  # one each
        told = [request_id for request_id in ids if request_id]
        assert len(told) == len(set(told)) > 300
        _hold_to_truth(records, engines)
        for name, server in servers.items():
            if name != KILLED:  # its counters began anew
                _hold_to_counters(name, records, engines, counters(server.base_url))
        outcomes = Counter(record["outcome"] for record in records.values())
        assert outcomes["completed"] > 300
        assert outcomes["client_gone"] > 200
        assert outcomes["upstream_error"] > 0
        halves = sum(plan.way == "half" for plan in todo)
        offered = gateway.metric("rhodeck_gateway_offered_total")
        assert offered == gateway.metric("rhodeck_gateway_requests_total") == REQUESTS - halves


def finished(answer: Answer) -> bool:
    """Say whether the engine finished every sequence of an answer."""
    return all(reason is not None for reason in answer.reasons)


def _hold_to_truth(records: dict[str, dict[str, Any]], engines: Engines) -> None:
    """Each request an engine had has a record: exact and equal, or within the rule for what broke off."""
    assert engines.answers.keys() <= records.keys()
    broken: list[tuple[int, int]] = []  # streams: tokens taken to be there, and those the engine made
    for request_id, record in records.items():
        known = engines.answers.get(request_id, [])
        if record["outcome"] == "completed":
            _, answer = known[-1]
            assert finished(answer)
            assert record["exact"]
            assert record["prompt_tokens"] == sum(answer.call.prompt_tokens)
            assert record["output_tokens"] == sum(answer.produced)
            continue
        assert record["outcome"] in ("client_gone", "upstream_error")
        if record["exact"]:  # usage had come, the end had not
            assert record["output_tokens"] == sum(known[-1][1].produced)
        elif known and known[-1][1].call.is_stream:
            broken.append((record["output_tokens"], sum(known[-1][1].produced)))
        else:  # estimated by time, within what was booked
            assert record["output_tokens"] <= 64
    # Of what reached the gateway, right in sum; a chat's first event counts as a token and has none.
    assert all(taken <= 64 for taken, _ in broken)
    assert 0 < sum(taken for taken, _ in broken) <= sum(made for _, made in broken) + len(broken)


def _hold_to_counters(
    name: str, records: dict[str, dict[str, Any]], engines: Engines, counted: dict[str, float]
) -> None:
    """A node's counters of finished requests are the records of them.

    An engine may finish what its client does not wait for any more: it counts that, and the record tells
    of a client that left. For those few the engine's own answer stands in.
    """
    requests, prompt, output = 0, 0, 0
    for request_id, tries in engines.answers.items():
        node, answer = tries[-1]
        if node != name or not finished(answer):
            continue
        requests += 1
        record = records[request_id]
        is_whole = record["outcome"] == "completed"
        prompt += record["prompt_tokens"] if is_whole else sum(answer.call.prompt_tokens)
        output += record["output_tokens"] if is_whole else sum(answer.produced)
    assert counted["request_success_total"] == requests > 0
    assert counted["request_prompt_tokens_sum"] == prompt
    assert counted["request_generation_tokens_sum"] == output
