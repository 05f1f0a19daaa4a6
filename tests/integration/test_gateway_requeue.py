"""A started batch request gives its room to an interactive one, through a real gateway and engine."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from fleet.budget import STALE_AFTER_S
from tests.gateway_process import FakeEngine, GatewayProcess, Served, assignment, chat, events, eventually

BATCH = {"X-Rhodeck-Tier": "batch"}


@dataclass
class HoldingEngine(FakeEngine):
    """Begins no answer to a prompt with "hold=1" until it is let go."""

    let_go: threading.Event = field(default_factory=threading.Event)

    async def note(self, request: web.Request) -> Served:
        served = await super().note(request)
        try:
            while "hold=1" in str(served.body) and not self.let_go.is_set():
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            served.ending = "aborted"
            raise
        return served


class Client(threading.Thread):
    """One batch request of its own thread; `answer` is what it got."""

    def __init__(self, gateway: GatewayProcess, *, stream: bool, timeout_s: float = 120.0) -> None:
        super().__init__()
        self._gateway, self._stream, self._timeout_s = gateway, stream, timeout_s
        self.answer: httpx.Response | None = None

    def run(self) -> None:
        with self._gateway.client(**BATCH) as client:
            body = chat("hold=1 tokens=2", stream=self._stream)
            try:
                self.answer = client.post("/v1/chat/completions", json=body, timeout=self._timeout_s)
            except httpx.ReadTimeout:
                return


@pytest.fixture
def engine() -> Generator[HoldingEngine]:
    # 11 blocks of 16 at 0.85 are 149 tokens; a request books 64 output and fewer than 20 prompt: one or
    # two fit, three never do
    with HoldingEngine("node-1", kv_blocks=11).serving() as engine:
        yield engine


@pytest.fixture
def gateway(tmp_path: Path) -> Generator[GatewayProcess]:
    with GatewayProcess(tmp_path / "gw").running() as gateway:
        yield gateway


def push(gateway: GatewayProcess, engine: HoldingEngine, max_requeues: int) -> None:
    document = assignment([engine])
    document["policy"]["tiers"]["batch"] |= {"max_requeues": max_requeues, "queue_timeout_s": 600}
    assert gateway.push(document).status_code == 200
    eventually(lambda: gateway.status()["nodes_usable"] == 1)


def fill(gateway: GatewayProcess, engine: HoldingEngine, **options: Any) -> list[Client]:
    """Start batch requests until one must wait; return their clients."""
    clients: list[Client] = []
    while True:
        clients.append(Client(gateway, **options))
        clients[-1].start()
        eventually(lambda: len(engine.served) + waiting(gateway) == len(clients))
        if waiting(gateway):
            return clients


def waiting(gateway: GatewayProcess) -> int:
    return int(gateway.metric("rhodeck_gateway_queued_requests", tier="batch"))


def ask(gateway: GatewayProcess, text: str = "tokens=1") -> int:
    with gateway.client() as client:
        return client.post("/v1/chat/completions", json=chat(text)).status_code


def endings(engine: HoldingEngine) -> list[str]:
    return sorted(one.ending for one in engine.served)


@pytest.mark.parametrize("stream", [True, False])
def test_the_client_of_a_request_that_was_taken_back_notices_nothing_but_the_wait(
    gateway: GatewayProcess, engine: HoldingEngine, stream: bool
) -> None:
    push(gateway, engine, 3)
    clients = fill(gateway, engine, stream=stream)
    running = len(clients) - 1
    assert ask(gateway) == 200
    eventually(lambda: endings(engine).count("aborted") == 1)
    assert gateway.metric("rhodeck_gateway_requeued_total", tier="batch", tenant="acme") == 1
    eventually(lambda: engine.running == running)  # it came first: it has its place again
    engine.let_go.set()
    for client in clients:
        client.join()
        assert client.answer is not None
        assert client.answer.status_code == 200
        if stream:
            assert events(client.answer.text)[-1] == "[DONE]"
    assert endings(engine) == ["aborted", *["finished"] * (len(clients) + 1)]
    records = gateway.usage()
    assert [record["outcome"] for record in records] == ["completed"] * (len(clients) + 1)
    assert len({record["request_id"] for record in records}) == len(records)
    assert gateway.metric("rhodeck_gateway_requeued_prompt_tokens_total") > 0
    assert gateway.metric("rhodeck_gateway_requeued_engine_seconds_total") > 0
    assert gateway.metric("rhodeck_gateway_retries_total") == 0
    assert gateway.metric("rhodeck_gateway_dispatched_total") == len(records)
    assert gateway.status()["in_flight_tokens"] == 0
    assert sorted(len(tries) for tries in attempts_of(gateway, records)) == [1] * len(clients) + [2]
    [twice] = [tries for tries in attempts_of(gateway, records) if len(tries) == 2]
    assert twice[0]["failure"] == "its room went to an interactive request"
    assert twice[0]["waited_s"] < twice[1]["waited_s"]  # it started at once, then it waited


def attempts_of(gateway: GatewayProcess, records: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return what is kept of the nodes each request was sent to."""
    found = [gateway.admin.get(f"/admin/decisions/{one['request_id']}").json() for one in records]
    return [one["attempts"] for one in found]


