"""One client connection: HTTP/1.1 by httptools on a raw transport, one request after another.

Sizes are bytes, times seconds on the loop's clock. Heads are bounded in bytes, count and time, bodies by
silence and time, answers by how long a client may leave them unread. Requests sent ahead wait for their
turn; nothing is read behind them. Prevents: slow or greedy clients holding connections, leases and memory,
a request smuggled past a lenient parser, and an answer of ours put in front of an earlier one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import httptools

from admission import request_lines
from admission.inbound import HeaderList, Inbound, Way
from admission.outbox import Outgoing
from admission.request_lines import BAD, Refusal, bears_body, is_coded, lower_name, other_version, target_of
from admission.worker import Worker, leave

if TYPE_CHECKING:
    from admission.clients import Listener

#: A client that was answered before it had sent all gets so long to read that; then it is cut.
LINGER_S: Final = 2.0
_NEVER: Final = float("inf")


class Connection(Way):
    """Parses heads and bodies, runs one handler at a time, answers in the order of the requests."""

    __slots__ = (
        "_address", "_bare", "_begun", "_body_until_s", "_current", "_drain", "_has_begun", "_has_served",
        "_headers", "_is_body_held", "_is_deaf", "_is_held", "_is_offer", "_is_repeated", "_limits",
        "_listener", "_loop", "_now", "_parser", "_queue", "_read_due_s", "_reading", "_refusal",
        "_transport", "_url", "_worker", "_write_due_s", "due_s",
    )  # fmt: skip

    def __init__(self, listener: Listener, loop: asyncio.AbstractEventLoop) -> None:
        self._listener, self._limits, self._loop = listener, listener.limits, loop
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: Outgoing | None = None
        self._address, self.port = "", 0
        self._url: bytes = b""
        self._now = self._begun = b""  # what came last; what came before it of a head that is not whole
        self._headers: HeaderList = []
        self._reading: Inbound | None = None  # its body is coming
        self._current: Inbound | None = None  # its handler runs
        self._queue = deque[Inbound]()  # read, not handled yet
        self._worker = Worker(self, listener, loop)
        self._drain: asyncio.Future[None] | None = None
        self._refusal: Refusal | None = None  # what is said last, after the answers that are due
        self._bare = 0  # bytes in a row that are not of a body
        self._has_begun = self._has_served = False  # a head; a request
        self._is_held = self._is_body_held = False  # nothing is read now; because of a body
        self._is_deaf = False  # what comes is not looked at any more
        self._is_offer = self._is_repeated = False  # its head offers another protocol; is said again by us
        self.is_writable = True
        self._body_until_s = self._read_due_s = self._write_due_s = self.due_s = _NEVER

    # -- called by the transport --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = self._listener.outbox.of(transport)
        peer, here = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self._address, self.port = (str(peer[0]) if peer else ""), (int(here[1]) if here else 0)
        if self._listener.took(self, self._address):
            self._wait_until(self._loop.time() + self._limits.header_deadline_s)
        elif self._listener.may_say_why():
            self._fail((503, b"too many connections"))
        else:
            self.cut()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_deaf = True
        self._transport = None
        self._listener.lost(self, self._address)
        self._worker.end()
        self.resume_writing()
        leave(self._current, self._queue)
        self._parser = None  # it points back at us

    def eof_received(self) -> bool:
        """A client that ends its side has left. What was written it may read, as long as any client may."""
        self._close(is_read_out=True)
        leave(self._current, self._queue)
        return False

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        self._bare += len(data)
        self._now = data
        reading = self._reading
        if not self._has_begun:
            self._has_begun, self._read_due_s = True, _NEVER
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as exc:
            self._offered(data[exc.args[0] :])
        except httptools.HttpParserError:
            if not self._end_input():
                self._refusal = self._refusal or BAD
        if self._refusal is None and self._bare > self._limits.header_bytes:
            self._refusal = (431, b"headers are too large")
        if self._refusal is not None:
            self._fail(self._refusal)
            return
        self._bound_reading(reading)
        if reading is not None:
            reading.wake()
        if self._queue:
            self._advance()

    def _offered(self, rest: bytes) -> None:
        """Read on after a head that offers another protocol: none is spoken here, its body is plain HTTP.

        The parser takes the body for that other protocol (MagicStack/httptools#124), so another one reads
        it and what follows. Without a body, what follows is of the other protocol.
        """
        while self._refusal is None:
            reading, self._is_offer = self._reading, False
            if reading is None:
                self._end_input()
                return
            self._parser = httptools.HttpRequestParser(self)
            self._is_repeated = True
            self._parser.feed_data(request_lines.framing(reading.headers, is_last=reading.is_last))
            self._is_repeated = False
            try:
                self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as exc:
                rest = rest[exc.args[0] :]
            except httptools.HttpParserError:
                if not self._end_input():
                    self._refusal = self._refusal or BAD
                return
            else:
                return

    def _bound_reading(self, before: Inbound | None) -> None:
        """Say until when more must come, after data came: of a body, of a head, or of nothing."""
        reading = self._reading
        if reading is not None:
            now_s = self._loop.time()
            if reading is not before:
                self._body_until_s = now_s + self._limits.body_deadline_s
            self._wait_until(min(now_s + self._limits.body_idle_s, self._body_until_s))
        elif not self._has_begun:
            self._wait_until(_NEVER)
        else:
            self._begun += self._now
            if self._read_due_s == _NEVER:  # else it runs already: a head has one deadline from its begin
                self._wait_until(self._loop.time() + self._limits.header_deadline_s)

    def pause_writing(self) -> None:
        self.is_writable = False
        self._bound_writing()

    def resume_writing(self) -> None:
        self.is_writable = True
        if self._drain is not None and not self._drain.done():
            self._drain.set_result(None)
        if self._transport is None or not self._transport.is_closing():
            self._write_due_s, self.due_s = _NEVER, self._read_due_s

    def _bound_writing(self) -> None:
        self._write_due_s = self._loop.time() + self._limits.write_deadline_s
        self.due_s = min(self._read_due_s, self._write_due_s)

    # -- called by the parser -----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._url, self._headers, self._has_begun = b"", [], True

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reading is None:  # behind a body they are trailers: nobody asked for those
            self._headers.append((lower_name(name), value))

    def on_headers_complete(self) -> None:
        if self._refusal is not None or self._is_repeated:
            return
        headers, parser = self._headers, self._parser
        size = len(self._url) + 4 * len(headers)
        for name, value in headers:
            size += len(name) + len(value)
        if len(headers) > self._limits.header_count or size > self._limits.header_bytes:
            self._refusal = (431, b"headers are too many or too large")
            return
        target = target_of(self._url)
        if target is None:
            self._refusal = BAD
            return
        request = Inbound(self, parser.get_method().decode("ascii"), target[0], target[1], headers)
        is_kept = parser.should_keep_alive()
        # Only HTTP/1.1 is kept without a word about it.
        if (not is_kept or b"connection" in request.names) and parser.get_http_version() != "1.1":
            self._refusal = other_version(parser.get_http_version(), self._url, self._begun + self._now)
            request.is_old, is_kept = True, False
        if b"transfer-encoding" in request.names and is_coded(headers):
            self._refusal = self._refusal or request_lines.CODED
        if b"host" not in request.names or len(request.names) < len(headers):
            self._refusal = self._refusal or request_lines.host_fault(headers, parser.get_http_version())
        self._begun = b""
        if self._refusal is not None:
            return
        self._is_offer = b"upgrade" in request.names and parser.should_upgrade() and bears_body(headers)
        request.is_last = not is_kept
        request.keeps_alive = is_kept and not self._listener.is_leaving
        self._reading = request
        self._queue.append(request)

    def on_body(self, body: bytes) -> None:
        self._bare = 0
        if self._reading is not None:
            self._reading.came(body)

    def on_message_complete(self) -> None:
        self._bare = 0
        if self._refusal is not None or self._is_offer:
            return
        self._has_begun, self._read_due_s = False, _NEVER
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.is_whole = True
            reading.wake()

    # -- requests in their order --------------------------------------------------------------------

    def _advance(self) -> None:
        """Begin what is next while nothing is being answered: a request, the last words, or to be idle."""
        if self._current is None and self._transport is not None:
            if self._queue:
                self._current = self._queue.popleft()
                self._worker.begin(self._current)
            elif self._refusal is not None:
                self.send(request_lines.refusal_bytes(self._refusal))
                self._close(is_read_out=False)
            elif self._is_deaf:
                self._close(is_read_out=True)
            elif not self._has_begun:
                self._wait_until(self._loop.time() + self._limits.keep_alive_s)
        if self._queue or self._is_held:
            self._steer()

    @property
    def is_between(self) -> bool:
        """Say whether it is open and no request is being handled."""
        return self._current is None and self._transport is not None

    def unanswered(self, request: Inbound, told: Refusal) -> None:
        """End with a request that its handler left without an answer."""
        self._refusal, self._is_deaf = told, True
        request.disarm()
        self._abandon(request)

    def answered(self, request: Inbound) -> None:
        """Go on after an answer: with what comes next, or not at all."""
        if request is not self._current:
            return
        self._current, self._has_served = None, True
        if self._transport is None:
            return
        if request.keeps_alive and request.is_whole:
            self._advance()
        else:
            self._close(is_read_out=request.is_whole and request.is_last)

    def _end_input(self) -> bool:
        """Look at nothing more if the last request was whole and said that it is the last."""
        last = self._queue[-1] if self._queue else self._current
        if last is None or not last.is_whole:
            return False
        if self._parser.should_upgrade():
            last.keeps_alive = False
        self._is_deaf = not last.keeps_alive
        return self._is_deaf

    def _fail(self, refusal: Refusal) -> None:
        """Take nothing more; answer what was whole before, say why, and close."""
        self._refusal, self._is_deaf = refusal, True
        self._wait_until(_NEVER)
        reading, self._reading = self._reading, None
        if reading is None:
            self._advance()
        elif reading is self._current:
            self._abandon(reading)
        else:
            self._queue.remove(reading)
            self._advance()

    def _abandon(self, request: Inbound) -> None:
        """Take a request from its handler: say why it ends if nothing was said yet, else cut."""
        self._current = None
        request.left()
        if request.has_started:
            self.cut()
        else:
            self._advance()

    # -- the transport ------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Write to the client."""
        if self._transport is not None:
            self._transport.write(data)

    async def drained(self) -> None:
        """Return once the client reads again, or is gone."""
        while not self.is_writable and self._transport is not None:
            self._drain = self._loop.create_future()
            try:
                await self._drain
            finally:
                self._drain = None

    def date(self) -> bytes:
        """Return the header line with the date."""
        return self._listener.date

    def hold_back(self, *, is_held: bool) -> None:
        """Read nothing more until the body that came is taken; or go on."""
        self._is_body_held = is_held
        self._steer()

    def _steer(self) -> None:
        """Read, or let the client wait: while a body lies unread, or requests that were sent ahead."""
        is_ahead = self._current is not None and bool(self._queue)
        wants = not self._is_deaf and (self._is_body_held or is_ahead)
        transport = self._transport
        if wants == self._is_held or transport is None or transport.is_closing():
            return
        self._is_held = wants
        if wants:
            self._wait_until(_NEVER)
            transport.pause_reading()
            return
        if self._reading is not None:
            self._wait_until(self._loop.time() + self._limits.body_idle_s)
        elif self._has_begun and not self._is_deaf:
            self._wait_until(self._loop.time() + self._limits.header_deadline_s)
        transport.resume_reading()

    def _wait_until(self, due_s: float) -> None:
        self._read_due_s = due_s
        self.due_s = due_s if due_s < self._write_due_s else self._write_due_s

    def time_is_up(self, now_s: float) -> None:
        """Do what is due: cut, close, or say that the request came too slowly."""
        if self._is_deaf or self._write_due_s <= now_s:
            self.cut()
        elif self._has_served and not self._has_begun and self._reading is None:
            self._close(is_read_out=True)  # idle long enough
        else:
            self._fail(request_lines.SLOW)

    def _close(self, *, is_read_out: bool) -> None:
        """Close; a client that still sends gets a while to read the answer first."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._is_deaf = True
        self._steer()
        self._bound_writing()
        if is_read_out or not transport.can_write_eof():
            self._wait_until(_NEVER)
            transport.close()
        else:
            self._wait_until(self._loop.time() + LINGER_S)
            transport.write_eof()

    # -- the end ------------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Close after the running answer, or at once when there is none."""
        for request in (self._current, *self._queue):
            if request is not None:
                request.keeps_alive = False
        if self._current is None and not self._queue and not self._has_begun:
            self._close(is_read_out=True)

    def cancel(self) -> None:
        """Cancel the running handler; without one, cut."""
        if self._current is not None and self._current.task is not None:
            self._current.task.cancel()
        else:
            self.cut()

    def cut(self) -> None:
        """Close at once."""
        self._is_deaf = True
        self._wait_until(_NEVER)
        if self._transport is not None:
            self._transport.abort()
