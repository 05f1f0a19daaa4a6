"""One request of a client and the way back to it: body in, answer out, and whether anybody still listens.

Sizes are bytes. What a handler may do stands here; how it goes over the connection, in `http_server`. An
answer is `answer` (whole), or `start`, `write` as often as needed, `end`. Prevents: an answer begun twice,
a header with a line break in it, and a handler that works on for a client that left.
"""

from __future__ import annotations

import asyncio
import http
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

HeaderList = list[tuple[bytes, bytes]]

_STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %s\r\n" % (status.value, status.phrase.encode())
    for status in http.HTTPStatus
}
_LF: Final = ord("\n")
_CR: Final = ord("\r")
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
#: More than this unread of a body, and the client is held back until it is taken.
MAX_UNREAD_BYTES: Final = 64 * 1024


class ClientLeft(Exception):
    """The client closed its connection."""


class BodyTooLarge(Exception):
    """The body passed the limit; the rest was not read."""


class Way(ABC):
    """The connection as a request sees it. A base, for compiled calls by it go straight."""

    __slots__ = ("is_writable", "port")

    is_writable: bool  # False: the client does not read what is written
    port: int  # of ours that it came in by

    @abstractmethod
    def date(self) -> bytes: ...
    @abstractmethod
    def send(self, data: bytes) -> None: ...
    @abstractmethod
    async def drained(self) -> None: ...
    @abstractmethod
    def hold_back(self, *, is_held: bool) -> None: ...
    @abstractmethod
    def answered(self, request: Inbound) -> None: ...


