"""Which requests are known not to have left for a node: nobody works on those, and nobody is billed.

Real sockets. A node whose queue of connections is full answers no attempt to connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import cast

import pytest
import uvloop
from pydantic import SecretStr

from admission.alarm import Alarm
from admission.outbox import Outbox
from admission.settings import Settings
from admission.upstream import NodeFailed, Upstream
from admission.wire import Wire
from tests.gateway_process import ADMIN_TOKEN

WAIT_S = 60.0
BODY = b'{"model": "m"}'


class Known:
    """Counts what `post` says of a request."""

    def __init__(self) -> None:
        self.unsent = 0

    def note(self) -> None:
        self.unsent += 1


@contextlib.contextmanager
def listening() -> Generator[tuple[socket.socket, str]]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        listener.settimeout(WAIT_S)
        yield listener, f"http://127.0.0.1:{listener.getsockname()[1]}/v1/chat/completions"


@contextlib.contextmanager
def full() -> Generator[str]:
    """A place that lets everybody wait who connects: its queue is full and nobody takes from it."""
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1/chat/completions"


def played(
    play: Callable[[Upstream, Known], Awaitable[None]],
    *,
    connect_timeout_s: float = WAIT_S,
    first_byte_timeout_s: float = WAIT_S,
) -> Known:
    known = Known()

    async def run() -> None:
        settings = Settings(
            name="gw-test",
            state_dir=Path("/nowhere"),
            admin_token=SecretStr(ADMIN_TOKEN),
            connect_timeout_s=connect_timeout_s,
            first_byte_timeout_s=first_byte_timeout_s,
        )
        async with asyncio.timeout(WAIT_S), Upstream(settings) as upstream:
            await play(upstream, known)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    return known


async def request_read(listener: socket.socket) -> socket.socket:
    """Return the next connection once its request is read."""
    loop = asyncio.get_running_loop()
    connection, _ = await loop.run_in_executor(None, listener.accept)
    connection.settimeout(WAIT_S)
    read = b""
    while not read.endswith(BODY):
        read += await loop.run_in_executor(None, connection.recv, 4096)
    return connection


async def given_up(post: asyncio.Task[object]) -> None:
    post.cancel()
    with pytest.raises(asyncio.CancelledError):
        await post


def test_a_request_given_up_while_it_connects_has_not_left() -> None:
    async def play(upstream: Upstream, known: Known) -> None:
        post = asyncio.create_task(upstream.post(url, BODY, "r-1", unsent=known.note))
        await asyncio.sleep(0.05)
        await given_up(post)

    with full() as url:
        assert played(play).unsent == 1


def test_a_request_for_which_no_connection_came_about_has_not_left() -> None:
    async def play(upstream: Upstream, known: Known) -> None:
        with pytest.raises(NodeFailed) as caught:
            await upstream.post(url, BODY, "r-1", unsent=known.note)
        assert caught.value.is_timeout

    with full() as url:
        assert played(play, connect_timeout_s=0.05).unsent == 1
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/"

        async def refused(upstream: Upstream, known: Known) -> None:
            with pytest.raises(NodeFailed, match="refused"):
                await upstream.post(url, BODY, "r-1", unsent=known.note)

        assert played(refused).unsent == 1


def test_a_request_given_up_before_the_turn_ends_has_not_left() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        for turns in (0, 3):
            ours, theirs = socket.socketpair()
            with theirs:
                wire = Wire(loop, Alarm(loop), Outbox(loop))
                await loop.create_connection(lambda wire=wire: cast("asyncio.Protocol", wire), sock=ours)
                wire.send(b"POST / HTTP/1.1\r\n\r\n")
                for _ in range(turns):
                    await asyncio.sleep(0)
                wire.cut()
                await asyncio.sleep(0)
                theirs.settimeout(WAIT_S)
                assert wire.never_left == (theirs.recv(100) == b"") == (turns == 0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


@pytest.mark.parametrize("ends", ["given up", "too late"])
def test_a_request_whose_body_the_node_does_not_take_has_not_left(
    ends: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is larger than what the kernels hold for a node that reads nothing."""

    async def play(upstream: Upstream, known: Known) -> None:
        post = asyncio.create_task(upstream.post(url, b"x" * (64 << 20), "r-1", unsent=known.note))
        connection, _ = await asyncio.get_running_loop().run_in_executor(None, listener.accept)
        with connection:
            await asyncio.sleep(0.05)
            if ends == "given up":
                await given_up(post)
            else:
                with pytest.raises(NodeFailed) as caught:
                    await post
                assert caught.value.is_timeout

    with listening() as (listener, url):
        assert played(play, first_byte_timeout_s=WAIT_S if ends == "given up" else 0.2).unsent == 1
    assert [one.message for one in caplog.records] == []  # that it has to wait is no fault


def test_a_request_cut_while_the_node_reads_on_has_left_exactly_if_the_node_can_have_all_of_it() -> None:
    """Cut with little left to send, which the loop would still write in the turn that ends it."""
    whole = b"POST / HTTP/1.1\r\n\r\n" + b"x" * (8 << 20)
    told = list[bool]()

    def read_out(theirs: socket.socket) -> int:
        size = 0
        while part := theirs.recv(1 << 20):
            size += len(part)
        return size

    async def run() -> None:
        loop = asyncio.get_running_loop()
        for number in range(40):
            ours, theirs = socket.socketpair()
            with theirs:
                theirs.settimeout(WAIT_S)
                wire = Wire(loop, Alarm(loop), Outbox(loop))
                transport, _ = await loop.create_connection(
                    lambda wire=wire: cast("asyncio.Protocol", wire), sock=ours
                )
                wire.send(whole)
                reading = loop.run_in_executor(None, read_out, theirs)
                await asyncio.sleep(0)
                while transport.get_write_buffer_size() > number << 14:
                    await asyncio.sleep(0)
                wire.cut()
                told.append(wire.never_left)
                assert (await reading < len(whole)) == wire.never_left

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    assert True in told


@pytest.mark.parametrize("ends", ["given up", "reset"])
def test_a_request_that_the_node_has_read_has_left(ends: str) -> None:
    async def play(upstream: Upstream, known: Known) -> None:
        post = asyncio.create_task(upstream.post(url, BODY, "r-1", unsent=known.note))
        with await request_read(listener):
            if ends == "given up":
                await given_up(post)
        if ends == "reset":
            with pytest.raises(NodeFailed):
                await post

    with listening() as (listener, url):
        assert played(play).unsent == 0


def test_what_never_left_goes_again_without_a_retry_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node ends what is idle after we looked at it, and before the request leaves."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    accepted: list[socket.socket] = []

    def is_quiet(wire: Wire) -> bool:
        accepted[-1].close()
        return wire.is_open

    async def play(upstream: Upstream, known: Known) -> None:
        upstream.may_renew = lambda: False  # the budget is used up
        for _ in range(2):
            post = asyncio.create_task(upstream.post(url, BODY, "r-1", unsent=known.note))
            connection = await request_read(listener)
            accepted.append(connection)
            connection.sendall(answer)
            (await post).close()
        assert upstream.renewed == 1

    monkeypatch.setattr(Wire, "is_quiet", property(is_quiet))
    with listening() as (listener, url):
        assert played(play).unsent == 0
    accepted[-1].close()
