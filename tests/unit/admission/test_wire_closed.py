"""Whether a node that closes a connection can have read the request on it, told by its kernel.

Real sockets; the node is a thread that does to each connection what a test says.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
import uvloop

from admission.settings import Settings
from admission.upstream import NodeFailed, Upstream
from admission.wire import RESET_WITHIN_S, was_not_read

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
WAIT_S = 60.0
Act = Callable[[socket.socket], bytes]
LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


def answer(connection: socket.socket) -> bytes:
    """Read one request and answer it."""
    got = connection.recv(65_536)
    connection.sendall(ANSWER)
    return got


def read_all(connection: socket.socket) -> bytes:
    """Read one request, say nothing."""
    return connection.recv(65_536)


def read_part(connection: socket.socket) -> bytes:
    """Read the beginning of a request, as a process does that is killed meanwhile."""
    connection.recv(10)
    return b""


def read_nothing(connection: socket.socket) -> bytes:
    """Wait until a request lies in the kernel, and leave it there."""
    select.select([connection], [], [], WAIT_S)
    return b""


def reset(connection: socket.socket) -> None:
    """Have the connection end with a reset, whatever was read."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def read_all_and_reset(connection: socket.socket) -> bytes:
    """Read one request and reset: nobody can tell that it was read."""
    got = connection.recv(65_536)
    reset(connection)
    return got


def begin_to_answer_and_reset(connection: socket.socket) -> bytes:
    """Read nothing of a request, say one byte of an answer, and reset."""
    read_nothing(connection)
    connection.sendall(b"H")
    reset(connection)
    return b""


def say_continue_and_reset(connection: socket.socket) -> bytes:
    """Read nothing of a request, have the client go on, and reset."""
    read_nothing(connection)
    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    reset(connection)
    return b""


def read_all_and_reset_later(connection: socket.socket) -> bytes:
    """Read one request, work on it, and be reset, as by a balancer that takes the connection for idle."""
    got = connection.recv(65_536)
    time.sleep(RESET_WITHIN_S + 0.2)
    reset(connection)
    return got


def call_too_slow(connection: socket.socket) -> bytes:
    """Say that no request came in time, as one is on its way."""
    connection.recv(65_536)
    connection.sendall(ANSWER.replace(b"200 OK", b"408 Request Timeout\r\nConnection: close"))
    return b""


class Node:
    """Does the acts of a plan to each connection in turn, then closes it."""

    def __init__(self, *plan: list[Act]) -> None:
        self.plan = plan
        self.got: list[bytes] = []  # whole requests that it read
        self.connections = 0
        self.url = ""

    def _serve(self, listening: socket.socket) -> None:
        for acts in self.plan:
            try:
                connection, _ = listening.accept()
            except OSError:
                return  # the test is over
            self.connections += 1
            with connection:
                connection.settimeout(WAIT_S)
                self.got += [got for act in acts if (got := act(connection))]

    @contextmanager
    def serving(self) -> Generator[Node]:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.settimeout(WAIT_S)
            self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1/completions"
            thread = threading.Thread(target=self._serve, args=(listening,))
            thread.start()
            try:
                yield self
            finally:
                listening.shutdown(socket.SHUT_RDWR)  # wakes it where it still waits
                thread.join(WAIT_S)


def ends(
    node: Node,
    count: int,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    may_renew: Callable[[], bool] = lambda: True,
) -> tuple[str, int]:
    """Send requests one after the other; return how each ended, and how many were renewed."""
    settings = Settings(name="gw", state_dir=Path("unused"), first_byte_timeout_s=WAIT_S)

    async def play() -> tuple[str, int]:
        said = ""
        async with Upstream(settings) as upstream:
            upstream.may_renew = may_renew
            for number in range(count):
                try:
                    exchange = await upstream.post(node.url, b'{"n":%d}' % number, "r1")
                    assert await exchange.body(100) == b"{}"
                    exchange.close()
                    said += "+" if exchange.status == 200 else "!"
                except NodeFailed:
                    said += "-"
            return said, upstream.renewed

    with node.serving(), asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(play())


@LOOPS
@pytest.mark.parametrize("act", [read_nothing, read_part])
def test_a_kept_connection_closed_under_a_request_costs_nothing(
    act: Act, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    node = Node([answer, act], [answer, answer])
    assert ends(node, 3, new_loop) == ("+++", 1)
    assert [got[-7:] for got in node.got] == [b'{"n":0}', b'{"n":1}', b'{"n":2}']


@LOOPS
@pytest.mark.parametrize("act", [read_all, read_all_and_reset_later])
def test_a_node_that_read_the_request_and_ends_is_not_sent_it_again(
    act: Act, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    node = Node([answer, act], [answer])
    assert ends(node, 3, new_loop) == ("+-+", 0)
    assert [got[-7:] for got in node.got] == [b'{"n":0}', b'{"n":1}', b'{"n":2}']


@LOOPS
def test_it_is_sent_again_once_and_never_from_a_new_connection(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    node = Node([answer, read_nothing], [read_nothing], [read_nothing], [answer])
    assert ends(node, 4, new_loop) == ("+--+", 1)
    assert node.connections == 4


@LOOPS
@pytest.mark.parametrize("act", [begin_to_answer_and_reset, say_continue_and_reset])
def test_a_request_of_whose_answer_a_byte_came_is_not_sent_again(
    act: Act, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    node = Node([answer, act], [answer])
    assert ends(node, 3, new_loop) == ("+-+", 0)


@LOOPS
def test_what_a_node_gets_twice_is_bounded_by_the_budget(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    # Each connection takes one request well, reads the next and resets: two retries are allowed in all.
    left = iter([True, True])
    node = Node(*[[answer, read_all_and_reset]] * 5)
    assert ends(node, 8, new_loop, lambda: next(left, False)) == ("+++-+-+-", 2)
    bodies = [got.partition(b"\r\n\r\n")[2] for got in node.got]
    assert Counter(Counter(bodies).values()) == {2: 2, 1: 6}


@LOOPS
def test_a_connection_called_too_slow_because_it_was_idle_costs_nothing(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """RFC 9110, 15.5.9: the request may be repeated; within the budget, and not where it was the first."""
    node = Node([answer, call_too_slow], [answer, call_too_slow], [call_too_slow], [answer])
    left = iter([True, True])
    assert ends(node, 4, new_loop, lambda: next(left, False)) == ("++!+", 2)
    node = Node([answer, call_too_slow], [answer])
    assert ends(node, 3, new_loop, lambda: False) == ("+!+", 0)


class Probe(asyncio.Protocol):
    """Asks the predicate when its connection is lost."""

    def __init__(self) -> None:
        self.told = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.set_result(was_not_read(self.transport, exc, 0.0))


@LOOPS
@pytest.mark.parametrize("is_read", [False, True])
def test_an_end_that_was_on_its_way_before_the_request_is_told_from_one_after_it(
    is_read: bool, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def play() -> bool:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            address = listening.getsockname()
            transport, probe = await asyncio.get_running_loop().create_connection(Probe, *address)
            node, _ = listening.accept()
            with node:
                if is_read:
                    transport.write(b"request")
                    assert node.recv(100) == b"request"
            if not is_read:  # its end is with us, and the loop has not looked yet
                transport.write(b"request")
            try:
                async with asyncio.timeout(WAIT_S):
                    return await probe.told
            finally:
                transport.abort()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(play()) is not is_read
