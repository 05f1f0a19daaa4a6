"""The client side: one HTTP exchange with a node, a bounded page fetch, the pool of connections to nodes.

Times are seconds, sizes bytes. Connections are kept for less than the 5 s after which vLLM closes them; no
proxy variables, redirects, cookies or decompression. A client library does all this in 110 microseconds a
request, `admission.wire` in 15: most of what a request costs here. Prevents: habits of a library (retries,
environment, body bombs) deciding what reaches an engine, and a request read twice by one node.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Final, cast
from urllib.parse import urlsplit

from admission.alarm import Alarm
from admission.outbox import Outbox
from admission.settings import Settings
from admission.wire import NodeFailed, Overdue, Wire, lost, timed_out
from fleet.readings import Reason

__all__ = ["Exchange", "NodeFailed", "Overdue", "Page", "Upstream"]

KEEP_ALIVE_S: Final = 4.0
#: Connections kept to one node while nobody uses them.
MAX_KEPT: Final = 256
_MOST_URLS: Final = 4096
_PAGE: Final = b"GET "
#: Said to a connection that was idle, as our request was on its way: the node has not taken it, and it may
#: go again on another. Source: RFC 9110, 15.5.9.
_TOO_SLOW: Final = 408


@dataclass(frozen=True, slots=True)
class Page:
    """A whole small answer."""

    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Target:
    """Where a URL leads. `place` names the connections that lead there."""

    place: tuple[str, int, bool]  # host, port, whether by TLS
    path: bytes
    host: bytes  # as the header says it


@lru_cache(maxsize=_MOST_URLS)
def target_of(url: str) -> Target:
    """Return where `url` leads. Raises NodeFailed if it cannot go on a request line."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    is_plain = all(33 <= ord(c) < 127 for c in parts.netloc + path)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain or "@" in parts.netloc:
        raise NodeFailed(Reason.UNREACHABLE, "its address cannot be used")
    is_tls = parts.scheme == "https"
    place = (parts.hostname, port or (443 if is_tls else 80), is_tls)
    return Target(place, path.encode(), parts.netloc.encode())


