"""A client that ends its side has left, whatever lies unread: it keeps no engine at work and no place."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import uvloop

from admission.clients import Listener
from admission.http_server import Connection
from admission.inbound import Inbound
from admission.settings import Settings
from fleet.clock import ManualClock

Handler = Callable[[Inbound], Awaitable[None]]
LONG_S = 3_600.0
WAIT_S = 60


@contextlib.asynccontextmanager
async def listening(
    folder: Path, handler: Handler, write_deadline_s: float
) -> AsyncGenerator[tuple[Listener, int]]:
    settings = Settings(name="gw", state_dir=folder, write_deadline_s=write_deadline_s, keep_alive_s=1)
    listener = Listener(settings, ManualClock(datetime(2026, 11, 1, tzinfo=UTC)), handler)
    door = socket.create_server(("127.0.0.1", 0))
    door.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)  # so that the kernel takes little
    server = await asyncio.get_running_loop().create_server(listener.connection, sock=door)
    try:
        yield listener, door.getsockname()[1]
    finally:
        server.close()
        await listener.close(0.0)
        await gone(listener)


@contextlib.contextmanager
def who_reads_nothing(port: int) -> Generator[socket.socket]:
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect(("127.0.0.1", port))
        client.sendall(b"GET /a HTTP/1.1\r\nHost: g\r\n\r\n")
        yield client


async def write_until_some_is_left(request: Inbound) -> None:
    """Write until the kernel takes no more, and little beyond: the client counts as one that reads."""
    request.start(200, [])
    transport = cast("Connection", request._way)._transport
    assert transport is not None
    while transport.inner.get_write_buffer_size() < 8_192:
        assert request.write_on(b"x" * 4_096)
        await asyncio.sleep(0.01)  # in which the kernel takes what it takes


async def gone(listener: Listener) -> None:
    async with asyncio.timeout(WAIT_S):
        while listener.connections:
            await asyncio.sleep(0.01)


def test_one_that_leaves_its_answer_unread_stops_its_handler_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        has_begun, was_stopped = asyncio.Event(), asyncio.Event()

        async def streaming(request: Inbound) -> None:
            request.watch()
            await write_until_some_is_left(request)
            has_begun.set()
            try:
                await asyncio.Event().wait()  # for an engine
            except asyncio.CancelledError:
                was_stopped.set()
                raise

        async with listening(tmp_path, streaming, LONG_S) as (_, port), asyncio.timeout(WAIT_S):
            with who_reads_nothing(port) as client:
                await has_begun.wait()
                client.shutdown(socket.SHUT_WR)
                await was_stopped.wait()

    uvloop.run(story())


def test_one_that_never_reads_the_end_of_its_answer_is_cut_when_its_time_is_up(tmp_path: Path) -> None:
    async def story() -> None:
        has_ended = asyncio.Event()

        async def streaming(request: Inbound) -> None:
            await write_until_some_is_left(request)
            request.end()
            has_ended.set()

        async with listening(tmp_path, streaming, 0.2) as (listener, port), asyncio.timeout(WAIT_S):
            with who_reads_nothing(port) as client:
                await has_ended.wait()
                client.shutdown(socket.SHUT_WR)
                await gone(listener)

    uvloop.run(story())


def test_what_was_written_before_a_client_ended_its_side_still_goes(tmp_path: Path) -> None:
    """Both in one turn: the answer waits for the end of the turn when the client's end is read."""

    async def story() -> None:
        async def answering(request: Inbound) -> None:
            request.answer(200, [], b"served")
            cast("Connection", request._way).eof_received()
            transport = cast("Connection", request._way)._transport
            assert transport is not None
            transport.inner.close()  # as the loop does next

        async with listening(tmp_path, answering, LONG_S) as (_, port), asyncio.timeout(WAIT_S):
            with who_reads_nothing(port) as client:
                client.setblocking(False)
                assert (await asyncio.get_running_loop().sock_recv(client, 1_000)).endswith(b"served")

    uvloop.run(story())
