"""Room for large pages: what the bodies of one round may take together, and one reader for large ones.

Sizes are bytes. A page takes room as it grows and gives it back when it was read; while there is none it
waits, and its own deadline runs. The one that waits or holds longest may always grow, so that no two wait
for each other. Prevents: a dozen hostile nodes whose pages are each within the cap and together are not,
and threads that read them all at once while everybody else waits for the interpreter.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

MIB = 1024 * 1024
#: Bodies below this take no room of their own: nearly every page there is.
SMALL_BYTES = MIB // 2
#: What pages that are not the oldest may hold together.
ROOM_BYTES = 4 * MIB


class Place:
    """What one page holds of the room."""

    def __init__(self, room: PageRoom) -> None:
        self._room = room
        self.held = 0
        self.is_waiting = False

    async def grow(self, size: int) -> None:
        """Have room for `size` bytes in all, waiting for it where there is none."""
        if size > max(self.held, SMALL_BYTES):
            await self._room.take(self, -(-size // MIB) * MIB)


class PageRoom:
    """The room all pages of a process share. Owned by one event loop."""

    def __init__(self, limit: int = ROOM_BYTES) -> None:
        self._limit = limit
        self._holders: dict[Place, None] = {}  # oldest first
        self._changed = asyncio.Condition()
        self._reading = asyncio.Semaphore(1)

    @property
    def held(self) -> int:
        """Bytes that pages hold now."""
        return sum(place.held for place in self._holders)

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[Place]:
        """Give a page its place, until it has been read."""
        place = Place(self)
        try:
            yield place
        finally:
            if place in self._holders:
                del self._holders[place]
                async with self._changed:
                    self._changed.notify_all()

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[None]:
        """Let one large page at a time be read in a thread."""
        async with self._reading:
            yield

    async def take(self, place: Place, size: int) -> None:
        """Let `place` hold `size` bytes. See `Place.grow`."""
        self._holders.setdefault(place, None)
        place.is_waiting = True
        async with self._changed:
            await self._changed.wait_for(lambda: self._fits(place, size))
            place.held = size
        place.is_waiting = False

    def _fits(self, place: Place, size: int) -> bool:
        return self.held - place.held + size <= self._limit or next(iter(self._holders)) is place
