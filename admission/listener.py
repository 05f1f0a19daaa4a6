"""The listening side: uvicorn's httptools protocol with the limits it does not have.

Sizes are bytes, times seconds on the loop's clock. Headers are bounded in bytes, count and time, bodies
by silence, answers by how long a client may leave them unread, connections in number. Prevents: slow or
greedy clients holding connections, leases and memory, and a request smuggled past a lenient parser.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, ClassVar, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from admission.settings import Settings

_ANSWERS = {
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
    503: b"Service Unavailable",
}


class LimitedProtocol(HttpToolsProtocol):
    """One connection. `limits` and `by_address` belong to its listener (see `limited_protocol`)."""

    limits: ClassVar[Settings]
    by_address: ClassVar[Counter[str]]  # open connections by client address
    is_leaving: ClassVar[bool]  # each answer is the last one of its connection

    _timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _in_headers = True
    _body_until = 0.0
    _address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self.by_address[self._address] += 1
        if (
            self.by_address[self._address] > self.limits.connections_per_address
            or len(self.connections) > self.limits.connections
        ):
            self._refuse(503, b"too many connections")
            return
        self._arm(self.limits.header_deadline_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self.by_address[self._address] -= 1
        if self.by_address[self._address] <= 0:
            del self.by_address[self._address]
        self._disarm()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._in_headers:
            self._header_bytes += len(data)
            if self._timer is None:
                self._arm(self.limits.header_deadline_s)
        elif self._timer is not None:
            self._arm(min(self.limits.body_idle_s, self._body_until - self.loop.time()))
        super().data_received(data)
        if self._in_headers and self._header_bytes > self.limits.header_bytes:
            self._refuse(431, b"headers are too large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True

    def on_headers_complete(self) -> None:
        if self.transport.is_closing():
            return
        self._in_headers = False
        self._header_bytes = 0
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if len(self.headers) > self.limits.header_count or size > self.limits.header_bytes:
            self._refuse(431, b"headers are too many or too large")
            return
        self._body_until = self.loop.time() + self.limits.body_deadline_s
        self._arm(self.limits.body_idle_s)
        super().on_headers_complete()
        if self.is_leaving and cast("RequestResponseCycle | None", self.cycle) is not None:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._disarm()
        self._in_headers = True
        if not self.transport.is_closing():
            super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.limits.write_deadline_s, self.transport.abort)

    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        super().resume_writing()

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, self._too_slow)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        self._refuse(408, b"the request came too slowly")

    def _refuse(self, status: int, reason: bytes) -> None:
        """Answer and close; where an answer is already on its way, only close."""
        self._disarm()
        if self.transport.is_closing():
            return
        cycle = cast("RequestResponseCycle | None", self.cycle)  # uvicorn starts with None
        if cycle is None or cycle.response_complete or not cycle.response_started:
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
            self.transport.write(_refusal(status, reason))
        self.transport.close()


def limited_protocol(limits: Settings) -> type[LimitedProtocol]:
    """Return the protocol class of one listener; connections are counted per listener."""
    return type(
        "Listener",
        (LimitedProtocol,),
        {"limits": limits, "by_address": Counter[str](), "is_leaving": False},
    )


def _refusal(status: int, reason: bytes) -> bytes:
    body = b'{"error":{"message":"%s","type":"invalid_request_error","code":null,"param":null}}' % reason
    head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\nconnection: close\r\n" % (
        status,
        _ANSWERS[status],
    )
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


def listener_options(limits: Settings) -> dict[str, Any]:
    """Return the uvicorn settings that belong to the listener."""
    return {
        "http": limited_protocol(limits),
        "ws": "none",
        "lifespan": "off",
        "loop": "none",
        "log_config": None,
        "access_log": False,
        "proxy_headers": False,
        "server_header": False,
        "timeout_keep_alive": limits.keep_alive_s,
    }
