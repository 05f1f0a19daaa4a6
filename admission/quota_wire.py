"""A client of one Redis or Valkey: scripts by their SHA over one connection that all requests share.

Times are seconds. Owns the connection, its login and the order of answers (RESP 2). Every request is
answered in the order it was sent, so one that nobody waits for any more still gets its answer, and whoever
gave up on it can be told. Prevents: a slow answer that closes a connection others use, one that is taken
for another's, and a password in a log line.

A client library takes 90 us of processor a call, and a request makes two; this takes 15 to 30.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha1
from typing import cast
from urllib.parse import SplitResult, unquote, urlsplit

from fleet.errors import InvalidInput, Unavailable

Reply = int | bytes | list["Reply"] | None | Exception
_SCHEMES = {"redis", "rediss", "valkey", "valkeys", "unix"}
_MAX_BUFFER_BYTES = 1 << 20


class StoreError(Exception):
    """The store answered with an error: its first word and what follows."""

    @property
    def kind(self) -> str:
        """Return the error's first word, such as NOSCRIPT."""
        return str(self).partition(" ")[0]


@dataclass(frozen=True, slots=True)
class Address:
    """Where the store is. `shown` is what may be logged."""

    shown: str
    host: str
    port: int
    path: str | None
    is_tls: bool
    user: str | None = field(repr=False)
    password: str | None = field(repr=False)
    database: int = 0


def address_of(url: str) -> Address:
    """Return the address in a `redis[s]://[user:password@]host[:port][/database]` or `unix:///path` URL.

    `valkey[s]` is the same. Raises InvalidInput, whose message never has the URL in it.
    """
    field_name, hint = (
        "RHODECK_GATEWAY_QUOTA_STORE_URL",
        "redis://host:6379/0, rediss:// for TLS, or unix:///path",
    )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise InvalidInput("the quota store's URL cannot be read", field=field_name, hint=hint) from exc
    if parts.scheme not in _SCHEMES or parts.query or parts.fragment:
        raise InvalidInput("the quota store's URL is of no known kind", field=field_name, hint=hint)
    user = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password else None
    if parts.scheme == "unix":
        if not parts.path:
            raise InvalidInput("the quota store's URL has no path", field=field_name, hint=hint)
        return Address(f"unix://{parts.path}", "", 0, parts.path, False, user, password)
    if not parts.hostname:
        raise InvalidInput("the quota store's URL has no host", field=field_name, hint=hint)
    is_tls = parts.scheme.endswith("s") and parts.scheme != "redis"
    shown = f"{parts.scheme}://{parts.hostname}:{port or 6379}"
    return Address(
        shown,
        parts.hostname,
        port or 6379,
        None,
        is_tls,
        user,
        password,
        _database(parts, field_name, hint),
    )


def _database(parts: SplitResult, field_name: str, hint: str) -> int:
    name = parts.path.strip("/")
    if name and not (name.isascii() and name.isdigit() and len(name) < 6):
        raise InvalidInput("the quota store's database is not a number", field=field_name, hint=hint)
    return int(name or 0)


class Script:
    """A Lua script and the SHA servers know it by."""

    __slots__ = ("sha", "source")

    def __init__(self, source: str) -> None:
        self.source = source.encode()
        self.sha = sha1(self.source, usedforsecurity=False).hexdigest().encode()


