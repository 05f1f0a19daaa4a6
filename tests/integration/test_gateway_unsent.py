"""Requests that never left for a node: another node answers them, and nobody is billed.

A node here takes connections, answers polls by closing ones, and then lets who connects wait, as a host
does that lost its power. Times are seconds.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.gateway_process import MODEL, FakeEngine, GatewayProcess, assignment, chat, eventually

PAGE = (
    f'vllm:num_requests_running{{engine="0",model_name="{MODEL}"}} 0\n'
    f'vllm:num_requests_waiting{{engine="0",model_name="{MODEL}"}} 0\n'
    f'vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="4000"}} 1.0\n'
    f'vllm:kv_cache_usage_perc{{engine="0",model_name="{MODEL}"}} 0.0\n'
).encode()
MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()


class Host:
    """A node whose host can be cut off."""

    name = "node-cut"

    def __init__(self) -> None:
        self.requests: list[bytes] = []  # of work
        self._is_on = threading.Event()
        self._is_on.set()
        self._is_over = False
        self._deciding = threading.Lock()
        self._holds = threading.Event()  # it has a connection and lets it wait: it accepts no other
        self._waiting: list[socket.socket] = []

    @contextlib.contextmanager
    def serving(self) -> Generator[Host]:
        with socket.socket() as self._listener:
            self._listener.bind(("127.0.0.1", 0))
            self._listener.listen(0)
            self.base_url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
            thread = threading.Thread(target=self._serve, daemon=True)
            thread.start()
            try:
                yield self
            finally:
                self._is_over = True
                self.plug_in()
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection(self._listener.getsockname(), 5),
                ):
                    pass
                thread.join(60)

    def cut_off(self) -> None:
        """Have everybody wait who connects from now on: one accepted waits, then the queue is full."""
        with self._deciding:
            self._is_on.clear()
        self._connect()
        assert self._holds.wait(60)
        for _ in range(6):  # more than the queue takes
            self._connect()

    def _connect(self) -> None:
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(self._listener.getsockname())
        self._waiting.append(one)

    def _passes(self) -> bool:
        with self._deciding:
            if self._is_on.is_set():
                self._holds.clear()
            else:
                self._holds.set()
            return self._is_on.is_set()

    def plug_in(self) -> None:
        for one in self._waiting:
            one.close()
        self._waiting.clear()
        self._is_on.set()

    def _serve(self) -> None:
        while not self._is_over:
            connection, _ = self._listener.accept()
            with connection, contextlib.suppress(OSError):
                while not self._passes():
                    self._is_on.wait(0.01)
                connection.settimeout(60)
                head = connection.recv(65536)
                if head.startswith(b"POST"):
                    self.requests.append(head)
                body = MODELS if b"/v1/models" in head else PAGE
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
                    % (len(body), body)
                )


def test_a_host_that_is_gone_costs_its_requests_no_answer_and_no_tokens(tmp_path: Path) -> None:
    """Both nodes have room, so the next requests go to both; those of the one that is gone go on."""
    gateway = GatewayProcess(tmp_path / "gw", "--connect-timeout-s", "0.3")
    with Host().serving() as host, FakeEngine("node-1").serving() as engine, gateway.running():
        document = assignment([engine])
        document["nodes"].append({**document["nodes"][0], "name": host.name, "base_url": host.base_url})
        assert gateway.push(document).status_code == 200

        def ask(_: int) -> int:
            with gateway.client("acme", **{"X-Rhodeck-Tier": "batch"}) as client:
                return client.post("/v1/chat/completions", json=chat("tokens=2")).status_code

        def some_went_on() -> bool:
            """Cut the host off until requests were on their way to it: its polls may notice first."""
            eventually(lambda: gateway.status()["nodes_usable"] == 2)
            host.cut_off()
            with ThreadPoolExecutor(6) as pool:
                statuses = list(pool.map(ask, range(6)))
            host.plug_in()
            assert statuses == [200] * 6
            return gateway.metric("rhodeck_gateway_retries_total") > 0

        eventually(some_went_on)
        assert not host.requests
        records = gateway.usage()
        assert {record["node"] for record in records} == {"node-1"}
        assert all(record["exact"] for record in records)
        assert len(records) == len(engine.served)
