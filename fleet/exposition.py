"""Read a metrics page into named series: the only place that knows exposition syntax.

Takes Prometheus text, OpenMetrics (exemplars, timestamps, `# EOF`) and OpenMetrics with renamed samples.
Values are finite floats in whatever unit the name says. A line that cannot be trusted is left out and
named in `dropped`; nothing in a page can raise. Work and memory are bounded by `Caps`. Prevents: one
hostile, cut or merely unusual line costing a node all its metrics, or turning into a wrong number.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite

from fleet.exposition_layout import PageLayout, PageMemory
from fleet.exposition_lines import Sample, read_line

_MIB = 1024 * 1024
_CHUNK_BYTES = 256 * 1024
_LONG_CHARS = 4096  # longer lines are read once, by the rules
_LOOKS_MAX = 100  # lines of a page that are tried for being samples at all


@dataclass(frozen=True, slots=True)
class Caps:
    """Bounds on one page. Beyond `body_bytes` nothing is read; beyond the others, only the rest is lost."""

    body_bytes: int = 16 * _MIB  # a 22 MB page exists in the wild; eight engines give 0.25 MB
    line_bytes: int = 64 * 1024
    lines: int = 200_000  # eight engines give 7,000
    series: int = 20_000
    family_series: int = 5_000  # one family cannot push the others out
    dropped: int = 50  # remarks kept; the rest are counted
    bad_lines: int = 10_000


DEFAULT_CAPS = Caps()


@dataclass(slots=True)
class Families:
    """All wanted samples of a page by name. `declared` has the families with a `# TYPE` line."""

    series: dict[str, list[Sample]] = field(default_factory=dict[str, list[Sample]])
    declared: set[str] = field(default_factory=set[str])
    dropped: list[str] = field(default_factory=list[str])
    dropped_more: int = 0
    ended: bool = False  # `# EOF` was seen
    too_large: bool = False
    saw_sample: bool = False  # any line at all that reads as a sample, wanted or not
    layout: PageLayout | None = None  # of a page with the lines of an earlier one

    @property
    def samples(self) -> dict[str, list[tuple[Mapping[str, str], float]]]:
        """The samples by name as (labels, value), for callers that need no more."""
        return {name: [(k.labels, v) for k, v in family] for name, family in self.series.items()}

    def remarks(self) -> tuple[str, ...]:
        """Return why lines were left out, the last entry counting those beyond the cap."""
        more = (f"and {self.dropped_more} more",) if self.dropped_more else ()
        return (*self.dropped, *more)


_memory = lru_cache(maxsize=4)(PageMemory)


def _chunks(body: bytes, line_bytes: int) -> Iterator[tuple[list[str], bool]]:
    """Yield the page's lines a few hundred KB at a time; (lines, False) where one line was over the cap."""
    at, size = 0, len(body)
    while at < size:
        cut = body.rfind(b"\n", at, at + _CHUNK_BYTES)
        if cut < 0 and at + _CHUNK_BYTES < size:  # a line longer than a chunk, so over the cap
            cut = body.find(b"\n", at + _CHUNK_BYTES)
            yield ["" if cut >= 0 else "\x00"], False
            at = cut + 1 if cut >= 0 else size
            continue
        end = cut if cut >= 0 else size
        lines = body[at:end].decode("utf-8", "replace").split("\n")
        whole = end - at <= line_bytes or max(map(len, lines)) <= line_bytes
        yield lines, whole
        at = end + 1


def read_families(body: bytes, *, prefixes: tuple[str, ...], caps: Caps = DEFAULT_CAPS) -> Families:
    """Return all finite samples whose written name starts with one of `prefixes`. Never raises.

    `_created` samples are left out (two fifths of a vLLM page). The first of equal series wins. A page
    with metadata whose last line has no line end was cut short, and that line is left out: exporters
    end every line, and half a number is a wrong number.
    Source: Prometheus text exposition format 0.0.4 and 1.0.0, OpenMetrics 1.0.
    """
    found = Families()
    if len(body) > caps.body_bytes:
        found.too_large = True
        found.dropped.append(f"page of {len(body)} bytes is over the cap of {caps.body_bytes}")
        return found
    reader = _PageReader(found, prefixes, caps)
    body = body.removeprefix(BOM_UTF8)  # an editor's mark would cost the first line
    if not body.endswith(b"\n") and b"# TYPE " in body:
        last = body.rfind(b"\n") + 1
        found.ended = body[last:].strip() == b"# EOF"
        if not found.ended:
            reader.drop(body.count(b"\n"), "last line is cut short")
        body = body[:last]
    is_usual = len(body) <= _CHUNK_BYTES and body.isascii()
    for lines, whole in _chunks(body, caps.line_bytes):
        if whole and is_usual and reader.take_known(lines):
            return found
        reader.take(lines if whole else reader.short_lines(lines))
        if reader.is_full():
            break
    reader.close()
    return found


