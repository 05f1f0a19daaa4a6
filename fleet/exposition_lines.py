"""The grammar of one sample line: name, labels, value, timestamp, exemplar.

Knows Prometheus text and OpenMetrics, and the prefixes that proxies and renderers put in front of a name.
Raises ValueError with the reason, for `exposition` to note. Prevents: a value, a label or half a line
read as something it is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf, isnan
from sys import intern
from typing import NamedTuple

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
_QUOTED = r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'  # possessive: a hostile line costs its length, once
_LABEL = re.compile(rf"[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*{_QUOTED}[ \t]*(,|$)")
_BRACES = re.compile(rf"\{{(?:[^\"}}]++|{_QUOTED})*+\}}")
_ESCAPE = re.compile(r'\\([\\"n])')
_PLAIN_NUMBER = re.compile(r"[+-]?(?:[0-9][0-9.eE+-]*|\.[0-9][0-9eE+-]*|[Ii]nf(?:inity)?|[Nn]a[Nn])")


class SeriesKey(NamedTuple):
    """A series' name after prefix rewriting, and its labels unescaped.

    `canonical` is one spelling for equal keys. `bound` is the label `le` as a number (None without one),
    `group` the spelling of all other labels: series of one histogram have equal groups.
    """

    name: str
    labels: Mapping[str, str]
    canonical: str
    bound: float | None
    group: str


#: One series of a page and its (finite) value. A bare tuple, for hundreds are made a page.
Sample = tuple[SeriesKey, float]


def series_key(head: str) -> SeriesKey:
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
    bound = _bound(labels["le"]) if "le" in labels else None
    group = "\x00".join(f"{k}\x01{v}" for k, v in sorted(labels.items()) if k != "le")
    canonical = f"{name}\x00{group}\x00{labels.get('le', '')}"
    return SeriesKey(intern(name), labels, canonical, bound, intern(group))


def _bound(text: str) -> float:
    bound = number(text)
    if bound == -inf or isnan(bound):
        raise ValueError(f"bucket bound {text} is no bound")
    return bound


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
    usual ones take the short cut in `exposition`, which must agree with it.
    """
    line = line.strip(" \t\r")
    brace = line.find("{")
    blank = min((at for at in (line.find(" "), line.find("\t")) if at >= 0), default=-1)
    if brace < 0 or (0 <= blank < brace and line[blank:brace].strip(" \t")):
        head, rest = (line[:blank], line[blank:]) if blank >= 0 else (line, "")
    else:
        labels = _BRACES.match(line, brace)
        if labels is None:
            raise ValueError("labels do not end")
        head, rest = line[: labels.end()], line[labels.end() :]
    value, _, exemplar = rest.strip(" \t").partition("#")
    words = value.split()
    if not 1 <= len(words) <= 2 or (exemplar and not exemplar.lstrip(" \t").startswith("{")):
        raise ValueError("not a sample line")
    if len(words) == 2:
        number(words[1])
    return series_key(head), number(words[0])
