"""The client side: one HTTP exchange with a node, and a bounded page fetch.

The only module that knows aiohttp. Times are seconds, sizes bytes. Connections are kept for less than
the 5 s after which vLLM closes them; no proxy variables, redirects, cookies or decompression. Prevents:
a client library's habits (retries, environment, body bombs) deciding what reaches an engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType

import aiohttp

from admission.settings import Settings
from fleet.readings import Reason

KEEP_ALIVE_S = 4.0


class NodeFailed(Exception):
    """The exchange with the node broke off. `reason` says how; `is_timeout` that a deadline passed."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    @property
    def is_timeout(self) -> bool:
        return self.reason is Reason.TIMEOUT


@dataclass(frozen=True, slots=True)
class Page:
    """A whole small answer."""

    status: int
    content_type: str
    body: bytes


class Exchange:
    """A request whose answer has begun. Close it always; closing early aborts the engine's work."""

    def __init__(self, response: aiohttp.ClientResponse, idle_timeout_s: float) -> None:
        self._response = response
        self._idle_timeout_s = idle_timeout_s

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def content_type(self) -> str:
        return self._response.headers.get("Content-Type", "application/json")

    @property
    def is_stream(self) -> bool:
        return self.content_type.startswith("text/event-stream")

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises NodeFailed when it breaks off or falls silent."""
        content = self._response.content
        try:
            while True:
                async with asyncio.timeout(self._idle_timeout_s):
                    chunk = await content.readany()
                if not chunk:
                    return
                yield chunk
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            raise _failed(exc) from exc

    async def body(self, limit_bytes: int) -> bytes:
        """Return the whole body. Raises NodeFailed when it breaks off or is larger than `limit_bytes`."""
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            parts.append(chunk)
            size += len(chunk)
            if size > limit_bytes:
                raise NodeFailed(Reason.TOO_LARGE, f"the answer is larger than {limit_bytes} bytes")
        return b"".join(parts)

    def close(self) -> None:
        """Give the connection back if the answer was read to its end, else cut it."""
        self._response.close() if not self._response.content.is_eof() else self._response.release()


class Upstream:
    """The pool of connections to all nodes of one gateway. Use as an async context manager."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "rhodeck-gateway"}
        if settings.node_api_key is not None:
            self._headers["Authorization"] = f"Bearer {settings.node_api_key.get_secret_value()}"

    async def __aenter__(self) -> Upstream:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(
                total=None, connect=None, sock_read=None, sock_connect=self._settings.connect_timeout_s
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def post(self, url: str, body: bytes, request_id: str) -> Exchange:
        """Send a JSON body; return once the answer's head is there. Raises NodeFailed.

        NodeFailed here means that no byte of an answer came: the request may be sent to another node.
        """
        headers = {**self._headers, "Content-Type": "application/json", "X-Request-Id": request_id}
        try:
            async with asyncio.timeout(self._settings.first_byte_timeout_s):
                response = await self._session.post(url, data=body, headers=headers, allow_redirects=False)
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            raise _failed(exc) from exc
        return Exchange(response, self._settings.idle_timeout_s)

    async def page(self, url: str, *, deadline_s: float, limit_bytes: int) -> Page:
        """Fetch a whole answer within `deadline_s` and `limit_bytes`. Raises NodeFailed."""
        try:
            async with (
                asyncio.timeout(deadline_s),
                self._session.get(url, headers=self._headers, allow_redirects=False) as response,
            ):
                body = await Exchange(response, deadline_s).body(limit_bytes)
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            raise _failed(exc) from exc
        return Page(response.status, response.headers.get("Content-Type", ""), body)


def _failed(exc: Exception) -> NodeFailed:
    """Name what happened, in words that hold no address and no secret."""
    if isinstance(exc, TimeoutError):
        return NodeFailed(Reason.TIMEOUT, "no answer in time")
    if isinstance(exc, ConnectionRefusedError) or (
        isinstance(exc, aiohttp.ClientConnectorError) and isinstance(exc.os_error, ConnectionRefusedError)
    ):
        return NodeFailed(Reason.REFUSED, "connection refused")
    return NodeFailed(Reason.UNREACHABLE, f"connection lost: {type(exc).__name__}")