class Inbound:
    """A request whose head was read. One handler, one task."""

    __slots__ = (
        "_is_asked_for", "_is_chunked", "_is_headless", "_is_held", "_is_watched", "_parts", "_unread",
        "_waiter", "_way", "has_ended", "has_left", "has_started", "headers", "is_last", "is_old",
        "is_whole", "keeps_alive", "method", "names", "path", "query", "task",
    )  # fmt: skip

    def __init__(
        self, way: Way, method: str, path: str, query: bytes, headers: HeaderList, *, is_old: bool = False
    ) -> None:
        """`headers` have lower-case names; `is_old`: HTTP/1.0."""
        self._way = way
        self.method, self.path, self.query, self.headers = method, path, query, headers
        self.names = {name for name, _ in headers}
        self.is_old = is_old
        self.keeps_alive = not is_old
        self.task: asyncio.Task[None] | None = None
        self.is_whole = False  # the body came to its end
        self.is_last = is_old  # the client said that it sends no other
        self.has_left = self.has_started = self.has_ended = False
        self._is_chunked = False
        self._is_headless = method == "HEAD"
        self._is_asked_for = self._is_watched = self._is_held = False
        self._parts: list[bytes] = []
        self._unread = 0
        self._waiter: asyncio.Future[None] | None = None

    @property
    def port(self) -> int:
        """The port of ours that it came in by."""
        return self._way.port

    # -- the body -----------------------------------------------------------------------------------

    async def body(self, limit_bytes: int, book: Callable[[int], None] | None = None) -> bytes:
        """Return the body. Raises BodyTooLarge, what `book` raises, or ClientLeft when it ends early."""
        taken: list[bytes] = []
        size = 0
        while True:
            if self._parts:
                size += self._unread
                if size > limit_bytes:
                    raise BodyTooLarge
                if book is not None:
                    book(self._unread)
                taken += self._parts
                self._parts, self._unread = [], 0
                if self._is_held:
                    self._is_held = False
                    self._way.hold_back(is_held=False)
            if self.is_whole:
                return taken[0] if len(taken) == 1 else b"".join(taken)
            if self.has_left:
                raise ClientLeft
            if not self._is_asked_for:
                self._is_asked_for = True
                self._ask_for_body()
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def body_at_hand(self, limit_bytes: int, book: Callable[[int], None]) -> bytes | None:
        """Return the body if it came in one piece and is whole, as `body` does; None: wait for it there."""
        if not self.is_whole or len(self._parts) != 1:
            return None
        if self._unread > limit_bytes:
            raise BodyTooLarge
        book(self._unread)
        whole = self._parts.pop()
        self._unread = 0
        if self._is_held:
            self._is_held = False
            self._way.hold_back(is_held=False)
        return whole

    def _ask_for_body(self) -> None:
        """Tell a client that waits for it to send the body."""
        if b"expect" not in self.names or self.is_old:
            return
        if (b"expect", b"100-continue") in [(name, value.lower()) for name, value in self.headers]:
            self._way.send(_CONTINUE)

    def came(self, part: bytes) -> None:
        """Take in a part of the body."""
        if self.has_ended:
            return
        self._parts.append(part)
        self._unread += len(part)
        if self._unread > MAX_UNREAD_BYTES and not self._is_held:
            self._is_held = True
            self._way.hold_back(is_held=True)

    def wake(self) -> None:
        """Let the handler look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- the client ---------------------------------------------------------------------------------

    def watch(self) -> None:
        """Have the handler's task cancelled when the client leaves. Raises ClientLeft if it has left."""
        if self.has_left:
            raise ClientLeft
        self._is_watched = True

    def disarm(self) -> None:
        """From here on the client may leave without stopping anything."""
        self._is_watched = False

    def left(self) -> None:
        """Note that the client left."""
        self.has_left = True
        self.wake()
        if self._is_watched and self.task is not None:
            self._is_watched = False
            self.task.cancel()

    # -- the answer ---------------------------------------------------------------------------------

    def answer(self, status: int, headers: HeaderList, body: bytes) -> None:
        """Send a whole answer. `headers` without a length. Raises ValueError for one with a line break."""
        lines = self._lines(status, headers)
        if not self.keeps_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"content-length: %d\r\n\r\n" % len(body))
        if not self._is_headless:
            lines.append(body)
        data = b"".join(lines)
        self._begin()
        if not self.has_left:
            self._way.send(data)
        self._end()

    def _lines(self, status: int, headers: HeaderList) -> list[bytes]:
        lines = [_first_line(status)]
        for name, value in headers:
            line = name + b": " + value
            if _LF in line or _CR in line:
                raise ValueError("a header of an answer has a line break in it")
            lines.append(line + b"\r\n")
        lines.append(self._way.date())
        return lines

    def start(self, status: int, headers: HeaderList) -> None:
        """Begin an answer whose length is not known. Raises ValueError for a header with a line break."""
        lines = self._lines(status, headers)
        if self.is_old:
            self.keeps_alive = False  # such a client knows the end by the end of the connection
        else:
            self._is_chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keeps_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        head = b"".join(lines)
        self._begin()
        if not self.has_left:
            self._way.send(head)

    async def write(self, data: bytes) -> None:
        """Send a part of the answer; waits while the client does not read."""
        if not self._way.is_writable:
            await self._way.drained()
        self.write_on(data)

    async def drained(self) -> None:
        """Return once the client reads what was written, or is gone."""
        await self._way.drained()

    def write_on(self, data: bytes) -> bool:
        """Send a part of the answer; False: the client does not read, wait until it `drained`."""
        if data and not self.has_left and not self._is_headless:
            self._way.send(b"%x\r\n%s\r\n" % (len(data), data) if self._is_chunked else data)
        return self._way.is_writable

    def end(self, data: bytes = b"") -> None:
        """Send the last part of the answer."""
        if not self.has_left and not self._is_headless:
            if not self._is_chunked:
                self._way.send(data)
            elif data:
                self._way.send(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))
            else:
                self._way.send(b"0\r\n\r\n")
        self._end()

    def _begin(self) -> None:
        if self.has_started:
            raise RuntimeError("the answer has begun already")
        self.has_started = True

    def _end(self) -> None:
        self.has_ended = True
        self._is_watched = False
        self._parts.clear()
        self._way.answered(self)


def whole_answer(status: int, lines: list[bytes], body: bytes) -> bytes:
    """Return an answer with a length. `lines` are whole header lines, as we write them ourselves."""
    return b"".join((_first_line(status), *lines, b"content-length: %d\r\n\r\n" % len(body), body))


def _first_line(status: int) -> bytes:
    known = _STATUS_LINES.get(status)
    return b"HTTP/1.1 %d \r\n" % status if known is None else known  # an engine may answer any number
