"""One connection to a node: HTTP/1.1 by httptools on a raw transport, one exchange at a time.

Times are seconds on the loop's clock, sizes bytes. The reader is held back when bytes wait unread; a head
and what stands around a body are bounded; an answer that stops before its declared end has failed, whatever
it looks like. Prevents: a cut stream taken for a finished one, a connection reused with the rest of an old
answer in it, and a node that fills our memory.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import socket
import termios
from collections.abc import Callable
from typing import Final

import httptools

from admission.alarm import Alarm
from admission.outbox import Outbox, Outgoing
from admission.request_lines import lower_name
from fleet.readings import Reason

#: Of a head, and of what comes in a row with no byte of the body in it: chunk extensions, trailers.
MAX_HEAD_BYTES: Final = 64 * 1024
#: More than this unread, and the node is held back until half is taken.
MAX_UNREAD_BYTES: Final = 256 * 1024
#: A reset that comes later after a request was sent does not say that it was not read.
RESET_WITHIN_S: Final = 2.0
_NEVER: Final = float("inf")


class NodeFailed(Exception):
    """The exchange with the node broke off. `reason` says how; `is_timeout` that a deadline passed."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    @property
    def is_timeout(self) -> bool:
        return self.reason is Reason.TIMEOUT


class Overdue(NodeFailed):
    """The whole exchange took longer than it may. That is not the node's fault."""


def timed_out() -> NodeFailed:
    return NodeFailed(Reason.TIMEOUT, "no answer in time")


def overdue() -> Overdue:
    return Overdue(Reason.TIMEOUT, "it took longer than a request may")


def lost(why: str) -> NodeFailed:
    return NodeFailed(Reason.UNREACHABLE, f"connection lost: {why}")


def was_not_read(transport: asyncio.Transport, exc: Exception | None, since_s: float) -> bool:
    """Say whether the other side closed a connection before it had read the last of what we sent.

    It had not if its kernel never confirmed all bytes (TIOCOUTQ), or reset the connection (it closes with
    bytes unread) soon after they were sent, `since_s` ago: a server that closes what is idle looks at once,
    a later reset is another's, of a request at work. One that read all and then ends sends a plain end that
    confirms them. Of TLS only a reset counts: its own last words are unconfirmed bytes, too.
    Source: RFC 9112, 9.3.1 and 9.5; RFC 1122, 4.2.2.13; Linux, tcp(7).
    """
    if isinstance(exc, (ConnectionResetError, BrokenPipeError)) and since_s <= RESET_WITHIN_S:
        return True
    if exc is not None or transport.get_extra_info("sslcontext") is not None:
        return False
    try:
        told = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    except OSError:
        return False  # not known
    return told != b"\0\0\0\0" or transport.get_write_buffer_size() > 0


def is_cut_short(transport: asyncio.Transport) -> bool:
    """Keep what the kernel has not taken yet from leaving, and say whether there was any.

    No node acts on a part of a request. To abort is not enough: the loop closes in its next turn, and sends
    what it can before that.
    """
    if not transport.get_write_buffer_size():
        return False
    try:
        with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as same:
            same.shutdown(socket.SHUT_WR)
    except OSError:
        return False  # not known
    return True


