"""A tiny HTTP server that plays vLLM nodes: it serves whatever page or misbehaviour a test sets.

Each node has a port of its own. Prevents: tests that mock the socket away.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from tests import in_process

DATA = Path(__file__).parent / "data" / "metrics"


class SmallNode:
    """One HTTP server on a free port whose `/metrics` the test controls."""

    def __init__(self) -> None:
        self.body: bytes = b""
        self.status = 200
        self.content_type = "text/plain"
        self.delay_s = 0.0
        self.reset_first = 0  # break this many connections before answering
        self.asked = 0
        self.headers: dict[str, str] = {}
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.add_routes([web.get("/metrics", self._metrics)])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await in_process.close(self._runner)
            self._runner = None

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        if self.reset_first > 0:
            self.reset_first -= 1
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        return web.Response(
            body=self.body, status=self.status, content_type=self.content_type, headers=self.headers
        )


@asynccontextmanager
async def small_nodes(count: int) -> AsyncGenerator[list[SmallNode]]:
    """Start `count` nodes, stop them at the end."""
    nodes = [SmallNode() for _ in range(count)]
    try:
        for node in nodes:
            await node.start()
        yield nodes
    finally:
        for node in nodes:
            await node.stop()


def page(
    *,
    finished: int = 0,
    prompt: int = 0,
    generated: int = 0,
    running: int = 0,
    waiting: int = 0,
    kv: float = 0.0,
    itl: tuple[int, float] = (0, 0.0),
    started_s: float = 1_000.0,
    model: str = "m",
    engine: str = "0",
) -> bytes:
    """Return a page as vLLM 0.32 writes it, reduced to what the sums need. `itl` is (count, sum)."""
    labels = f'{{engine="{engine}",model_name="{model}"}}'
    inner = f'engine="{engine}",model_name="{model}"'
    count, total = itl
    lines = [
        f"process_start_time_seconds {started_s}",
        f"vllm:num_requests_running{labels} {running}",
        f"vllm:num_requests_waiting{labels} {waiting}",
        f"vllm:kv_cache_usage_perc{labels} {kv}",
        f'vllm:request_success_total{{{inner},finished_reason="stop"}} {finished}',
        f"vllm:prompt_tokens_total{labels} {prompt}",
        f"vllm:generation_tokens_total{labels} {generated}",
        f"vllm:num_preemptions_total{labels} 0",
        f'vllm:inter_token_latency_seconds_bucket{{{inner},le="0.05"}} {count}',
        f'vllm:inter_token_latency_seconds_bucket{{{inner},le="+Inf"}} {count}',
        f"vllm:inter_token_latency_seconds_sum{labels} {total}",
        f"vllm:inter_token_latency_seconds_count{labels} {count}",
        f'vllm:cache_config_info{{{inner},block_size="16",num_gpu_blocks="1000"}} 1',
    ]
    return ("\n".join(lines) + "\n").encode()
