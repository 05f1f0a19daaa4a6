"""Read a metrics page into named series: the only place that knows exposition syntax.

Takes Prometheus text, OpenMetrics (exemplars, timestamps, `# EOF`) and OpenMetrics with renamed samples.
Values are finite floats in whatever unit the name says. A line that cannot be trusted is left out and
named in `dropped`; nothing in a page can raise. Work and memory are bounded by `Caps`. Prevents: one
hostile, cut or merely unusual line costing a node all its metrics, or turning into a wrong number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite

_MIB = 1024 * 1024
_CHUNK_BYTES = 256 * 1024
LABELS_MAX = 128  # a cache configuration of vLLM 0.32 has 36
LABEL_VALUE_CHARS_MAX = 8192

#: Written prefix -> the prefix we read by. Ray and KServe put theirs in front; an OpenMetrics page asked
#: for at `/metrics/` has `vllm_` where the text page has `vllm:`. Longest first.
PREFIX_REWRITES: tuple[tuple[str, str], ...] = (
    ("kserve_vllm:", "vllm:"),
    ("kserve_vllm_", "vllm:"),
    ("ray_vllm:", "vllm:"),
    ("ray_vllm_", "vllm:"),
    ("vllm_", "vllm:"),
    ("ray_sglang:", "sglang:"),
    ("sglang_", "sglang:"),
)

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(,|$)')
_ESCAPE = re.compile(r'\\([\\"n])')
_PLAIN_NUMBER = re.compile(r"[+-]?(?:[0-9][0-9.eE+-]*|\.[0-9][0-9eE+-]*|[Ii]nf(?:inity)?|[Nn]a[Nn])")


@dataclass(frozen=True, slots=True)
class Caps:
    """Bounds on one page. Beyond `body_bytes` nothing is read; beyond the others, only the rest is lost."""

    body_bytes: int = 16 * _MIB  # a 22 MB page exists in the wild; eight engines give 0.25 MB
    line_bytes: int = 64 * 1024
    series: int = 20_000
    family_series: int = 5_000  # one family cannot push the others out
    dropped: int = 50  # remarks kept; the rest are counted


DEFAULT_CAPS = Caps()


@dataclass(frozen=True, slots=True)
class SeriesKey:
    """A series' name after prefix rewriting, its labels unescaped, and one spelling for equal keys."""

    name: str
    labels: Mapping[str, str]
    canonical: str


#: One series of a page: its labels and its (finite) value. A bare tuple, for hundreds are made a page.
Sample = tuple[Mapping[str, str], float]


@dataclass(slots=True)
class Families:
    """All wanted samples of a page by name. `declared` has the families with a `# TYPE` line."""

    samples: dict[str, list[Sample]] = field(default_factory=dict[str, list[Sample]])
    declared: set[str] = field(default_factory=set[str])
    dropped: list[str] = field(default_factory=list[str])
    dropped_more: int = 0
    ended: bool = False  # `# EOF` was seen
    too_large: bool = False
    saw_sample: bool = False  # any line at all that reads as a sample, wanted or not

    def remarks(self) -> tuple[str, ...]:
        """Return why lines were left out, the last entry counting those beyond the cap."""
        more = (f"and {self.dropped_more} more",) if self.dropped_more else ()
        return (*self.dropped, *more)


@lru_cache(maxsize=16_384)
def _short_key(head: str) -> SeriesKey:
    return _series_key(head)


def _series_key(head: str) -> SeriesKey:
    """Read `name` or `name{labels}`, exactly. Raises ValueError with the reason."""
    name, brace, rest = head.partition("{")
    name = name.rstrip(" \t") if brace else name
    if not _NAME.fullmatch(name):
        raise ValueError("not a metric name")
    labels: dict[str, str] = {}
    if brace:
        if not rest.endswith("}"):
            raise ValueError("labels do not end")
        labels = _labels(rest[:-1])
    for written, ours in PREFIX_REWRITES:
        if name.startswith(written):
            name = ours + name[len(written) :]
            break
    canonical = name + "\x00" + "\x00".join(f"{k}\x01{v}" for k, v in sorted(labels.items()))
    return SeriesKey(name, labels, canonical)


def _labels(text: str) -> dict[str, str]:
    """Read the inside of the braces. A trailing comma is allowed. Raises ValueError with the reason."""
    labels: dict[str, str] = {}
    at, end = 0, len(text)
    while at < end and not text[at:].isspace():
        match = _LABEL.match(text, at)
        if match is None:
            raise ValueError("labels are malformed")
        name, value, _ = match.groups()
        if "\\" in value:
            value = _ESCAPE.sub(lambda m: "\n" if m[1] == "n" else m[1], value)
        if name in labels:
            raise ValueError(f"label {name} is given twice")
        if len(value) > LABEL_VALUE_CHARS_MAX:
            raise ValueError(f"label {name} has {len(value)} characters, over {LABEL_VALUE_CHARS_MAX}")
        labels[name] = value
        if len(labels) > LABELS_MAX:
            raise ValueError(f"over {LABELS_MAX} labels")
        at = match.end()
    return labels


