"""A node that closes kept connections whenever it likes, behind a gateway that has no other node."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.gateway_process import KEYS, MODEL, FakeEngine, GatewayProcess, chat, eventually

pytestmark = pytest.mark.slow

REQUESTS = 2_000
CLIENTS = 4
LATEST_S = 0.003  # between an answer and the node's end of the connection
PAGE = f"""vllm:num_requests_running{{engine="0",model_name="{MODEL}"}} 0
vllm:num_requests_waiting{{engine="0",model_name="{MODEL}"}} 0
vllm:kv_cache_usage_perc{{engine="0",model_name="{MODEL}"}} 0.0
vllm:generation_tokens_total{{engine="0",model_name="{MODEL}"}} 0
vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="100000"}} 1.0
"""
ANSWER = json.dumps(
    {"choices": [{"message": {"role": "assistant", "content": "x"}}],
     "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}}
)  # fmt: skip


class Closer(asyncio.Protocol):
    """One connection of the node: whole requests in, answers out, an end when nobody expects it."""

    def __init__(self, node: ClosingNode) -> None:
        self.node, self.got, self.left = node, b"", node.rng.randint(1, 4)
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.node.open.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.node.open.discard(self.transport)

    def data_received(self, data: bytes) -> None:
        if self.timer is not None:  # as a server does: what has a request is not idle
            self.timer.cancel()
        self.got += data
        head, end, body = self.got.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if not end or len(body) < int(length or 0):
            return
        self.got = b""
        said = {b"/metrics": PAGE, b"/health": ""}.get(head.split(b" ")[1])
        if said is None:
            said = ANSWER
            self.node.served[head.partition(b"X-Request-Id: ")[2].partition(b"\r\n")[0]] += 1
            if self.node.resets and self.node.served.total() % 2:
                self.reset()
                return
        text = said.encode()
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(text) + text
        )
        self.left -= 1
        if self.left <= 0 and not self.node.resets:
            pause_s = self.node.rng.uniform(0.0, LATEST_S)
            self.timer = asyncio.get_running_loop().call_later(pause_s, self.transport.close)

    def reset(self) -> None:
        """End the connection as one does that has read nothing, though it was all read."""
        linger = struct.pack("ii", 1, 0)
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.transport.abort()


class ClosingNode:
    """The node, on a thread of its own. `resets`: each second request is read and its connection reset."""

    def __init__(self, *, resets: bool = False) -> None:
        self.resets = resets
        self.name, self.rng = "node-1", random.Random(7)
        self.served: Counter[bytes] = Counter()  # times each request came whole
        self.open = set[asyncio.BaseTransport]()
        self.base_url = ""

    async def _run(self, ready: threading.Event) -> None:
        self.loop, self.stop = asyncio.get_running_loop(), asyncio.Event()
        server = await self.loop.create_server(lambda: Closer(self), "127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        await self.stop.wait()
        server.close()
        for transport in list(self.open):
            transport.close()
        while self.open:
            await asyncio.sleep(0.01)

    @contextmanager
    def serving(self) -> Generator[ClosingNode]:
        ready = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(self._run(ready)))
        thread.start()
        assert ready.wait(60)
        try:
            yield self
        finally:
            self.loop.call_soon_threadsafe(self.stop.set)
            thread.join(60)


def ask(port: int, count: int, seen: Counter[int]) -> None:
    """Send requests one after the other on one connection."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Authorization": f"Bearer {KEYS['acme']}", "Content-Type": "application/json"}
    body = json.dumps(chat())
    for _ in range(count):
        client.request("POST", "/v1/chat/completions", body, headers)
        answer = client.getresponse()
        answer.read()
        seen[answer.status] += 1
    client.close()


def test_a_node_that_closes_kept_connections_at_random_costs_no_client_a_request(tmp_path: Path) -> None:
    with ClosingNode().serving() as node, GatewayProcess(tmp_path / "gw").running() as gateway:
        gateway.push_and_open([node])  # type: ignore[list-item]
        seen = [Counter[int]() for _ in range(CLIENTS)]
        share = REQUESTS // CLIENTS
        threads = [threading.Thread(target=ask, args=(gateway.port, share, one)) for one in seen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(240)
        assert sum(seen, Counter[int]()) == {200: REQUESTS}
        # Each came to the engine once; what was sent again had never been read.
        assert len(node.served) == REQUESTS
        assert set(node.served.values()) == {1}
        # No failure of the node's, no retry of the budget's.
        assert gateway.metric("rhodeck_gateway_node_failures_total") == 0
        assert gateway.metric("rhodeck_gateway_retries_total") == 0


def test_a_node_that_resets_what_it_has_read_gets_no_more_twice_than_the_retry_budget(
    tmp_path: Path,
) -> None:
    requests, burst, part = 200, 10, 0.1  # retries at once, and for each request
    with ClosingNode(resets=True).serving() as node, GatewayProcess(tmp_path / "gw").running() as gateway:
        gateway.push_and_open([node])  # type: ignore[list-item]
        seen = Counter[int]()
        ask(gateway.port, requests, seen)
        assert set(seen) == {200, 502}
        twice = sum(times - 1 for times in node.served.values())
        assert max(node.served.values()) == 2
        assert burst <= twice <= burst + part * requests
        assert gateway.metric("rhodeck_gateway_renewed_total") >= twice  # looks at the node are in it, too


def test_a_node_that_has_the_request_and_dies_does_not_get_it_again(tmp_path: Path) -> None:
    with (
        FakeEngine("node-1").serving() as engine,
        GatewayProcess(tmp_path / "gw").running() as gateway,
    ):
        gateway.push_and_open([engine])
        with gateway.client() as client:
            assert client.post("/v1/chat/completions", json=chat()).status_code == 200  # one is kept
            assert client.post("/v1/chat/completions", json=chat("fault=reset")).status_code == 502
        assert [served.ending for served in engine.served] == ["finished", "cut"]
        eventually(lambda: gateway.metric("rhodeck_gateway_node_failures_total") == 1)
        assert gateway.metric("rhodeck_gateway_renewed_total") == 0
