"""What one turn of the event loop sends, sent together at its end; what must be on disk first is, by then.

Sizes are bytes. A write to a socket that wakes the other side costs most of what the kernel takes for a
request: the next writes find it awake. Usage records and the journal are written once for all that a turn
sends, and always before the first byte of it. Prevents: an answer that a client has and no record tells of,
a request at an engine that no journal names, and a system call for each of a hundred small things.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

#: More than this for one connection is not held: its transport must see that the other side does not read.
MAX_HELD_BYTES = 64 * 1024


class Outbox:
    """Holds what connections of one loop send until the turn ends."""

    __slots__ = ("_first", "_held", "_is_due", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, first: Callable[[], None] | None = None) -> None:
        """`first` is called before anything leaves: it writes what must not be lost then."""
        self._loop, self._first = loop, first
        self._held: list[Outgoing] = []
        self._is_due = False

    def of(self, transport: asyncio.BaseTransport) -> Outgoing:
        """Return `transport` as a connection uses it from now on."""
        return Outgoing(self, cast("asyncio.Transport", transport))

    def take(self, one: Outgoing) -> None:
        """Let `one` go with the others of this turn."""
        self._held.append(one)
        self.soon()

    def soon(self) -> None:
        """Write and send when the turn ends."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.send)

    def send(self) -> None:
        """Send all that is held. After a fault what is left goes in the next turn: nobody else sends it."""
        held, self._held, self._is_due = self._held, [], False
        is_done = False
        try:
            self.write_first()
            for one in held:
                one.let_go()
            is_done = True
        finally:
            if not is_done:
                self._held = held + self._held  # those that have sent hold nothing
                self.soon()

    def write_first(self) -> None:
        """Write what must be on disk before anything leaves."""
        if self._first is not None:
            self._first()


class Outgoing:
    """A transport whose writes wait for the end of the turn. All else of it goes through as it is."""

    __slots__ = ("_held", "_held_bytes", "_outbox", "inner")

    def __init__(self, outbox: Outbox, transport: asyncio.Transport) -> None:
        self._outbox, self.inner = outbox, transport
        self._held: list[bytes] = []
        self._held_bytes = 0

    def write(self, data: bytes) -> None:
        """Send `data` when the turn ends, after what was written before it.

        A connection that closes takes no more: beyond the bound it is forgotten.
        """
        if not self._held:
            self._outbox.take(self)
        elif self._held_bytes > MAX_HELD_BYTES and self.inner.is_closing():
            return
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > MAX_HELD_BYTES:
            self.hurry()

    def let_go(self) -> None:
        """Hand over what is held. Only for the outbox: what must be on disk first is not looked at.

        What a connection does not take that closes stays here: its end must not look as if it had left.
        """
        held = self._held
        if held and not self.inner.is_closing():
            self._held, self._held_bytes = [], 0
            self.inner.write(held[0] if len(held) == 1 else b"".join(held))

    def hurry(self) -> None:
        """Send what is held now."""
        if self._held:
            self._outbox.write_first()
            self.let_go()

    def drop(self) -> bool:
        """Forget what is held, as if it had not been written. Say whether there was any."""
        had_some = bool(self._held)
        self._held, self._held_bytes = [], 0
        return had_some

    @property
    def holds(self) -> bool:
        """Say whether something waits here."""
        return bool(self._held)

    @property
    def is_empty(self) -> bool:
        """Say whether all that was written is the kernel's."""
        return not self._held and not self.inner.get_write_buffer_size()

    # -- as of the transport ------------------------------------------------------------------------

    def close(self) -> None:
        """Close once all is sent."""
        self.hurry()
        self.inner.close()

    def abort(self) -> None:
        """Close at once. What was written goes as far as the kernel takes it."""
        self.hurry()
        self.inner.abort()

    def write_eof(self) -> None:
        """Say that nothing follows."""
        self.hurry()
        self.inner.write_eof()

    def can_write_eof(self) -> bool:
        return self.inner.can_write_eof()

    def is_closing(self) -> bool:
        return self.inner.is_closing()

    def pause_reading(self) -> None:
        self.inner.pause_reading()

    def resume_reading(self) -> None:
        self.inner.resume_reading()
