"""The listening side that the gateway had before its own: uvicorn, an oracle for `admission.http_server`.

A handler written for `admission.inbound.Inbound` runs behind uvicorn's httptools protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any

import uvicorn

from admission.inbound import BodyTooLarge, ClientLeft, HeaderList

Message = dict[str, Any]


class AsgiInbound:
    """A request as uvicorn gives it, with the methods of an `Inbound`."""

    def __init__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Any) -> None:
        self._receive, self._send = receive, send
        self.method, self.query = scope["method"], scope["query_string"]
        self.path: str = scope["raw_path"].decode("latin-1")  # as it came; `path` is decoded
        self.headers: HeaderList = list(scope["headers"])
        self._later: list[Message] = []

    async def body(self, limit_bytes: int, book: Callable[[int], None] | None = None) -> bytes:
        whole = b""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            whole += message.get("body", b"")
            if len(whole) > limit_bytes:
                raise BodyTooLarge
            if book is not None:
                book(len(message.get("body", b"")))
            if not message.get("more_body"):
                return whole

    def answer(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        length = (b"content-length", b"%d" % len(body))
        self._later.append({"type": "http.response.start", "status": status, "headers": [*headers, length]})
        self._later.append({"type": "http.response.body", "body": body})

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._later.append({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def write(self, data: bytes) -> None:
        await self.flush()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def end(self, data: bytes = b"") -> None:
        self._later.append({"type": "http.response.body", "body": data})

    async def flush(self) -> None:
        later, self._later = self._later, []
        for message in later:
            await self._send(message)


@contextlib.asynccontextmanager
async def serving(handler: Callable[[Any], Awaitable[None]]) -> AsyncGenerator[int]:
    """Serve on a free port of this machine until the block ends; yield the port."""

    async def app(scope: Message, receive: Any, send: Any) -> None:
        request = AsgiInbound(scope, receive, send)
        await handler(request)
        await request.flush()

    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        loop="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=1,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    loop = asyncio.get_running_loop()

    make: Any = config.http_protocol_class

    def connection() -> asyncio.Protocol:
        made: asyncio.Protocol = make(config=config, server_state=server.server_state, app_state={})
        return made

    listening = await loop.create_server(connection, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for made in tuple(server.server_state.connections):
            made.transport.abort()
        while server.server_state.connections or server.server_state.tasks:
            await asyncio.sleep(0.01)
