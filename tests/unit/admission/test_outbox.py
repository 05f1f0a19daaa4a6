"""What a turn of the loop sends goes together, and never before what must be on disk.

Real sockets and loops; the other end is read by hand.
"""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
import uvloop

from admission.alarm import Alarm
from admission.outbox import MAX_HELD_BYTES, Outbox, Outgoing
from admission.wire import NodeFailed, Wire

LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
WAIT_S = 60.0
Loop = Callable[[], asyncio.AbstractEventLoop]


class Place:
    """An outbox, a connection that sends by it, and the other end of it."""

    def __init__(self) -> None:
        self.writes = 0  # times that what comes first was written
        self.arrived_before = list[bytes]()  # what the other end had, each of these times
        self.faults = 0  # times that it fails first
        self.ours, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)

    def write_first(self) -> None:
        self.writes += 1
        self.arrived_before.append(self.peek())
        if self.faults:
            self.faults -= 1
            raise RuntimeError("a fault of ours")

    def peek(self) -> bytes:
        try:
            return self.theirs.recv(1 << 20, socket.MSG_PEEK)
        except BlockingIOError:
            return b""

    def read(self) -> bytes:
        try:
            return self.theirs.recv(1 << 20)
        except BlockingIOError:
            return b""


def played(new_loop: Loop, play: Callable[[Place, Outbox, Outgoing], Awaitable[None]]) -> Place:
    place = Place()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        outbox = Outbox(loop, place.write_first)
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=place.ours)
        try:
            async with asyncio.timeout(WAIT_S):
                await play(place, outbox, outbox.of(transport))
        finally:
            transport.abort()
            await asyncio.sleep(0)
            place.theirs.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())
    return place


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@LOOPS
def test_what_a_turn_writes_goes_in_order_after_one_write_of_what_comes_first(new_loop: Loop) -> None:
    async def play(place: Place, outbox: Outbox, one: Outgoing) -> None:
        for part in (b"a", b"b", b"c"):
            one.write(part)
        assert place.peek() == b""
        assert not one.is_empty
        await turns()
        assert place.read() == b"abc"
        assert one.is_empty
        one.write(b"d")
        await turns()
        assert place.read() == b"d"

    place = played(new_loop, play)
    assert place.arrived_before == [b"", b""]  # once for each turn, and nothing had left by then


@LOOPS
def test_what_must_be_on_disk_is_written_soon_also_where_nothing_is_sent(new_loop: Loop) -> None:
    async def play(place: Place, outbox: Outbox, one: Outgoing) -> None:
        outbox.soon()
        outbox.soon()
        await turns()

    assert played(new_loop, play).writes == 1


@LOOPS
@pytest.mark.parametrize("end", [Outgoing.close, Outgoing.abort, Outgoing.write_eof, Outgoing.hurry])
def test_an_end_sends_what_was_written_before_it(end: Callable[[Outgoing], None], new_loop: Loop) -> None:
    async def play(place: Place, outbox: Outbox, one: Outgoing) -> None:
        one.write(b"last words")
        end(one)
        assert place.read() == b"last words"
        await turns()
        assert place.read() == b""  # not twice

    assert played(new_loop, play).arrived_before[0] == b""


@LOOPS
def test_what_is_dropped_never_leaves(new_loop: Loop) -> None:
    async def play(place: Place, outbox: Outbox, one: Outgoing) -> None:
        one.write(b"never")
        assert one.drop()
        assert not one.drop()
        one.write(b"sent")
        await turns()
        assert place.read() == b"sent"

    played(new_loop, play)


@LOOPS
def test_no_connection_holds_more_than_its_bound(new_loop: Loop) -> None:
    async def play(place: Place, outbox: Outbox, one: Outgoing) -> None:
        one.write(b"x" * MAX_HELD_BYTES)
        assert place.peek() == b""
        one.write(b"y")
        assert place.read() == b"x" * MAX_HELD_BYTES + b"y"

    played(new_loop, play)


@LOOPS
def test_a_connection_that_is_lost_leaves_the_others_theirs(new_loop: Loop) -> None:
    async def play(place: Place, outbox: Outbox, one: Outgoing) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
            other = outbox.of(transport)
            other.write(b"lost")
            one.write(b"kept")
            transport.abort()  # as the loop does when its other end resets
            await turns()
            assert place.read() == b"kept"
            assert theirs.recv(10) == b""

    played(new_loop, play)


def test_bytes_that_come_before_a_request_has_left_are_no_answer_to_it() -> None:
    """A node that says 408 to an idle connection and closes it: the request may go again."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with theirs:
            wire = Wire(loop, Alarm(loop), Outbox(loop))
            await loop.create_connection(lambda: cast("asyncio.Protocol", wire), sock=ours)
            theirs.sendall(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
            wire.send(b"POST / HTTP/1.1\r\n\r\n")
            with pytest.raises(NodeFailed, match="nobody asked for"):
                await wire.head(WAIT_S)
            assert wire.is_unread
            await asyncio.sleep(0)
            assert theirs.recv(100) == b""

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # it reads before what is due soon
        runner.run(run())


def test_a_request_that_met_the_end_of_its_connection_before_it_left_was_not_read() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        wire = Wire(loop, Alarm(loop), Outbox(loop))
        await loop.create_connection(lambda: cast("asyncio.Protocol", wire), sock=ours)
        theirs.close()
        wire.send(b"POST / HTTP/1.1\r\n\r\n")
        with pytest.raises(NodeFailed, match="ended by the node"):
            await wire.head(WAIT_S)
        assert wire.is_unread

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


@LOOPS
def test_what_is_written_to_a_connection_that_closes_is_bounded(new_loop: Loop) -> None:
    """Its other end sends no more and reads nothing: the loop waits for it with what is left."""

    async def play(place: Place, outbox: Outbox, one: Outgoing) -> None:
        while not one.inner.get_write_buffer_size():
            one.write(b"x" * 4_096)
            one.hurry()
        one.close()  # as the loop does at the other side's end
        tracemalloc.start()
        try:
            for _ in range(2_000):
                one.write(bytes(4_096))
            assert tracemalloc.get_traced_memory()[0] < 8 * MAX_HELD_BYTES
        finally:
            tracemalloc.stop()
        await turns()

    played(new_loop, play)


@LOOPS
def test_a_fault_of_what_comes_first_holds_nothing_for_ever(new_loop: Loop) -> None:
    async def play(place: Place, outbox: Outbox, one: Outgoing) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, about: told.append(about["message"]))
        place.faults = 1
        one.write(b"a")
        await turns(4)
        assert place.read() == b"a"
        one.write(b"b")
        await turns()
        assert place.read() == b"b"

    told: list[str] = []
    assert played(new_loop, play).arrived_before == [b"", b"", b""]  # nothing left before it was written
    assert len(told) == 1


@LOOPS
def test_a_fault_with_one_connection_leaves_the_others_theirs(new_loop: Loop) -> None:
    async def play(place: Place, outbox: Outbox, one: Outgoing) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, about: told.append(about["message"]))
        ours, theirs = socket.socketpair()
        with theirs:
            transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
            transport.write_eof()
            outbox.of(transport).write(b"after its end")  # which a transport does not take
            one.write(b"kept")
            await turns(4)
            assert place.read() == b"kept"
            transport.abort()
            await turns()

    told: list[str] = []
    played(new_loop, play)
    assert len(told) == 1
