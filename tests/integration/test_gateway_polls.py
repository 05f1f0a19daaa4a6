"""What a gateway makes of frozen and hostile pages: real sockets, and a clock moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from admission.nodes import NodeBook, Standing
from admission.settings import Settings
from admission.upstream import Upstream
from fleet.clock import ManualClock
from fleet.messages import NodeTarget
from fleet.offers import NodeState
from tests import in_process
from tests.small_node import page

POLL_S = 0.5


class Polled:
    """A node with `/health` and `/metrics`, and a gateway's book that polls it when told."""

    def __init__(self, book: NodeBook, standing: Standing, clock: ManualClock) -> None:
        self.book, self.standing, self.clock = book, standing, clock
        self.body = page(running=2, kv=0.5, generated=10)

    async def poll(self, times: int = 1) -> str:
        """Poll; return why the node is closed, "" while it is open."""
        for _ in range(times):
            await self.book._poll(self.standing)
            self.clock.advance(POLL_S)
        return self.standing.closed_because

    async def metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self.body, content_type="text/plain")


@asynccontextmanager
async def polled(clock: ManualClock, folder: Path) -> AsyncGenerator[Polled]:
    seen: list[NodeState] = []
    settings = Settings(
        state_dir=folder,
        name="gw",
        admin_token_file=folder / "token",
        poll_timeout_s=60,
        connect_timeout_s=60,
    )
    async with Upstream(settings) as upstream:
        book = NodeBook(settings, clock, upstream, seen.append)
        target = NodeTarget(name="n", pool="p", base_url="http://127.0.0.1:1", models=("m",))
        node = Polled(book, Standing(target), clock)
        app = web.Application()

        async def health(_request: web.Request) -> web.Response:
            return web.Response(text="ok")

        app.add_routes([web.get("/metrics", node.metrics), web.get("/health", health)])
        async with in_process.closed(web.AppRunner(app, access_log=None)) as runner:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            node.standing = Standing(target.model_copy(update={"base_url": url}))
            yield node


def test_a_worker_that_hangs_closes_its_node_after_fifteen_seconds_and_not_before(
    clock: ManualClock, tmp_path: Path
):
    async def run() -> None:
        async with polled(clock, tmp_path) as node:
            assert await node.poll(30) == ""  # the 30th page is 14.5 s after the first
            assert await node.poll() == "frozen"
            node.body = page(running=2, kv=0.5, generated=11)
            assert await node.poll() == ""

    asyncio.run(run())


def test_a_long_prefill_of_a_lone_request_does_not_close_its_node(clock: ManualClock, tmp_path: Path):
    async def run() -> None:
        async with polled(clock, tmp_path) as node:
            for step in range(60):  # half a minute in which only the KV cache fills
                node.body = page(running=1, kv=step / 100)
                assert await node.poll() == ""

    asyncio.run(run())


def test_hostile_pages_close_their_node_and_leave_the_loop_to_requests(clock: ManualClock, tmp_path: Path):
    async def run() -> None:
        async with polled(clock, tmp_path) as node:
            for body in (
                b"\n" * (3 << 20),
                b"vllm:x{" * 400_000,
                b"<html>" + b"a" * (1 << 20),
                b"vllm:num_requests_running " + b"9" * (2 << 20) + b"\n",
                b"\x00\xff" * (1 << 20),
            ):
                node.body = body
                assert await node.poll(2) == "no_engine_series"
            node.body = page(running=1, kv=0.1) + b"#" * (5 << 20)
            assert await node.poll(2) == "too_large"
            node.body = page(running=1, kv=0.1, generated=99)
            assert await node.poll() == ""

    asyncio.run(run())
