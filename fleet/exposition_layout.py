"""Layouts of pages seen before: the next page of a node is compared with them instead of parsed.

A page of an engine has the same lines every round, but for its values. Comparing is two to three times
as fast as splitting, and finds every change of a label or a series, because each line's key is compared.
Pure memory: what a page reads as never depends on it. Prevents: parsing eating the scraper's second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite

from fleet.exposition_lines import Sample, SeriesKey, series_key

LAYOUTS_MAX = 8  # of one length
LAYOUT_LENGTHS_MAX = 24
LAYOUT_LINES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class PageLayout:
    """The lines of one page: comments as they are, sample lines up to their value."""

    comments: tuple[tuple[int, int, list[str]], ...]
    others: _Lines  # not wanted, but they must still be what they were
    wanted: _Lines
    keys: tuple[SeriesKey, ...]  # of the wanted lines
    families: tuple[tuple[str, int, int], ...]  # name, and where its samples stand among those taken
    declared: frozenset[str]
    ended: bool

    def read(self, lines: list[str]) -> list[Sample] | None:
        """Return the samples of a page that differs from this one in numbers only; else None."""
        for start, end, run in self.comments:
            if lines[start:end] != run:
                return None
        if not self.others.stand_in(lines):
            return None
        texts = self.wanted.texts(lines)
        if texts is None or "_" in "".join(texts):
            return None
        try:
            values = list(map(float, texts))
        except ValueError:
            return None
        return list(zip(self.keys, values, strict=True)) if isfinite(sum(values)) else None

    def by_name(self, taken: list[Sample]) -> dict[str, list[Sample]]:
        return {name: taken[start:end] for name, start, end in self.families}


@dataclass(frozen=True, slots=True)
class _Lines:
    """Some lines of a page, by number, each with the text it begins with."""

    numbers: list[int]
    heads: list[str]
    sizes: list[int]

    def add(self, number: int, head: str) -> None:
        self.numbers.append(number)
        self.heads.append(head)
        self.sizes.append(len(head))

    def stand_in(self, lines: list[str]) -> bool:
        """True when each of the lines begins as it did. Loops in C: this is the hot path."""
        return all(map(str.startswith, map(lines.__getitem__, self.numbers), self.heads))

    def texts(self, lines: list[str]) -> list[str] | None:
        """What follows each head, None when one line begins otherwise."""
        chosen = list(map(lines.__getitem__, self.numbers))
        if not all(map(str.startswith, chosen, self.heads)):
            return None
        return [line[size:] for line, size in zip(chosen, self.sizes, strict=True)]


def _layout(
    lines: list[str], key_of: Callable[[str], SeriesKey | None], declared: frozenset[str], ended: bool
) -> PageLayout | None:
    """Return the layout of a page that was read without a remark; None where one is not worth keeping."""
    if len(lines) > LAYOUT_LINES_MAX:
        return None
    comments: list[tuple[int, int, list[str]]] = []
    others, wanted = _Lines([], [], []), _Lines([], [], [])
    keys: list[SeriesKey] = []
    families: list[tuple[str, int, int]] = []
    for index, line in enumerate(lines):
        if not line or line[0] == "#":
            if comments and comments[-1][1] == index:
                comments[-1] = (comments[-1][0], index + 1, [*comments[-1][2], line])
            else:
                comments.append((index, index + 1, [line]))
            continue
        head, blank, _ = line.rpartition(" ")
        try:
            key = key_of(head)
        except ValueError:
            return None
        (others if key is None else wanted).add(index, head + blank)
        if key is not None:
            at = len(keys)
            keys.append(key)
            if families and families[-1][0] == key.name:
                families[-1] = (key.name, families[-1][1], at + 1)
            else:
                families.append((key.name, at, at + 1))
    if len({name for name, _, _ in families}) < len(families):
        return None
    return PageLayout(tuple(comments), others, wanted, tuple(keys), tuple(families), declared, ended)


class PageMemory:
    """What earlier pages looked like, so that the next one is compared instead of parsed. No page's
    outcome depends on it: every key is checked, and what differs is read from scratch.

    Lines come back every round and from every node of a fleet, so nearly all are hits. A line that cannot
    be read is not remembered, nor is one over 512 characters: bounded to about 30 MB.
    """

    def __init__(self, prefixes: tuple[str, ...]) -> None:
        self._prefixes = prefixes
        self._short_key = lru_cache(maxsize=16_384)(self._wanted_key)
        self._layouts: dict[int, list[PageLayout]] = {}

    def key(self, head: str) -> SeriesKey | None:
        """The key of a sample line up to its value; None where it is not wanted. Raises ValueError."""
        return self._short_key(head) if len(head) <= 512 else self._wanted_key(head)

    def _wanted_key(self, head: str) -> SeriesKey | None:
        key = series_key(head)
        return None if not head.startswith(self._prefixes) or key.name.endswith("_created") else key

    def compare(self, lines: list[str]) -> tuple[PageLayout, list[Sample]] | None:
        """Return the layout `lines` have and their samples, None when no known layout fits."""
        known = self._layouts.get(len(lines), [])
        for at, layout in enumerate(known):
            taken = layout.read(lines)
            if taken is not None:
                if at:
                    known.insert(0, known.pop(at))
                return layout, taken
        return None

    def learn(self, lines: list[str], declared: frozenset[str], ended: bool) -> None:
        """Remember the layout of a page that was read without a remark."""
        layout = _layout(lines, self.key, declared, ended)
        if layout is None:
            return
        if len(self._layouts) >= LAYOUT_LENGTHS_MAX and len(lines) not in self._layouts:
            self._layouts.clear()
        known = self._layouts.setdefault(len(lines), [])
        known.insert(0, layout)
        del known[LAYOUTS_MAX:]