def test_without_leave_of_the_policy_nothing_is_taken_back(
    gateway: GatewayProcess, engine: HoldingEngine
) -> None:
    push(gateway, engine, 0)
    clients = fill(gateway, engine, stream=False)
    assert ask(gateway) == 429
    assert "aborted" not in endings(engine)
    engine.let_go.set()
    for client in clients:
        client.join()
    assert gateway.metric("rhodeck_gateway_requeued_total") == 0


def test_a_client_that_leaves_while_its_request_waits_again_leaves_nothing(
    gateway: GatewayProcess, engine: HoldingEngine
) -> None:
    push(gateway, engine, 1)
    clients = fill(gateway, engine, stream=True, timeout_s=8.0)
    assert ask(gateway) == 200
    for client in clients:
        client.join()  # all leave: running, waiting, or waiting again
    eventually(lambda: gateway.status()["in_flight_requests"] == 0)
    status = gateway.status()
    assert status["in_flight_tokens"] == 0
    assert status["queues"]["batch"]["requests"] == 0
    eventually(lambda: engine.running == 0)
    gone = gateway.metric("rhodeck_gateway_requests_total", outcome="client_gone")
    assert gone == len(clients)


def test_the_room_of_a_prompt_that_is_being_computed_may_be_taken_too(
    gateway: GatewayProcess, engine: HoldingEngine
) -> None:
    with HoldingEngine("p1").serving() as prefill:
        document = assignment([prefill, engine])
        document["policy"]["tiers"]["batch"] |= {"max_requeues": 1, "queue_timeout_s": 600}
        for node, role in zip(document["nodes"], ("prefill", "decode"), strict=True):
            node["role"] = role
        assert gateway.push(document).status_code == 200
        eventually(lambda: gateway.status()["nodes_usable"] == 2)
        clients: list[Client] = []
        while not waiting(gateway):
            clients.append(Client(gateway, stream=True))
            clients[-1].start()
            eventually(lambda: len(prefill.served) + waiting(gateway) == len(clients))
        assert ask(gateway) == 200
        eventually(lambda: endings(prefill).count("aborted") == 1)
        assert gateway.metric("rhodeck_gateway_requeued_total", tier="batch") == 1
        prefill.let_go.set()
        engine.let_go.set()
        for client in clients:
            client.join()
            assert client.answer is not None
            assert events(client.answer.text)[-1] == "[DONE]"
        assert gateway.metric("rhodeck_gateway_prefills") == 0
        assert gateway.metric("rhodeck_gateway_node_kv_tokens", kind="booked") == 0


def test_who_waits_again_when_the_process_stands_still_beyond_its_timeout_is_offered_anew(
    tmp_path: Path, engine: HoldingEngine
) -> None:
    """When it goes on its time is up, and what it knows of the node is too old: no fault of the node."""
    timeout_s = 2 * STALE_AFTER_S  # within it the process must be stopped; once it is, however long
    patient = GatewayProcess(tmp_path / "gw", "--poll-timeout-s", "1.5")
    with patient.running() as gateway, ThreadPoolExecutor(1) as threads:
        document = assignment([engine])
        document["nodes"][0]["max_num_seqs"] = 1
        document["policy"]["tiers"]["batch"] |= {"max_requeues": 1, "queue_timeout_s": timeout_s}
        assert gateway.push(document).status_code == 200
        eventually(lambda: gateway.status()["nodes_usable"] == 1)
        taken_back = Client(gateway, stream=False)
        taken_back.start()
        eventually(lambda: engine.running == 1)
        urgent = threads.submit(ask, gateway, "hold=1 tokens=1")
        eventually(lambda: endings(engine) == ["aborted", "running"] and waiting(gateway) == 1)
        os.kill(gateway.process.pid, signal.SIGSTOP)
        time.sleep(timeout_s + 1.0)
        engine.let_go.set()
        eventually(lambda: engine.running == 0)
        os.kill(gateway.process.pid, signal.SIGCONT)
        assert urgent.result(60) == 200
        taken_back.join()
        assert taken_back.answer is not None
        assert taken_back.answer.status_code == 200, taken_back.answer.text
        assert gateway.status()["in_flight_tokens"] == 0
