"""Which task handles the requests of a client connection: the same one after another, and none is left."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from admission.clients import Listener
from admission.inbound import Inbound
from admission.settings import Settings
from fleet.clock import ManualClock

Handler = Callable[[Inbound], Awaitable[None]]


def get(path: bytes) -> bytes:
    return b"GET %s HTTP/1.1\r\nHost: g\r\n\r\n" % path


@contextlib.asynccontextmanager
async def listening(folder: Path, handler: Handler) -> AsyncGenerator[tuple[Listener, int]]:
    clock = ManualClock(datetime(2026, 11, 1, tzinfo=UTC))
    listener = Listener(Settings(name="gw", state_dir=folder), clock, handler)
    server = await asyncio.get_running_loop().create_server(listener.connection, "127.0.0.1", 0)
    try:
        yield listener, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await listener.close(0.0)


@contextlib.asynccontextmanager
async def talking(port: int) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def answer_of(reader: asyncio.StreamReader) -> bytes:
    """Return the body of the next answer."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
    return await asyncio.wait_for(reader.readexactly(int(length.partition(b":")[2])), 60)


async def settled(count: int) -> None:
    """Return once so many tasks are left, this one included."""
    async with asyncio.timeout(60):
        while len(asyncio.all_tasks()) > count:
            await asyncio.sleep(0.01)


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await story()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_requests_that_follow_are_handled_by_one_task_that_ends_with_the_connection(tmp_path: Path) -> None:
    seen: list[asyncio.Task[None] | None] = []

    async def noting(request: Inbound) -> None:
        seen.append(asyncio.current_task())
        assert request.task is asyncio.current_task()  # what is cancelled when the client leaves
        request.answer(200, [], request.path.encode())

    async def story() -> None:
        before = len(asyncio.all_tasks())
        async with listening(tmp_path, noting) as (_, port):
            async with talking(port) as (reader, writer):
                for path in (b"/a", b"/b", b"/c"):
                    writer.write(get(path))
                    assert await answer_of(reader) == path
            await settled(before)

    run(story)
    assert len(seen) == 3
    assert len(set(seen)) == 1


def test_a_connection_that_waits_holds_no_request(tmp_path: Path) -> None:
    async def answering(request: Inbound) -> None:
        request.answer(200, [], b"a")

    async def story() -> None:
        async with listening(tmp_path, answering) as (_, port), talking(port) as (reader, writer):
            for _ in range(3):
                writer.write(get(b"/a"))
                assert await answer_of(reader) == b"a"
                gc.collect()
                assert [one for one in gc.get_objects() if isinstance(one, Inbound)] == []

    run(story)


def test_a_request_behind_one_whose_handler_is_not_done_is_handled(tmp_path: Path) -> None:
    may_end = asyncio.Event()

    async def lingering(request: Inbound) -> None:
        request.answer(200, [], request.path.encode())
        if request.path == "/slow":
            await may_end.wait()

    async def story() -> None:
        before = len(asyncio.all_tasks())
        async with listening(tmp_path, lingering) as (_, port):
            async with talking(port) as (reader, writer):
                for path in (b"/slow", b"/a", b"/b"):
                    writer.write(get(path))
                    assert await answer_of(reader) == path
                may_end.set()
                for path in (b"/c", b"/d"):  # whichever task waits now
                    writer.write(get(path))
                    assert await answer_of(reader) == path
            await settled(before)

    run(story)


def test_a_handler_that_fails_ends_its_connection_and_no_other(tmp_path: Path) -> None:
    async def failing(request: Inbound) -> None:
        if request.path == "/bad":
            raise RuntimeError("a fault of ours")
        request.answer(200, [], b"good")

    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, about: told.append(about["message"]))
        before = len(asyncio.all_tasks())
        async with listening(tmp_path, failing) as (_, port):
            async with talking(port) as (reader, writer), talking(port) as (other, to_other):
                for to, back in ((writer, reader), (to_other, other)):
                    to.write(get(b"/a"))
                    assert await answer_of(back) == b"good"
                writer.write(get(b"/bad"))
                assert b"the gateway failed" in await answer_of(reader)
                assert await asyncio.wait_for(reader.read(), 60) == b""
                to_other.write(get(b"/b"))
                assert await answer_of(other) == b"good"
            await settled(before)
            gc.collect()  # the fault's traceback leads back to its task

    told: list[str] = []
    run(story)
    assert told == ["Task exception was never retrieved"]  # which is how a fault comes to the log


def test_a_client_that_leaves_stops_its_handler_and_the_task(tmp_path: Path) -> None:
    stopped: list[str] = []
    begun = asyncio.Event()

    async def waiting(request: Inbound) -> None:
        if request.path == "/a":
            request.answer(200, [], b"a")
            return
        request.watch()
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append(request.path)
            raise

    async def story() -> None:
        before = len(asyncio.all_tasks())
        async with listening(tmp_path, waiting) as (listener, port):
            async with talking(port) as (reader, writer):
                writer.write(get(b"/a"))
                assert await answer_of(reader) == b"a"
                writer.write(get(b"/wait"))
                await asyncio.wait_for(begun.wait(), 60)
            async with asyncio.timeout(60):
                while listener.connections:
                    await asyncio.sleep(0.01)
            await settled(before)

    run(story)
    assert stopped == ["/wait"]