class StoreWire(asyncio.Protocol):
    """One connection. Make it with `connect`; it is over when `is_open` is False."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[asyncio.Future[Reply]] = deque()
        self._buffer = bytearray()
        self.is_open = False

    @property
    def is_idle(self) -> bool:
        """Say whether every request was answered."""
        return not self._waiting

    # -- asyncio.Protocol ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        was_open, self.is_open = self.is_open, False
        waiting, self._waiting = self._waiting, deque()
        for future in waiting:
            if not future.done():
                future.set_exception(Unavailable("the quota store closed the connection"))
                future.exception()  # nobody may wait for it any more
        if was_open:
            self._on_lost()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        at = 0
        try:
            while self._waiting and (found := _read(self._buffer, at)) is not None:
                reply, at = found
                future = self._waiting.popleft()
                if not future.done():
                    future.set_result(reply)
        except ValueError:  # not RESP: no order can be trusted any more
            self.close()
            return
        del self._buffer[:at]
        if len(self._buffer) > _MAX_BUFFER_BYTES:
            self.close()

    # -- calls --------------------------------------------------------------------------------------

    def send(self, *words: bytes) -> asyncio.Future[Reply]:
        """Send a command; the future gets its reply. Raises Unavailable if the connection is over."""
        if self._transport is None or not self.is_open:
            raise Unavailable("there is no connection to the quota store")
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._transport.write(
            b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
        )
        return future

    def run(self, script: Script, *words: bytes) -> asyncio.Future[Reply]:
        """Run a script; the future gets its reply. Raises Unavailable if the connection is over.

        A server that forgot it (SCRIPT FLUSH, a restart, a failover) is sent its text, once a call: it
        keeps that, and text has no NOSCRIPT.
        """
        outer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def settle(future: asyncio.Future[Reply], *, may_repeat: bool) -> None:
            if outer.done():
                return
            problem = future.exception()
            reply = None if problem is not None else future.result()
            if may_repeat and isinstance(reply, StoreError) and reply.kind == "NOSCRIPT":
                try:
                    again = self.send(b"EVAL", script.source, *words)
                except Unavailable as exc:
                    problem = exc
                else:
                    again.add_done_callback(lambda one: settle(one, may_repeat=False))
                    return
            if problem is None:
                outer.set_result(reply)
            else:
                outer.set_exception(problem)
                outer.exception()  # nobody may wait for it any more

        self.send(b"EVALSHA", script.sha, *words).add_done_callback(
            lambda one: settle(one, may_repeat=True)
        )
        return outer

    async def ask(self, *words: bytes) -> Reply:
        """Return a command's reply. Raises StoreError for an error, Unavailable without a connection."""
        return checked(await self.send(*words))

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()


async def connect(address: Address, scripts: list[Script], on_lost: Callable[[], None]) -> StoreWire:
    """Return a connection that is logged in and whose server has the scripts.

    Raises Unavailable with a reason that holds no secret. Give it a deadline.
    """
    loop = asyncio.get_running_loop()
    context = ssl.create_default_context() if address.is_tls else None
    wire = StoreWire(on_lost)
    try:
        if address.path is not None:
            await loop.create_unix_connection(lambda: wire, address.path)
        else:
            await loop.create_connection(lambda: wire, address.host, address.port, ssl=context)
        if address.password is not None:
            login = [address.password] if address.user is None else [address.user, address.password]
            await wire.ask(b"AUTH", *(word.encode() for word in login))
        if address.database:
            await wire.ask(b"SELECT", b"%d" % address.database)
        for script in scripts:
            await wire.ask(b"SCRIPT", b"LOAD", script.source)
    except BaseException as exc:
        wire.is_open = False
        wire.close()
        if isinstance(exc, StoreError):
            raise Unavailable(f"the quota store refused: {exc.kind}") from exc
        if isinstance(exc, OSError):
            raise Unavailable(
                f"the quota store cannot be reached: {exc.strerror or type(exc).__name__}"
            ) from exc
        raise
    return wire


def checked(reply: Reply) -> Reply:
    """Return a reply, or raise it where it is an error."""
    if isinstance(reply, Exception):
        raise reply
    return reply


def _read(buffer: bytearray, at: int) -> tuple[Reply, int] | None:
    """Return the reply that begins at `at` and where the next begins; None: not whole yet.

    Raises ValueError for what is not RESP 2.
    """
    end = buffer.find(b"\r\n", at)
    if end < 0:
        return None
    kind, line, after = bytes(buffer[at : at + 1]), bytes(buffer[at + 1 : end]), end + 2
    if kind == b"+":
        return line, after
    if kind == b"-":
        return StoreError(line.decode("utf-8", "replace")[:300]), after
    number = int(line)
    if kind == b":":
        return number, after
    if kind == b"$":
        if number < 0:
            return None, after
        if len(buffer) < after + number + 2:
            return None
        return bytes(buffer[after : after + number]), after + number + 2
    if kind != b"*":
        raise ValueError("not RESP")
    items: list[Reply] = []
    for _ in range(max(number, 0)):
        found = _read(buffer, after)
        if found is None:
            return None
        item, after = found
        items.append(item)
    return items, after
