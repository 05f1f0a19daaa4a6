"""Who came when: things in the order in which they came, let go at once when they leave.

A place is a number that only grows. Who leaves leaves it empty, and places are given up by the block: two
old ones are looked at for each new one, so no step takes longer where more stand. Prevents: a search
through ten thousand for the oldest, and a tidy-up of them all within one decision.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final, Generic, TypeVar

T = TypeVar("T")

#: Places of a block are 2 to the power of so many ...
_BITS: Final = 8
_BLOCK: Final = 1 << _BITS
#: ... and these are their numbers in it.
_IN_BLOCK: Final = _BLOCK - 1
#: Old blocks looked at for each new one: more than one, so that in the end there are no empty ones.
_LOOKED_AT: Final = 2


class Places(Generic[T]):
    """Things by age. None of them may be false."""

    __slots__ = ("_blocks", "_first", "_newest", "_next", "_unseen", "taken")

    def __init__(self) -> None:
        self._newest: list[T | None] = []
        self._blocks: dict[int, list[T | None]] = {0: self._newest}  # by number
        self._next = 0  # place
        self._first = 0  # nothing stands before this place
        self._unseen: list[int] = []  # blocks to look at before the others
        self.taken = 0

    def add(self, one: T) -> int:
        """Give it the next place, and return its number: what `remove` asks for."""
        place, block = self._next, self._newest
        if len(block) == _BLOCK:
            block = self._begin_block(place >> _BITS)
        block.append(one)
        self.taken += 1
        self._next = place + 1
        return place

    def _begin_block(self, number: int) -> list[T | None]:
        """Begin the next block, and give up old ones that are empty."""
        blocks, unseen = self._blocks, self._unseen
        if len(unseen) < _LOOKED_AT:
            unseen += blocks
        for _ in range(min(_LOOKED_AT, len(unseen))):
            old = unseen.pop()
            if old in blocks and not any(blocks[old]):
                del blocks[old]
        self._newest = blocks[number] = []
        return self._newest

    def remove(self, place: int) -> None:
        """Take out what stands in a place."""
        self._blocks[place >> _BITS][place & _IN_BLOCK] = None
        self.taken -= 1

    def oldest(self) -> T | None:
        """Return what came first; None when there is nothing."""
        if not self.taken:
            self._first = self._next
            return None
        number, at = self._first >> _BITS, self._first & _IN_BLOCK
        while True:
            block = self._blocks.get(number)
            if block is not None and (at or any(block)):
                while at < len(block):
                    one = block[at]
                    if one is not None:
                        self._first = (number << _BITS) + at
                        return one
                    at += 1
            number, at = number + 1, 0

    def oldest_first(self) -> Iterator[T]:
        """Yield them. Nothing may come or leave meanwhile."""
        return (one for one in chain.from_iterable(self._blocks.values()) if one is not None)

    def newest_first(self) -> Iterator[T]:
        """Yield them, what came last first. Nothing may come or leave meanwhile."""
        blocks = reversed(self._blocks.values())
        return (one for block in blocks for one in reversed(block) if one is not None)