class Exchange:
    """A request whose answer has begun. Close it always; closing early aborts the engine's work."""

    __slots__ = ("_idle_timeout_s", "_pool", "_target", "_wire", "content_type", "status")

    def __init__(self, pool: Upstream, target: Target, wire: Wire, idle_timeout_s: float) -> None:
        self._pool, self._target, self._wire = pool, target, wire
        self._idle_timeout_s = idle_timeout_s
        self.status, self.content_type = wire.status, wire.content_type

    @property
    def is_stream(self) -> bool:
        said = self.content_type
        return said != "application/json" and said.lower().startswith("text/event-stream")

    def ends_within(self, seconds: float) -> None:
        """Have it fail (Overdue) when it is not read to its end in that time from now on."""
        self._wire.ends_within(seconds)

    def read(self) -> Awaitable[bytes]:
        """Return what has come of the body, b"" at its end.

        Raises NodeFailed when it breaks off, falls silent or takes too long.
        """
        return self._wire.read(self._idle_timeout_s)

    def pipe(self, sink: Callable[[bytes], bool]) -> Awaitable[bool]:
        """Hand the body to `sink` as it comes. Return True at its end, False once `sink` returned False.

        Raises NodeFailed as `read` does.
        """
        return self._wire.pipe(sink, self._idle_timeout_s)

    def body_at_hand(self, limit_bytes: int) -> bytes | None:
        """Return the whole body if it came with the head; None: wait for it by `body`."""
        if not self._wire.is_done:
            return None
        whole = self._wire.take()
        if len(whole) > limit_bytes:
            raise NodeFailed(Reason.TOO_LARGE, f"the answer is larger than {limit_bytes} bytes")
        return whole

    async def body(self, limit_bytes: int) -> bytes:
        """Return the whole body. Raises NodeFailed as `read` does, or when it is over `limit_bytes`."""
        parts: list[bytes] = []
        size = 0
        is_read = False
        while not is_read:
            is_read = self._wire.is_done  # then there is nothing to wait for
            chunk = self._wire.take() if is_read else await self._wire.read(self._idle_timeout_s)
            parts.append(chunk)
            size += len(chunk)
            if size > limit_bytes:
                raise NodeFailed(Reason.TOO_LARGE, f"the answer is larger than {limit_bytes} bytes")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Give the connection back if the answer was read to its end, else cut it. Twice is once."""
        wire, self._wire = self._wire, _CLOSED
        if wire is not _CLOSED:
            self._pool.give_back(self._target, wire)


def _ignored() -> None:
    """Be told in vain."""


class Upstream:
    """The pool of connections to all nodes of one gateway. Use as an async context manager."""

    def __init__(self, settings: Settings, outbox: Outbox | None = None) -> None:
        """`outbox`: what the process sends by; None: one of its own."""
        self._settings = settings
        self._first_byte_s, self._idle_s = settings.first_byte_timeout_s, settings.idle_timeout_s
        self._given_outbox = outbox
        fixed = b"Accept-Encoding: identity\r\nUser-Agent: rhodeck-gateway\r\n"
        if settings.node_api_key is not None:
            fixed += b"Authorization: Bearer %s\r\n" % settings.node_api_key.get_secret_value().encode(
                "latin-1"
            )
        if fixed.count(b"\n") != fixed.count(b"\r\n") or fixed.count(b"\r") > 3:
            raise ValueError("the node API key has a line break in it")
        self._fixed = fixed
        self._posts: dict[
            str, tuple[Target, bytes]
        ] = {}  # by URL: where it leads, and how a request begins
        self._kept: dict[tuple[str, int, bool], list[Wire]] = {}
        self._busy = set[Wire]()
        self._sweeper: asyncio.TimerHandle | None = None
        self._tls: ssl.SSLContext | None = None
        self._is_closed = False
        self.renewed = 0  # requests sent again because a kept connection had been closed under them
        #: Asked before a request that is work is sent again: it takes a retry of the gateway's budget.
        self.may_renew: Callable[[], bool] = _always

    async def __aenter__(self) -> Upstream:
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self._loop)
        self._outbox = self._given_outbox or Outbox(self._loop)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for wire in [*self._busy, *(wire for kept in self._kept.values() for wire in kept)]:
            wire.cut()
        self._kept.clear()
        self._alarm.close()
        await asyncio.sleep(0)  # transports close in the next turn of the loop

    async def post(
        self,
        url: str,
        body: bytes,
        request_id: str,
        more: bytes = b"",
        unsent: Callable[[], None] = _ignored,
    ) -> Exchange:
        """Send a JSON body, with `more` header lines; return once the answer's head is there.

        Raises NodeFailed. It means that no byte of an answer came: the request may be sent to another node.
        `unsent` is called before that, and before a cancellation ends this, where not all of it left.
        """
        known = self._posts.get(url)
        target, begin = self._post_to(url) if known is None else known
        name, length = request_id.encode(), b"\r\nContent-Length: %d\r\n\r\n" % len(body)
        request = b"".join((begin, more, b"X-Request-Id: ", name, length, body))
        return await self._ask(target, request, self._first_byte_s, unsent)

    def _post_to(self, url: str) -> tuple[Target, bytes]:
        target = target_of(url)
        if len(self._posts) >= _MOST_URLS:
            self._posts.clear()
        first = b"POST " + target.path + b" HTTP/1.1\r\nHost: " + target.host + b"\r\n"
        begin = first + self._fixed + b"Content-Type: application/json\r\n"
        self._posts[url] = target, begin
        return target, begin

    async def page(self, url: str, *, deadline_s: float, limit_bytes: int) -> Page:
        """Fetch a whole answer within `deadline_s` and `limit_bytes`. Raises NodeFailed."""
        target = target_of(url)
        request = b"GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (target.path, target.host, self._fixed)
        try:
            async with asyncio.timeout(deadline_s):
                exchange = await self._ask(target, request, deadline_s, _ignored)
                try:
                    return Page(exchange.status, exchange.content_type, await exchange.body(limit_bytes))
                finally:
                    exchange.close()
        except TimeoutError as exc:
            raise timed_out() from exc

    async def _ask(
        self, target: Target, request: bytes, first_byte_s: float, unsent: Callable[[], None]
    ) -> Exchange:
        until_s = self._loop.time() + first_byte_s
        wire = kept = self._take(target.place)
        has_left = False
        try:
            while True:
                if wire is None:
                    wire = await self._connect(target.place, until_s - self._loop.time())
                self._busy.add(wire)
                try:
                    wire.send(request)
                    await wire.head(until_s - self._loop.time())
                    if kept is None or wire.status != _TOO_SLOW or not self._may_go_again(request):
                        return Exchange(self, target, wire, self._idle_s)
                    self._busy.discard(wire)
                    wire.cut()
                except BaseException as exc:
                    self._busy.discard(wire)
                    wire.cut()
                    if kept is None or not self._renews(wire, request, exc):
                        has_left = not wire.never_left
                        raise
                # The node closed while we sent, as every server closes what is idle: no fault, and once.
                wire, kept, self.renewed = None, None, self.renewed + 1
        except BaseException:
            if not has_left:
                unsent()
            raise

    def _renews(self, wire: Wire, request: bytes, exc: BaseException) -> bool:
        """Say whether a lost request goes again: the node cannot have read it, and the budget has a retry.

        The budget bounds what a node gets twice that reads all and then resets: from here it looks like one
        that read nothing. What never left, nobody gets twice.
        """
        if not isinstance(exc, NodeFailed):
            return False
        is_lost = wire.is_unread or (request.startswith(_PAGE) and exc.reason is Reason.UNREACHABLE)
        return wire.never_left or (is_lost and self._may_go_again(request))

    def _may_go_again(self, request: bytes) -> bool:
        """Say whether the budget has a retry for it. A page is no work and may be read twice."""
        return request.startswith(_PAGE) or self.may_renew()

    # -- connections --------------------------------------------------------------------------------

    def _take(self, place: tuple[str, int, bool]) -> Wire | None:
        """Return the kept connection used last; the node is the less likely to have closed it."""
        kept = self._kept.get(place)
        now_s = self._loop.time()
        while kept:
            wire = kept.pop()
            if now_s - wire.left_at_s < KEEP_ALIVE_S and wire.is_quiet:
                return wire
            wire.cut()
        return None

    async def _connect(self, place: tuple[str, int, bool], within_s: float) -> Wire:
        host, port, is_tls = place
        try:
            async with asyncio.timeout(min(self._settings.connect_timeout_s, within_s)):
                _, made = await self._loop.create_connection(
                    self._wire, host, port, ssl=self._context() if is_tls else None
                )
        except TimeoutError as late:  # compiled, a name holds one kind of exception in a function
            raise timed_out() from late
        except ConnectionRefusedError as refused:
            raise NodeFailed(Reason.REFUSED, "connection refused") from refused
        except OSError as exc:
            raise _unconnected(exc) from exc
        return cast("Wire", made)

    def _wire(self) -> asyncio.Protocol:
        made = Wire(self._loop, self._alarm, self._outbox)
        return cast("asyncio.Protocol", made)  # it has the methods; a base costs time

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def give_back(self, target: Target, wire: Wire) -> None:
        """Keep the connection of an ended exchange if it can take another."""
        self._busy.discard(wire)
        if not wire.end():
            return
        kept = self._kept.setdefault(target.place, [])
        if self._is_closed or len(kept) >= MAX_KEPT:
            wire.cut()
            return
        wire.left_at_s = self._loop.time()
        kept.append(wire)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(KEEP_ALIVE_S, self._sweep)

    def _sweep(self) -> None:
        """Close what was kept long enough, so that a node sees no idle connections of ours."""
        self._sweeper = None
        too_old_s = self._loop.time() - KEEP_ALIVE_S
        for place, kept in list(self._kept.items()):
            for wire in [one for one in kept if one.left_at_s <= too_old_s or not one.is_open]:
                kept.remove(wire)
                wire.cut()
            if not kept:
                del self._kept[place]
        if self._kept:
            self._sweeper = self._loop.call_later(KEEP_ALIVE_S / 4, self._sweep)


def _always() -> bool:
    return True


def _unconnected(exc: OSError) -> NodeFailed:
    """Name what happened, in words that hold no address and no secret."""
    several = getattr(exc, "exceptions", ())  # one for each address of a name
    if several and all(isinstance(one, ConnectionRefusedError) for one in several):
        return NodeFailed(Reason.REFUSED, "connection refused")
    return lost(type(exc).__name__)


class _Closed(Wire):
    """What an exchange has after it was closed."""

    def __init__(self) -> None:
        self.is_done = False

    async def read(self, idle_s: float) -> bytes:
        raise lost("closed here")


_CLOSED: Final = _Closed()
