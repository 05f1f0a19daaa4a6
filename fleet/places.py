"""Who came when: things in the order in which they came, let go at once when they leave.

A place is a number that only grows. Who leaves leaves it empty, and places are given up by the block, once
nobody stands in one: no step takes longer where more stand. Prevents: a search through ten thousand for the
oldest, and a tidy-up of them all within one decision.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

T = TypeVar("T")

#: Places of a block are 2 to the power of so many ...
_BITS: Final = 8
_BLOCK: Final = 1 << _BITS
#: ... and these are their numbers in it.
_IN_BLOCK: Final = _BLOCK - 1


class _Block(Generic[T]):
    """Places next to each other."""

    __slots__ = ("places", "taken")

    def __init__(self) -> None:
        self.places: list[T | None] = []
        self.taken = 0


class Places(Generic[T]):
    """Things by age."""

    __slots__ = ("_blocks", "_first", "_newest", "_next", "taken")

    def __init__(self) -> None:
        self._newest: _Block[T] = _Block()
        self._blocks: dict[int, _Block[T]] = {0: self._newest}  # by number; the newest, and those not empty
        self._next = 0  # place
        self._first = 0  # nothing stands before this place
        self.taken = 0

    def add(self, one: T) -> int:
        """Give it the next place, and return its number: what `remove` asks for."""
        place, block = self._next, self._newest
        if len(block.places) == _BLOCK:
            if not block.taken:
                del self._blocks[(place >> _BITS) - 1]
            block = self._begin_block(place >> _BITS)
        block.places.append(one)
        block.taken += 1
        self.taken += 1
        self._next = place + 1
        return place

    def _begin_block(self, number: int) -> _Block[T]:
        block: _Block[T] = _Block()
        self._newest = self._blocks[number] = block
        return block

    def remove(self, place: int) -> None:
        """Take out what stands in a place."""
        block = self._blocks[place >> _BITS]
        block.places[place & _IN_BLOCK] = None
        block.taken -= 1
        self.taken -= 1
        if not block.taken and block is not self._newest:
            del self._blocks[place >> _BITS]

    def oldest(self) -> T | None:
        """Return what came first; None when there is nothing."""
        if not self.taken:
            self._first = self._next
            return None
        number, at = self._first >> _BITS, self._first & _IN_BLOCK
        while True:
            block = self._blocks.get(number)
            if block is not None and block.taken:
                places = block.places
                while at < len(places):
                    one = places[at]
                    if one is not None:
                        self._first = (number << _BITS) + at
                        return one
                    at += 1
            number, at = number + 1, 0

    def oldest_first(self) -> Iterator[T]:
        """Yield them. Nothing may come or leave meanwhile."""
        for block in self._blocks.values():
            for one in block.places:
                if one is not None:
                    yield one

    def newest_first(self) -> Iterator[T]:
        """Yield them, what came last first. Nothing may come or leave meanwhile."""
        for block in reversed(self._blocks.values()):
            for one in reversed(block.places):
                if one is not None:
                    yield one