class _PageReader:
    """One reading: what was taken so far (with line numbers, for remarks), and where we are."""

    def __init__(self, found: Families, prefixes: tuple[str, ...], caps: Caps) -> None:
        self.found = found
        self.prefixes = prefixes
        self.caps = caps
        self.line = 0
        self.taken: list[Sample] = []
        self._last: list[str] = []  # the lines read last: the whole page, where it is not a large one
        self._memory = _memory(prefixes)

    def drop(self, line: int, reason: str) -> None:
        self.remark(f"line {line + 1}: {reason}")

    def remark(self, text: str) -> None:
        if len(self.found.dropped) < self.caps.dropped:
            self.found.dropped.append(text)
        else:
            self.found.dropped_more += 1

    def is_full(self) -> bool:
        """True when a cap is reached and the rest of the page must go unread; says which."""
        caps = self.caps
        if self.line > caps.lines:
            self.remark(f"cap of {caps.lines} lines reached; the rest of the page was not read")
        elif self.found.dropped_more > caps.bad_lines:
            self.remark(f"over {caps.bad_lines} bad lines; the rest of the page was not read")
        else:
            return len(self.taken) > caps.series
        return True

    def short_lines(self, lines: list[str]) -> list[str]:
        """Blank out the lines over the cap, keeping the numbering."""
        cap = self.caps.line_bytes
        for index, line in enumerate(lines):
            if len(line) > cap or line == "\x00" or (line == "" and len(lines) == 1):
                self.drop(self.line + index, f"over the line cap of {cap} bytes")
                lines[index] = ""
        return lines

    def take_known(self, lines: list[str]) -> bool:
        """Read a whole page by a layout known from earlier pages; False where none fits."""
        fit = self._memory.compare(lines)
        if fit is None:
            return False
        layout, taken = fit
        if len(taken) > min(self.caps.series, self.caps.family_series):
            return False
        self.found.series = layout.by_name(taken)
        self.found.declared = set(layout.declared)
        self.found.ended = layout.ended
        self.found.saw_sample = True
        self.found.layout = layout
        return True

    def take(self, lines: list[str]) -> None:
        """Read `lines`, the usual ones by a short cut: split at the last blank, key from the memo."""
        key_of, taken = self._memory.key, self.taken
        looks = 0 if self.found.saw_sample else _LOOKS_MAX
        for index, line in enumerate(lines):
            if not line:
                continue
            if line[0] == "#":
                self._comment(line)
                continue
            if len(line) > _LONG_CHARS:
                self._unusual(line, index)
                continue
            head, _, text = line.rpartition(" ")
            try:
                key = key_of(head)
                if key is None:
                    if not head or line[0] in " \t":
                        self._unusual(line, index)
                    elif looks:
                        looks = 0 if self._is_sample(line) else looks - 1
                    continue
                value = float(text)
            except ValueError:
                self._unusual(line, index)
                continue
            if value - value != 0.0 or "_" in text or not text.isascii():
                self._unusual(line, index)
                continue
            taken.append((key, value))
        self.line += len(lines)
        self._last = lines

    def _is_sample(self, line: str) -> bool:
        try:
            read_line(line)
        except ValueError:
            return False
        self.found.saw_sample = True
        return True

    def _unusual(self, line: str, index: int) -> None:
        """Read a line the short cut does not take; a wanted one that cannot be read is remarked on."""
        line = line.strip(" \t\r")
        if not line:
            return
        is_wanted = line.startswith(self.prefixes)
        if not is_wanted and self.found.saw_sample:
            return
        try:
            key, value = read_line(line)
        except ValueError as reason:
            if is_wanted:
                self.drop(self.line + index, str(reason))
            return
        self.found.saw_sample = True
        if not is_wanted or key.name.endswith("_created"):
            return
        if isfinite(value):
            self.taken.append((key, value))
        else:
            self.drop(self.line + index, f"{key.name} is {value}")

    def _comment(self, line: str) -> None:
        if line.startswith("# TYPE "):
            name = line[7:].partition(" ")[0]
            if name.startswith(self.prefixes):
                self.found.declared.add(name)
        elif line.startswith("# EOF"):
            self.found.ended = True

    def close(self) -> None:
        """Group what was taken by name, within the caps; the first of equal series wins."""
        found, caps, taken = self.found, self.caps, self.taken
        if len(taken) > caps.series:
            del taken[caps.series :]
            self.remark(f"series cap of {caps.series} reached; the rest of the page was not read")
        if len({key.canonical for key, _ in taken}) < len(taken):
            taken = self._first_of_equals(taken)
        series = found.series
        for sample in taken:
            name = sample[0].name
            if name in series:
                series[name].append(sample)
            else:
                series[name] = [sample]
        for name, family in series.items():
            if len(family) > caps.family_series:
                self.remark(f"{name} has {len(family)} series; {caps.family_series} were kept")
                del family[caps.family_series :]
        found.saw_sample = found.saw_sample or bool(series)
        if not found.dropped and self.line == len(self._last):
            self._memory.learn(self._last, frozenset(found.declared), found.ended)

    def _first_of_equals(self, taken: list[Sample]) -> list[Sample]:
        first: dict[str, Sample] = {}
        for sample in taken:
            if first.setdefault(sample[0].canonical, sample) is not sample:
                self.remark(f"{sample[0].name} is given twice with the same labels")
        return list(first.values())