class Wire:
    """A connection. `send` a request, wait for its `head`, `read` until empty, and it may be used again."""

    __slots__ = (
        "_alarm", "_asked_at_s", "_bare", "_chunks", "_error", "_has_length", "_idle_s", "_is_held_back",
        "_is_spoilt", "_loop", "_outbox", "_parser", "_peek", "_sink", "_transport", "_unread", "_waiter",
        "content_type", "due_s", "has_head", "is_done", "is_reusable", "is_unread", "left_at_s",
        "never_left", "status", "until_s",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, alarm: Alarm, outbox: Outbox) -> None:
        self._loop, self._alarm, self._outbox = loop, alarm, outbox
        self._transport: Outgoing | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: NodeFailed | None = lost("not connected")
        self.due_s = self._idle_s = 0.0  # the first: what is waited for must come by then
        self.left_at_s = self._asked_at_s = 0.0
        self.until_s = _NEVER  # the exchange ends by then, whatever comes
        self.is_reusable = False
        self.is_unread = False  # the node ended it without having read what was sent last
        self.never_left = True  # what was to be sent last is not on its way, or not all of it
        self._peek: select.poll | None = None
        self._sink: Callable[[bytes], bool] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._begin()

    def _begin(self) -> None:
        self._chunks: list[bytes] = []
        self._unread = self._bare = 0
        self._is_held_back = self._has_length = self._is_spoilt = False
        self.status, self.content_type = 0, "application/json"
        self.has_head = self.is_done = False

    # -- used by one exchange -----------------------------------------------------------------------

    def send(self, request: bytes) -> None:
        """Begin an exchange. Raises NodeFailed if the connection is gone."""
        self.never_left = True
        if self._error is not None or self._transport is None:
            raise self._error or lost("not connected")
        self._begin()
        self.is_reusable = False
        self.until_s = _NEVER
        self.never_left = False
        self._transport.write(request)

    async def head(self, within_s: float) -> None:
        """Wait for the answer's head. Raises NodeFailed when it does not come whole within that time."""
        self._asked_at_s = self._loop.time()
        self.due_s = self._asked_at_s + within_s
        while not self.has_head:
            waiter = self._begin_to_wait()
            try:
                await waiter
            finally:
                self._end_to_wait()

    async def read(self, idle_s: float) -> bytes:
        """Return what has come of the body, b"" at its end.

        Raises NodeFailed when it breaks off, or nothing comes for `idle_s`; Overdue after `until_s`.
        """
        now_s = self._loop.time()
        if now_s >= self.until_s:
            self._fail(overdue())
            raise overdue()
        if not self._chunks and not self.is_done:
            self.due_s = min(now_s + idle_s, self.until_s)
            while not self._chunks and not self.is_done:
                await self._wait()
        return self.take()

    def take(self) -> bytes:
        """Return what lies unread, b"" for nothing, and have the node send on."""
        if not self._chunks:
            return b""
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._unread = 0
        if self._is_held_back and self._transport is not None:
            self._is_held_back = False
            self._transport.resume_reading()
        return data

    async def pipe(self, sink: Callable[[bytes], bool], idle_s: float) -> bool:
        """Hand what comes of the body to `sink` as it comes; True once it ended, False when `sink` said so.

        Raises as `read` does. No task wakes up for each part: that is half of what relaying it costs.
        """
        while data := await self.read(idle_s):
            if not sink(data):
                return False
            if self.is_done or self._error is not None:
                continue
            self._sink, self.due_s = sink, min(self._loop.time() + idle_s, self.until_s)
            self._idle_s = idle_s
            try:
                await self._wait()
            finally:
                is_over, self._sink = self._sink is None, None
            if is_over:
                return False
        return True

    def _pour(self, sink: Callable[[bytes], bool]) -> None:
        """Hand over what came. The task wakes up when that was the last, or `sink` wants no more."""
        now_s = self._loop.time()
        if now_s >= self.until_s:
            self._fail(overdue())
            return
        self.due_s = min(now_s + self._idle_s, self.until_s)
        if self._chunks and not sink(self.take()):
            self._sink = None
            self._wake()
        elif self.is_done:
            self._wake()

    def ends_within(self, seconds: float) -> None:
        """Have the exchange that was begun fail (Overdue) after that time from now on."""
        self.until_s = self._loop.time() + seconds
        if self.until_s < self.due_s:
            self.due_s = self.until_s
            if self._waiter is not None:
                self._alarm.watch(self)

    def end(self) -> bool:
        """End the exchange and say whether the connection can take another; otherwise it is cut."""
        if self.is_reusable and self._error is None and not self._chunks and self._is_all_said():
            return True
        self.cut()
        return False

    def _is_all_said(self) -> bool:
        """Say whether both sides are done: an answer may come before its request was taken."""
        transport = self._transport
        return not self._is_spoilt and transport is not None and transport.is_empty

    def cut(self) -> None:
        """Close at once: the node sees its client leave."""
        self.is_reusable = False
        self._error = self._error or lost("closed here")
        self._break_off()

    @property
    def is_open(self) -> bool:
        return self._error is None and self._transport is not None and not self._transport.is_closing()

    @property
    def is_quiet(self) -> bool:
        """Say whether it is open and nothing came: an end that still waits to be read is an end.

        Without this a node that closes after its answers loses every request that follows at once.
        """
        if self._transport is None or not self.is_open:
            return False
        if self._peek is None:
            self._peek = select.poll()
            self._peek.register(self._transport.inner.get_extra_info("socket").fileno(), select.POLLIN)
        return not self._peek.poll(0)

    async def _wait(self) -> None:
        waiter = self._begin_to_wait()
        try:
            await waiter
        finally:
            self._end_to_wait()

    def _begin_to_wait(self) -> asyncio.Future[None]:
        if self._error is not None:
            raise self._error
        waiter = self._waiter = self._loop.create_future()
        self._alarm.watch(self)
        return waiter

    def _end_to_wait(self) -> None:
        self._waiter = None
        self._alarm.leave(self)

    def time_is_up(self, now_s: float) -> None:
        """Fail: what is waited for did not come in time."""
        self._fail(overdue() if now_s >= self.until_s else timed_out())

    def _fail(self, error: NodeFailed) -> None:
        self._error = self._error or error
        self.is_reusable = False
        self._wake()
        self._break_off()

    def _break_off(self) -> None:
        transport = self._transport
        if transport is not None:
            is_held = transport.drop()  # nobody waits for an answer to it
            self.never_left |= is_held or is_cut_short(transport.inner)
            transport.abort()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- called by the transport --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = self._outbox.of(transport)
        self._error = None

    def data_received(self, data: bytes) -> None:
        if self.is_done or (not self._bare and self._transport is not None and self._transport.holds):
            # Nothing was asked, not yet, or this follows an answer: what it belongs to is unknown.
            self.is_unread = not self.is_done
            self._fail(lost("bytes nobody asked for"))
            return
        self._bare += len(data)  # the body's first byte in it sets this to 0
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            if self.is_done:  # the answer was whole; what follows it is nobody's
                self._is_spoilt = True
                self._wake()
            else:
                self._fail(lost(type(exc).__name__))
            return
        if self._bare > MAX_HEAD_BYTES and not self.is_done:
            what = "what stands around the body" if self.has_head else "the head"
            self._fail(NodeFailed(Reason.TOO_LARGE, f"{what} is larger than {MAX_HEAD_BYTES} bytes"))
            return
        if self._unread > MAX_UNREAD_BYTES and not self._is_held_back and self._transport is not None:
            self._is_held_back = True
            self._transport.pause_reading()
        if self._sink is not None:
            self._pour(self._sink)
        elif self.has_head:
            self._wake()

    def pause_writing(self) -> None:
        """A large body waits for a node that reads slowly: it is written whole, nothing more follows."""

    def resume_writing(self) -> None:
        """The node took most of it."""

    def eof_received(self) -> bool:
        return False  # the transport closes; connection_lost says the rest

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and self.has_head and not self.is_done and not self._has_length:
            self.is_done = True  # an answer without a length lasts until the connection ends
        self.is_reusable = False
        transport = self._transport
        if self._error is None and not self._bare and not self.has_head and transport is not None:
            since_s = self._loop.time() - self._asked_at_s
            self.never_left |= transport.drop()
            self.is_unread = self.never_left or was_not_read(transport.inner, exc, since_s)
        self._error = self._error or lost(type(exc).__name__ if exc else "ended by the node")
        self._transport = None
        self._wake()

    # -- called by the parser -----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.is_done:  # a second answer in the same packet: it is nobody's
            self._is_spoilt = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_spoilt:
            return
        lowered = lower_name(name)
        if lowered == b"content-type":
            self.content_type = value.decode("latin-1")
        elif lowered in (b"content-length", b"transfer-encoding"):
            self._has_length = True

    def on_headers_complete(self) -> None:
        if self._is_spoilt:
            return
        self.status = self._parser.get_status_code()
        if self.status >= 200:
            self.has_head = True

    def on_body(self, body: bytes) -> None:
        if not self._is_spoilt:
            self._chunks.append(body)
            self._unread += len(body)
            self._bare = 0

    def on_message_complete(self) -> None:
        if not self.has_head:  # 100, 103: the answer proper follows
            self._has_length, self.content_type = False, "application/json"
            return
        if self._is_spoilt:
            return
        self.is_done = True
        # The parser knows this only here: it is reset for the next message at once.
        self.is_reusable = self._parser.should_keep_alive()
