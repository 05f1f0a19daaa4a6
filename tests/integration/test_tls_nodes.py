"""Nodes behind TLS: what is said of connections holds there, where the loop speaks through another layer.

A real server with a certificate of its own; the loop is uvloop, which reads before what is due soon.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest
import uvloop

from admission.alarm import Alarm
from admission.outbox import MAX_HELD_BYTES, Outbox
from admission.wire import NodeFailed, Wire
from tests.deployed_proxy import certificate

WAIT_S = 60.0


@pytest.fixture(scope="module")
def cert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"), "localhost", "IP:127.0.0.1")


class Place:
    """A connection to a node by TLS, and the node's end of it, which is read by hand."""

    def __init__(self, wire: Wire, theirs: ssl.SSLSocket, outbox: Outbox) -> None:
        self.wire, self.theirs, self.outbox = wire, theirs, outbox

    def read(self) -> bytes:
        """Return what has come for the node."""
        found = b""
        with contextlib.suppress(ssl.SSLWantReadError):
            while part := self.theirs.recv(1 << 20):
                found += part
        return found

    def answer(self) -> None:
        self.theirs.setblocking(True)
        self.theirs.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        self.theirs.setblocking(False)

    async def read_all(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            found += self.read()
            await asyncio.sleep(0.005)
        return found


def played(cert: tuple[Path, Path], play: Callable[[Place], Awaitable[None]]) -> None:
    theirs_by = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs_by.load_cert_chain(*cert)
    trusting = ssl.create_default_context(cafile=str(cert[0]))

    async def run() -> None:
        loop = asyncio.get_running_loop()
        outbox = Outbox(loop)
        with socket.create_server(("127.0.0.1", 0)) as door:
            port = door.getsockname()[1]
            accepting = loop.run_in_executor(
                None, lambda: theirs_by.wrap_socket(door.accept()[0], server_side=True)
            )
            wire = Wire(loop, Alarm(loop), outbox)
            await loop.create_connection(
                lambda: cast("asyncio.Protocol", wire), "127.0.0.1", port, ssl=trusting
            )
            with await accepting as theirs:
                theirs.setblocking(False)
                async with asyncio.timeout(WAIT_S):
                    await play(Place(wire, theirs, outbox))
                    wire.cut()
                    while wire._transport is not None:  # the layers below end one after the other
                        await asyncio.sleep(0.005)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def test_requests_go_whole_and_in_their_order_over_one_connection(cert: tuple[Path, Path]) -> None:
    async def play(place: Place) -> None:
        for size in (10, MAX_HELD_BYTES - 1, 4 * MAX_HELD_BYTES, 0):
            request = b"POST / HTTP/1.1\r\n\r\n" + bytes(size)
            place.wire.send(request)
            assert await place.read_all(len(request)) == request
            place.answer()
            await place.wire.head(WAIT_S)
            assert await place.wire.read(WAIT_S) == b"ok"
            assert place.wire.end()

    played(cert, play)


def test_a_request_that_met_the_goodbye_of_its_node_never_left(cert: tuple[Path, Path]) -> None:
    async def play(place: Place) -> None:
        place.wire.send(b"GET / HTTP/1.1\r\n\r\n")
        await place.read_all(18)
        place.answer()
        await place.wire.head(WAIT_S)
        assert await place.wire.read(WAIT_S) == b"ok"
        assert place.wire.end()
        with contextlib.suppress(ssl.SSLWantReadError):
            place.theirs.unwrap()  # says that it ends, and does not wait for ours
        place.wire.send(b"POST / HTTP/1.1\r\n\r\n")
        with pytest.raises(NodeFailed):
            await place.wire.head(WAIT_S)
        assert place.wire.never_left
        assert place.wire.is_unread

    played(cert, play)
