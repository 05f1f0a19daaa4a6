"""A plain GET over a connection of its own: one write, one parser, one wake-up a page.

Sizes are bytes. Takes the place of the general client where a page is asked for without TLS, which is
what a round does a thousand times; redirects, cookies and kept connections do not exist here. The bounds
are the caller's (`read_body`) and two of its own: of the head, and of what may be around a body. Prevents:
a scraper that spends more on asking than on reading, a head without end, and half an answer taken for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from ipaddress import IPv4Address, IPv6Address
from typing import cast

import httptools

from control.fetch_body import FetchFailed
from fleet.readings import Reason

#: The head of an answer, and what may come in a row with no byte of the body in it (trailers). A body may
#: have that and an eighth of its own size around it (chunk sizes): lines sent one by one have less, and
#: chunks of a few bytes cost a hundred times what they carry.
HEAD_BYTES = 64 * 1024
_AROUND = 8
#: A server stops sending while this much waits to be taken.
HIGH_BYTES = 256 * 1024
#: Headers that mean something here.
_KNOWN = {
    name.encode(): name
    for name in ("content-type", "content-encoding", "content-length", "transfer-encoding", "date")
}

Address = IPv4Address | IPv6Address


class NotConnected(Exception):
    """Nobody took the connection; another address of the name may."""

    def __init__(self, problem: OSError) -> None:
        super().__init__(str(problem))
        self.problem = problem


class Answer:
    """The head of an answer and the way to its body."""

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange
        self.status = exchange.status
        self.headers: Mapping[str, str] = exchange.headers  # names in lower case, the first of several

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes. Raises FetchFailed where it breaks off."""
        exchange = self._exchange
        while True:
            while exchange.waiting:
                yield exchange.take()
            if exchange.is_over:
                return
            await exchange.wait()


class Wire:
    """Plain connections, at most `connections` at a time. Owned by one event loop; nothing to close."""

    def __init__(self, *, connections: int = 100) -> None:
        self._free = asyncio.Semaphore(connections)

    async def get(self, address: Address, port: int, request: bytes) -> Opened:
        """Connect and send `request` (a whole GET). Close what comes back, whatever happens.

        Raises NotConnected.
        """
        await self._free.acquire()
        try:
            transport, exchange = await asyncio.get_running_loop().create_connection(
                lambda: _Exchange(request), str(address), port
            )
        except OSError as problem:
            self._free.release()
            raise NotConnected(problem) from problem
        except BaseException:
            self._free.release()
            raise
        return Opened(transport, exchange, self._free)


class Opened:
    """One exchange under way; leaving the block ends it and its connection."""

    def __init__(self, transport: asyncio.Transport, exchange: _Exchange, free: asyncio.Semaphore) -> None:
        self._transport = transport
        self._exchange = exchange
        self._free = free

    async def __aenter__(self) -> Answer:
        """Return the answer once its head is there and some of its body. Raises FetchFailed."""
        try:
            await self._exchange.wait()
        except BaseException:
            self._close()
            raise
        return Answer(self._exchange)

    async def __aexit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        self._transport.abort()
        self._free.release()


class _Exchange(asyncio.Protocol):
    """The client's side of one connection. Wakes its reader when there is enough to go on with."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._reader: asyncio.Future[None] | None = None
        self._failure: FetchFailed | None = None
        self._received = 0
        self._body = 0
        self._bare = 0  # bytes since the last one of the body
        self._is_paused = False
        self._has_head = False
        self._is_followed = False
        self._held = 0
        self.waiting: list[bytes] = []
        self.headers: dict[str, str] = {}
        self.status = 0
        self.is_over = False

    # ---- for the reader ---------------------------------------------------------------------------------

    async def wait(self) -> None:
        """Return when the answer is over, not the wanted one, or much of it waits. Raises FetchFailed."""
        if self._is_paused and self._transport is not None and not self.waiting:
            self._is_paused = False
            self._transport.resume_reading()
        if not self._is_worth_waking():
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if self._failure is not None:
            raise self._failure

    def take(self) -> bytes:
        """Return all that waits. One piece for its reader, however small the chunks it came in."""
        pieces, self._held = self.waiting, 0
        self.waiting = []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _is_worth_waking(self) -> bool:
        if self.is_over or self._failure is not None:
            return True
        return self._has_head and (self.status != 200 or self._held >= HIGH_BYTES)

    def _wake(self) -> None:
        if self._reader is not None and self._is_worth_waking():
            if not self._reader.done():
                self._reader.set_result(None)
            self._reader = None

    def _fail(self, said: str, reason: Reason = Reason.UNREACHABLE) -> None:
        if not self.is_over and self._failure is None:
            self._failure = FetchFailed(reason, said)
            self._wake()

    # ---- of the connection ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self.is_over or self._failure is not None:
            return
        self._received += len(data)
        body, pieces = self._body, len(self.waiting)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._has_head = True
        except httptools.HttpParserError as problem:
            self._is_followed = self.is_over
            self._fail(f"not an answer: {problem}"[:200])
        if self._is_followed:  # by another answer, or by the rest of a page that is longer than was said
            self.is_over = False
            self._fail("the answer goes on after its end")
        self._bare = self._bare + len(data) if self._body == body else 0
        if len(self.waiting) - pieces > 1:  # an object a chunk is many times the chunk
            self.waiting[pieces:] = [b"".join(self.waiting[pieces:])]
        around = self._received - self._body
        if around > HEAD_BYTES + self._body // _AROUND or self._bare > HEAD_BYTES:
            if self._has_head:  # asking again would bring the same
                self._fail(f"more than {HEAD_BYTES} bytes around the page", Reason.TOO_LARGE)
            else:
                self._fail(f"more than {HEAD_BYTES} bytes before the page")
        if self._held >= HIGH_BYTES and not self.is_over and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._end("the answer was cut short")

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None:
            self._end("the answer was cut short")
        else:
            self._fail(f"{type(exc).__name__}: {exc}"[:200])

    def _end(self, otherwise: str) -> None:
        """The server said all it will. That ends a body of no announced length, and no other."""
        coding = self.headers.get("transfer-encoding", "").lower()
        if self._has_head and "content-length" not in self.headers and not coding.endswith("chunked"):
            self.is_over = self._failure is None
            self._wake()
        self._fail(otherwise if self._has_head else "closed without an answer")

    # ---- of the parser ----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._is_followed = self.is_over

    def on_header(self, name: bytes, value: bytes) -> None:
        known = _KNOWN.get(name.lower())
        if known is not None and not self._has_head:  # after it: trailers
            self.headers.setdefault(known, value.decode("utf-8", "replace"))

    def on_headers_complete(self) -> None:
        if self._has_head:
            return
        self.status = self._parser.get_status_code()
        if 100 <= self.status < 200 and self.status != 101:
            self.headers.clear()  # an interim answer; the one that counts follows
        else:
            self._has_head = True

    def on_body(self, piece: bytes) -> None:
        if not self.is_over:
            self._body += len(piece)
            self._held += len(piece)
            self.waiting.append(piece)

    def on_message_complete(self) -> None:
        self.is_over = self.is_over or self._has_head
