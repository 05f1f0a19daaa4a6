"""What a body may be: how large, how far it may unpack, and that it is there whole. Sizes are bytes.

Pieces come from whichever client fetched them; the rules are the same. Prevents: a page that unpacks to
gigabytes, and half a page read as one.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from io import BytesIO

from control.page_room import Place
from fleet.errors import FleetError
from fleet.readings import Reason

_STEP_BYTES = 256 * 1024  # unpacked at a time
_RETRYABLE = frozenset({Reason.REFUSED, Reason.TIMEOUT, Reason.UNREACHABLE, Reason.HTTP_ERROR})


@dataclass(frozen=True, slots=True)
class PageCaps:
    """Bounds on one answer: bytes on the wire, bytes unpacked, and how far they may be apart."""

    wire_bytes: int = 16 * 1024 * 1024
    decoded_bytes: int = 16 * 1024 * 1024
    ratio: int = 100  # unpacked per packed byte, looked at beyond 1 MiB


class FetchFailed(FleetError):
    """No page: `reason` is what a round stores, `detail` what a person reads."""

    def __init__(self, reason: Reason, detail: str, *, hint: str = "") -> None:
        super().__init__(detail, hint=hint, field="url", retryable=reason in _RETRYABLE)
        self.reason = reason
        self.detail = detail


async def read_body(
    pieces: AsyncIterator[bytes], encoding: str, caps: PageCaps, place: Place | None
) -> bytes:
    """Return the whole body, unpacked. Raises FetchFailed: too_large, not_metrics, unreachable.

    `encoding` is the Content-Encoding header as it came, "" for none.
    """
    unpacker = _Unpacker(encoding.strip().lower(), caps)
    wire = 0
    async for piece in pieces:
        wire += len(piece)
        if wire > caps.wire_bytes:
            raise FetchFailed(Reason.TOO_LARGE, f"more than {caps.wire_bytes} bytes on the wire")
        for size in unpacker.add(piece):
            if size > max(caps.ratio * wire, 1024 * 1024):
                said = f"{wire} bytes unpack to over {caps.ratio} times as many"
                raise FetchFailed(Reason.TOO_LARGE, said)
            if place is not None:
                await place.grow(size)
    return unpacker.finish()


class _Unpacker:
    """Gathers a body, unpacking it where it must, and never holds more than the cap and one byte."""

    def __init__(self, encoding: str, caps: PageCaps) -> None:
        if encoding not in {"", "identity", "gzip", "x-gzip", "deflate"}:
            raise FetchFailed(Reason.NOT_METRICS, f"packed as {encoding[:40]!r}, which was not asked for")
        self._body = BytesIO()  # gives its bytes away without another copy
        self._cap = caps.decoded_bytes
        self._encoding = encoding
        self._zlib = None if encoding in {"", "identity"} else zlib.decompressobj(zlib.MAX_WBITS | 32)

    def add(self, piece: bytes) -> Iterator[int]:
        """Take a piece, unpacked step by step; yield the body's size after each step."""
        if self._zlib is None:
            yield self._take(piece)
            return
        step = piece
        while step or piece:
            try:
                piece = self._zlib.decompress(step, _STEP_BYTES)
            except zlib.error as problem:
                raise FetchFailed(Reason.NOT_METRICS, f"damaged {self._encoding}: {problem}") from problem
            yield self._take(piece)
            step = self._zlib.unconsumed_tail

    def _take(self, piece: bytes) -> int:
        size = self._body.tell() + len(piece)
        if size > self._cap:
            raise FetchFailed(Reason.TOO_LARGE, f"more than {self._cap} bytes of page")
        self._body.write(piece)
        return size

    def finish(self) -> bytes:
        if self._zlib is not None and not self._zlib.eof:
            raise FetchFailed(Reason.UNREACHABLE, f"the {self._encoding} answer was cut short")
        if self._zlib is not None and self._zlib.unused_data:
            raise FetchFailed(Reason.NOT_METRICS, f"the {self._encoding} answer goes on after its end")
        return self._body.getvalue()
