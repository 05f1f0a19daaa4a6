"""Bounds of client connections: who comes on top is told so, and takes no place of others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from admission.clients import MOST_TOLD, Listener
from admission.inbound import Inbound
from admission.settings import Settings
from fleet.clock import ManualClock

REQUEST = b"GET /a HTTP/1.1\r\nHost: g\r\n\r\n"


async def answer(request: Inbound) -> None:
    request.answer(200, [], b"served")


class Clients:
    """Clients of one listener. They stay connected until the end."""

    def __init__(self, listener: Listener, port: int) -> None:
        self.listener, self.port = listener, port
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, address: str) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
        self._writers.append(writer)
        return reader

    async def ask(self, address: str) -> bytes:
        """Send a request from a new connection; return the first line of the answer."""
        reader = await self.connect(address)
        self._writers[-1].write(REQUEST)
        async with asyncio.timeout(60):
            return await reader.readline()

    async def leave(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        while self.listener.connections:
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def clients(folder: Path, *, connections: int, per_address: int) -> AsyncGenerator[Clients]:
    limits = Settings(
        name="gw",
        state_dir=folder,
        connections=connections,
        connections_per_address=per_address,
        keep_alive_s=3_600,
    )
    listener = Listener(limits, ManualClock(datetime(2026, 11, 1, tzinfo=UTC)), answer)
    server = await asyncio.get_running_loop().create_server(listener.connection, "127.0.0.1", 0)
    crowd = Clients(listener, server.sockets[0].getsockname()[1])
    try:
        yield crowd
    finally:
        await crowd.leave()
        server.close()
        await listener.close(0.0)


def test_who_is_refused_takes_no_place_of_another_address(tmp_path: Path) -> None:
    async def story() -> None:
        async with clients(tmp_path, connections=6, per_address=3) as crowd:
            for _ in range(3):
                assert b" 200 " in await crowd.ask("127.0.0.2")
            for _ in range(20):  # they read their refusal and stay
                assert b" 503 " in await crowd.ask("127.0.0.2")
            for address in ("127.0.0.3", "127.0.0.3", "127.0.0.4"):
                assert b" 200 " in await crowd.ask(address)
            assert b" 503 " in await crowd.ask("127.0.0.5")  # six are there

    uvloop.run(story())


def test_a_place_is_free_again_when_who_had_it_leaves(tmp_path: Path) -> None:
    async def story() -> None:
        async with clients(tmp_path, connections=2, per_address=2) as crowd:
            for _ in range(3):
                assert b" 200 " in await crowd.ask("127.0.0.2")
                assert b" 200 " in await crowd.ask("127.0.0.3")
                assert b" 503 " in await crowd.ask("127.0.0.2")
                await crowd.leave()
            assert not crowd.listener.by_address

    uvloop.run(story())


def test_a_crowd_beyond_the_limit_holds_a_bounded_number_of_connections(tmp_path: Path) -> None:
    async def story() -> None:
        async with clients(tmp_path, connections=1, per_address=1) as crowd:
            assert b" 200 " in await crowd.ask("127.0.0.2")
            most = 0
            for _ in range(MOST_TOLD + 100):
                await crowd.connect("127.0.0.2")
                most = max(most, len(crowd.listener.connections))
            assert most <= 1 + MOST_TOLD + 5  # some that are cut are not gone yet

    uvloop.run(story())