def number(text: str) -> float:
    """Return the float `text` spells as exporters spell it. Raises ValueError for anything else.

    Python's own reading is wider: it takes `1_0` and digits of other scripts.
    """
    if not _PLAIN_NUMBER.fullmatch(text):
        raise ValueError("not a number")
    try:
        return float(text)
    except ValueError:
        raise ValueError("not a number") from None


def read_line(line: str) -> tuple[SeriesKey, float]:
    """Read one sample line by the rules: labels, value, then a timestamp and an exemplar, both ignored.

    Raises ValueError with the reason when it is not such a line. This is the path for unusual lines;
    usual ones take the short cut in `read_families`, which must agree with it.
    """
    line = line.strip(" \t\r")
    brace = line.find("{")
    blank = next((i for i, c in enumerate(line) if c in " \t"), -1)
    if brace < 0 or (0 <= blank < brace and line[blank:brace].strip(" \t")):
        head, rest = (line[:blank], line[blank:]) if blank >= 0 else (line, "")
    else:
        close = _closing_brace(line, brace)
        head, rest = line[: close + 1], line[close + 1 :]
    value, _, exemplar = rest.strip(" \t").partition("#")
    words = value.split()
    if not 1 <= len(words) <= 2 or (exemplar and not exemplar.lstrip(" \t").startswith("{")):
        raise ValueError("not a sample line")
    if len(words) == 2:
        number(words[1])
    return _series_key(head), number(words[0])


def _closing_brace(line: str, brace: int) -> int:
    at, quoted = brace + 1, False
    while at < len(line):
        char = line[at]
        if quoted and char == "\\":
            at += 1
        elif char == '"':
            quoted = not quoted
        elif char == "}" and not quoted:
            return at
        at += 1
    raise ValueError("labels do not end")


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
    is_cut = not body.endswith(b"\n") and b"# TYPE " in body
    if is_cut:
        last = body.rfind(b"\n") + 1
        found.ended = body[last:].strip() == b"# EOF"
        if not found.ended:
            reader.drop(body.count(b"\n"), "last line is cut short")
        body = body[:last]
    for lines, whole in _chunks(body, caps.line_bytes):
        reader.take(lines if whole else reader.short_lines(lines))
        if reader.full:
            break
    return found


class _PageReader:
    """State of one reading: what was seen, where we are, and whether the series cap is reached."""

    def __init__(self, found: Families, prefixes: tuple[str, ...], caps: Caps) -> None:
        self.found = found
        self.prefixes = prefixes
        self.caps = caps
        self.line = 0
        self.full = False
        self._seen: set[str] = set()

    def drop(self, line: int, reason: str) -> None:
        if len(self.found.dropped) < self.caps.dropped:
            self.found.dropped.append(f"line {line + 1}: {reason}")
        else:
            self.found.dropped_more += 1

    def short_lines(self, lines: list[str]) -> list[str]:
        """Blank out the lines over the cap, keeping the numbering."""
        cap = self.caps.line_bytes
        for index, line in enumerate(lines):
            if len(line) > cap or line == "\x00" or (line == "" and len(lines) == 1):
                self.drop(self.line + index, f"over the line cap of {cap} bytes")
                lines[index] = ""
        return lines

    def take(self, lines: list[str]) -> None:
        """Read `lines`, the usual ones by a short cut: split at the last blank, key from the memo."""
        prefixes, seen, samples = self.prefixes, self._seen, self.found.samples
        for index, line in enumerate(lines):
            if not line.startswith(prefixes):
                if line:
                    self._other(line, index)
                continue
            head, _, text = line.rpartition(" ")
            try:
                key = _short_key(head) if len(head) < 512 else _series_key(head)
                value = float(text)
                if "_" in text or not text.isascii():
                    raise ValueError("not a number")
            except ValueError:
                try:
                    key, value = read_line(line)
                except ValueError as reason:
                    self.drop(self.line + index, str(reason))
                    continue
            name = key.name
            if name.endswith("_created"):
                continue
            if not isfinite(value):
                self.drop(self.line + index, f"{name} is {value}")
                continue
            if key.canonical in seen:
                self.drop(self.line + index, f"{name} is given twice with the same labels")
                continue
            if self._over_cap(name, index):
                break
            seen.add(key.canonical)
            if name in samples:
                samples[name].append((key.labels, value))
            else:
                samples[name] = [(key.labels, value)]
        self.line += len(lines)

    def _over_cap(self, name: str, index: int) -> bool:
        if len(self._seen) < self.caps.series:
            return False
        self.drop(self.line + index, f"series cap of {self.caps.series} reached; the rest was not read")
        self.full = True
        return True

    def _other(self, line: str, index: int) -> None:
        """Take note of metadata, the end mark, and whether unwanted lines look like samples at all."""
        if line[0] == "#":
            if line.startswith("# TYPE "):
                name = line[7:].partition(" ")[0]
                if name.startswith(self.prefixes):
                    self.found.declared.add(name)
            elif line.startswith("# EOF"):
                self.found.ended = True
        elif line[0] in " \t" and line.strip().startswith(self.prefixes):
            self.take_loose(line.strip(), index)
        elif not self.found.saw_sample:
            try:
                read_line(line)
            except ValueError:
                return
            self.found.saw_sample = True

    def take_loose(self, line: str, index: int) -> None:
        """Read a wanted line that has blanks in front."""
        at = self.line
        self.line += index
        self.take([line])
        self.line = at
