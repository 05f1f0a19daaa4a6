"""Layouts of pages seen before: the next page of a node is compared with them instead of parsed.

A page of an engine has the same lines every round, but for its values. Comparing is two to three times
as fast as splitting, and finds every change of a label or a series, because each line's key is compared.
Pure memory: what a page reads as never depends on it. Prevents: parsing eating the scraper's second.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import compress
from math import isfinite
from operator import ne

from fleet.exposition_lines import Sample, SeriesKey, series_key
from fleet.readings import NamesRead

LAYOUTS_MAX = 4  # of one length
LAYOUT_LENGTHS_MAX = 24
LAYOUT_LINES_MAX = 10_000
NEVER = "\n"  # no line begins with it
_NO_KEY = SeriesKey("", {}, "", None, "")


class PageLayout:
    """The lines of one page, and its last values: a page of the same layout is read by what changed.

    `heads` are sample lines up to their value, `NEVER` for comments and blank lines; `places` say where a
    wanted line's sample stands among those taken, -1 for other lines.
    """

    def __init__(self, heads: list[str], keys: list[SeriesKey | None]) -> None:
        wanted = [key for key in keys if key is not None]
        counter = iter(range(len(wanted)))
        self.declared: frozenset[str] = frozenset()
        self.ended = False
        self.names: dict[str, NamesRead] = {}  # by dialect: what follows from the names alone
        self.edges: dict[str, tuple[float, ...]] = {}  # of families of one engine that are written well
        self.series_count = len(wanted)
        self._heads = heads
        self._keys = [key or _NO_KEY for key in keys]
        self._places = [-1 if key is None else next(counter) for key in keys]
        self._numbers = range(len(heads))
        self._families = _runs([key.name for key in wanted])
        self._last: tuple[list[str], list[Sample]] = ([], [])  # one value, so that threads see a whole one

    def remember(self, lines: list[str], taken: list[Sample]) -> None:
        self._last = (lines, taken)

    def read(self, lines: list[str]) -> list[Sample] | None:
        """Return the samples of a page that differs from the last one in numbers only; else None."""
        last, samples = self._last
        heads, places, keys = self._heads, self._places, self._keys
        changed = list(compress(self._numbers, map(ne, lines, last)))
        now = [lines[number] for number in changed]
        if not all(map(str.startswith, now, [heads[number] for number in changed])):
            return None
        wanted = [number for number in changed if places[number] >= 0]
        texts = [lines[number][len(heads[number]) :] for number in wanted]
        try:
            values = list(map(float, texts))
        except ValueError:
            return None
        if "_" in "".join(texts) or not isfinite(sum(values)):
            return None
        taken = samples.copy()
        for number, value in zip(wanted, values, strict=True):
            taken[places[number]] = (keys[number], value)
        self._last = (lines, taken)
        return taken

    def by_name(self, taken: list[Sample]) -> dict[str, list[Sample]]:
        return {name: taken[start:end] for name, start, end in self._families}


def _runs(names: list[str]) -> list[tuple[str, int, int]]:
    """Each run of equal names, with where it begins and ends."""
    runs: list[tuple[str, int, int]] = []
    for at, name in enumerate(names):
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1], at + 1)
        else:
            runs.append((name, at, at + 1))
    return runs


def _layout(lines: list[str], key_of: Callable[[str], SeriesKey | None]) -> PageLayout | None:
    """Return the layout of a page that was read without a remark; None where one is not worth keeping."""
    if len(lines) > LAYOUT_LINES_MAX:
        return None
    heads: list[str] = []
    keys: list[SeriesKey | None] = []
    taken: list[Sample] = []
    for line in lines:
        if not line or line[0] == "#":
            heads.append(NEVER)
            keys.append(None)
            continue
        head, blank, text = line.rpartition(" ")
        if not blank or line[0] in " \t":
            return None
        try:
            key = key_of(head)
            if key is not None:
                taken.append((key, float(text)))
        except ValueError:
            return None
        heads.append(head + blank)
        keys.append(key)
    if not taken or len({key.name for key, _ in taken}) < len(_runs([key.name for key, _ in taken])):
        return None
    layout = PageLayout(heads, keys)
    layout.remember(lines, taken)
    return layout


class PageMemory:
    """What earlier pages looked like, so that the next one is compared instead of parsed. No page's
    outcome depends on it: every key is checked, and what differs is read from scratch.

    Lines come back every round and from every node of a fleet, so nearly all are hits. A line that cannot
    be read is not remembered, nor is one over 512 characters: bounded to about 30 MB.
    """

    def __init__(self, prefixes: tuple[str, ...]) -> None:
        self._prefixes = prefixes
        self._short_key = lru_cache(maxsize=16_384)(self._wanted_key)
        self._layouts: dict[int, tuple[PageLayout, ...]] = {}

    def key(self, head: str) -> SeriesKey | None:
        """The key of a sample line up to its value; None where it is not wanted. Raises ValueError."""
        return self._short_key(head) if len(head) <= 512 else self._wanted_key(head)

    def _wanted_key(self, head: str) -> SeriesKey | None:
        if not head.startswith(self._prefixes):
            return None
        key = series_key(head)
        return None if key.name.endswith("_created") else key

    def compare(self, lines: list[str]) -> tuple[PageLayout, list[Sample]] | None:
        """Return the layout `lines` have and their samples, None when no known layout fits."""
        for layout in self._layouts.get(len(lines), ()):
            taken = layout.read(lines)
            if taken is not None:
                return layout, taken
        return None

    def learn(self, lines: list[str], declared: frozenset[str], ended: bool) -> None:
        """Remember the layout of a page that was read without a remark."""
        layout = _layout(lines, self.key)
        if layout is None:
            return
        layout.declared, layout.ended = declared, ended
        if len(self._layouts) >= LAYOUT_LENGTHS_MAX and len(lines) not in self._layouts:
            self._layouts.clear()
        self._layouts[len(lines)] = (layout, *self._layouts.get(len(lines), ()))[:LAYOUTS_MAX]
