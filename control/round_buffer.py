"""Rounds that wait for Postgres, within a bound of bytes; the oldest go first when it is reached.

All but the newest few are kept packed, so that the bound is counted rather than guessed and an hour of a
thousand nodes fits. Not for two threads at once: the owner locks. Prevents: memory that grows while the
database is away, and a bound in rounds that means 30 MB here and 3 GB there.
"""

from __future__ import annotations

import pickle
import zlib
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
#: Rounds left unpacked: with a database that answers there are never more.
OPEN_ROUNDS = 3
#: What an unpacked row is taken for; measured at 3 to 8 KB with its verdict.
OPEN_ROW_BYTES = 8_000
_LEVEL = 1  # of zlib: a third of the time of its default for a tenth more bytes


@dataclass(slots=True)
class _Entry(Generic[T]):
    """One round, open or packed, and the bytes it counts for."""

    number: int
    value: T | None
    packed: bytes
    size: int


class RoundBuffer(Generic[T]):
    """A queue with a bound in bytes. Values must be picklable; they never leave the process."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: deque[_Entry[T]] = deque()
        self._next = 0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, value: T, rows: int) -> int:
        """Put `value` of `rows` rows last; return how many of the oldest were dropped to keep the bound.

        The newest is kept, however large it is.
        """
        size = max(1, rows) * OPEN_ROW_BYTES
        self._entries.append(_Entry(self._next, value, b"", size))
        self._next += 1
        self.bytes += size
        if len(self._entries) > OPEN_ROUNDS:
            self._pack(self._entries[-1 - OPEN_ROUNDS])
        dropped = 0
        while self.bytes > self._max_bytes and len(self._entries) > 1:
            self._drop_first()
            dropped += 1
        return dropped

    def _pack(self, entry: _Entry[T]) -> None:
        if entry.value is None:
            return
        entry.packed = zlib.compress(pickle.dumps(entry.value, protocol=5), _LEVEL)
        entry.value = None
        self.bytes += len(entry.packed) - entry.size
        entry.size = len(entry.packed)

    def first(self) -> tuple[int, T] | None:
        """Return the oldest and its number, which `done` takes; None when nothing waits."""
        if not self._entries:
            return None
        entry = self._entries[0]
        value: T = entry.value if entry.value is not None else pickle.loads(zlib.decompress(entry.packed))  # noqa: S301 # our own bytes, never from outside
        return entry.number, value

    def done(self, number: int) -> None:
        """Remove the oldest if it still is that one (it may have been dropped meanwhile)."""
        if self._entries and self._entries[0].number == number:
            self._drop_first()

    def clear(self) -> int:
        """Drop everything; return how many."""
        dropped = len(self._entries)
        self._entries.clear()
        self.bytes = 0
        return dropped

    def _drop_first(self) -> None:
        self.bytes -= self._entries.popleft().size
