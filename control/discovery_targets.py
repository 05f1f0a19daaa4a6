"""What a discovery source answered, as nodes: addresses read, names formed, hostile parts left out.

Pure. An address is `host:port`; a node's name comes from a rule such as `{host}` or `{label_pod}`, and
targets that get the same name are engines of one node. Whatever is left out is named in `remarks`.
Prevents: an answer that points the scraper at a metadata service, names that collide unseen, and a list of
a million targets becoming a million nodes.
Source: Prometheus documentation, "HTTP SD" and "file_sd_config": the JSON format of both.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import Any, cast

import orjson

from control.commands_fleet import checked_node_url
from fleet.errors import InvalidInput

BYTES_MAX = 4 * 1024 * 1024
TARGETS_MAX = 5_000
PAGES_MAX = 64  # engines of one node
LABELS_MAX = 64
LABEL_CHARACTERS = 200
REMARKS_MAX = 20
RULE_CHARACTERS = 200
_SHOWN = 80
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_./-]{0,99}")
_PATH = re.compile(r"/[A-Za-z0-9_./-]{0,200}")
_UNFIT = re.compile(r"[^a-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Found:
    """One target: where it is and what its source says about it."""

    address: str  # host:port, or host
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    name: str | None = None  # of its node, where the source says it outright
    is_ready: bool = True  # False: there, but takes no requests: adds no node and removes none


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer of a source. An empty one is an answer too."""

    found: tuple[Found, ...]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Naming:
    """How targets of a source become nodes."""

    rule: str = "{host}"
    scheme: str = "http"
    metrics_path: str = "/metrics"
    default_port: int | None = None
    gpu_port: int | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A node as its source wants it. `pages` are further engines, `gpu_url` its GPU exporter's page."""

    name: str
    url: str
    metrics_path: str
    labels: Mapping[str, str]
    pages: tuple[str, ...] = ()
    gpu_url: str | None = None
    is_ready: bool = True


@dataclass(slots=True)
class Remarks:
    """What was left out and why, bounded: the rest is counted."""

    lines: list[str] = field(default_factory=list[str])
    more: int = 0

    def add(self, line: str) -> None:
        if len(self.lines) < REMARKS_MAX:
            self.lines.append(line)
        else:
            self.more += 1

    def all(self) -> tuple[str, ...]:
        return (*self.lines, f"and {self.more} more") if self.more else tuple(self.lines)


def shown(text: object) -> str:
    """Return a part of an answer for people: printable, short, on one line."""
    said = str(text)[: _SHOWN + 1]
    said = "".join(c if c.isprintable() else "?" for c in said)
    return said if len(said) <= _SHOWN else said[:_SHOWN] + "…"


def read_target_groups(body: bytes) -> Answer:
    """Read `[{"targets": ["host:port"], "labels": {"a": "b"}}]`.

    Raises InvalidInput if the body as a whole is not that; a group that is not is left out and named.
    """
    if len(body) > BYTES_MAX:
        raise InvalidInput(f"the answer has {len(body)} bytes; at most {BYTES_MAX} are read")
    try:
        groups: object = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidInput(
            f"not JSON (line {exc.lineno}, column {exc.colno})",
            hint='Prometheus\'s format is [{"targets": ["host:port"], "labels": {}}]',
        ) from None
    if not isinstance(groups, list):
        raise InvalidInput("not a list of target groups", hint="See Prometheus, HTTP SD")
    found: list[Found] = []
    remarks = Remarks()
    for number, group in enumerate(cast("list[Any]", groups), start=1):
        entry = cast("dict[str, Any]", group) if isinstance(group, dict) else {}
        targets = entry.get("targets")
        if not isinstance(targets, list):
            remarks.add(f"group {number} has no list of targets")
            continue
        labels = read_labels(entry.get("labels"))
        for target in cast("list[Any]", targets):
            if isinstance(target, str):
                found.append(Found(target, labels))
            else:
                remarks.add(f"group {number} has a target that is no text")
        if len(found) > TARGETS_MAX:
            raise InvalidInput(f"more than {TARGETS_MAX} targets", hint="Split the source or filter it")
    return Answer(tuple(found), remarks.all())


def read_labels(labels: object) -> dict[str, str]:
    """Return the labels that can be ones: names of letters, short printable values, at most 64."""
    if not isinstance(labels, dict):
        return {}
    kept: dict[str, str] = {}
    for name, value in cast("dict[Any, Any]", labels).items():
        is_fit = isinstance(name, str) and _LABEL.fullmatch(name) and isinstance(value, str)
        if is_fit and len(kept) < LABELS_MAX and value.isprintable() and len(value) <= LABEL_CHARACTERS:
            kept[cast("str", name)] = value
    return kept


def read_lines(body: bytes) -> Answer:
    """Read a plain list: one `address [node name]` a line; `#` begins a comment."""
    if len(body) > BYTES_MAX:
        raise InvalidInput(f"the file has {len(body)} bytes; at most {BYTES_MAX} are read")
    found: list[Found] = []
    remarks = Remarks()
    for number, line in enumerate(body.decode("utf-8", "replace").splitlines(), start=1):
        words = line.partition("#")[0].split()
        if len(words) > 2:
            remarks.add(f"line {number} has {len(words)} words; write ADDRESS or ADDRESS NAME")
        elif words:
            found.append(Found(words[0], name=words[1] if len(words) == 2 else None))
        if len(found) > TARGETS_MAX:
            raise InvalidInput(f"more than {TARGETS_MAX} targets", hint="Split the source")
    return Answer(tuple(found), remarks.all())


def check_rule(rule: str) -> None:
    """Raise InvalidInput unless `rule` has only {host}, {port}, {address} and {label_NAME} in it."""
    bad = InvalidInput(
        f"the naming rule {shown(rule)!r} cannot be used",
        hint="Use text with {host}, {port}, {address} or {label_NAME}, for example {label_pod}",
        field="name_rule",
    )
    if not rule or len(rule) > RULE_CHARACTERS or not rule.isprintable():
        raise bad
    try:
        fields = [part for _, part, spec, _ in Formatter().parse(rule) if part is not None and not spec]
        plain = all(not spec and not how for _, _, spec, how in Formatter().parse(rule))
    except ValueError:
        raise bad from None
    known = all(f in {"host", "port", "address"} or f.startswith("label_") for f in fields)
    if not plain or not known or not fields:
        raise bad


def node_name(rule: str, host: str, port: str, labels: Mapping[str, str]) -> str:
    """Return a node's name: lower case, other characters as `-`, at most 63, cut ones with a digest.

    Raises InvalidInput if the rule needs a label the target has not, or nothing is left.
    """
    parts: list[str] = []
    values = {"host": host, "port": port, "address": f"{host}:{port}" if port else host}
    for text, part, _, _ in Formatter().parse(rule):
        parts.append(text)
        if part is None:
            continue
        value = labels.get(part.removeprefix("label_")) if part.startswith("label_") else values.get(part)
        if not value:
            raise InvalidInput(f"has no {part.removeprefix('label_')!r} to name the node by")
        parts.append(value)
    whole = "".join(parts)
    name = _UNFIT.sub("-", whole.lower()).strip("-._")
    if not name:
        raise InvalidInput("leaves no letter for the node's name")
    if len(name) > 63:
        name = f"{name[:54].rstrip('-._')}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
    return name


def wanted_nodes(naming: Naming, answer: Answer) -> tuple[tuple[Wanted, ...], tuple[str, ...]]:
    """Return the nodes an answer asks for, by name, and what was left out and why.

    Of targets with one name the lowest address is the node's own page, the others are further engines.
    Labels `__scheme__` and `__metrics_path__` go before the source's settings, as in Prometheus.
    """
    remarks = Remarks(list(answer.remarks))
    pages: dict[str, dict[str, tuple[tuple[str, int], str, Found]]] = {}
    taken: dict[str, str] = {}
    for found in answer.found:
        try:
            page, place, name = _page(naming, found)
        except InvalidInput as problem:
            remarks.add(f"{shown(found.address)}: {problem.message}")
            continue
        owner = taken.setdefault(page, name)
        if owner != name:
            remarks.add(f"{shown(found.address)}: its page is node {owner}'s already")
        elif len(pages.setdefault(name, {})) >= PAGES_MAX:
            remarks.add(f"{shown(found.address)}: node {name} has {PAGES_MAX} pages already")
        else:
            pages[name].setdefault(page, (place, page, found))
    wanted = [_node(naming, name, sorted(own.values(), key=_by_place)) for name, own in pages.items()]
    return tuple(sorted(wanted, key=lambda w: w.name)), remarks.all()


def _by_place(page: tuple[tuple[str, int], str, Found]) -> tuple[tuple[str, int], str]:
    return page[0], page[1]


def _page(naming: Naming, found: Found) -> tuple[str, tuple[str, int], str]:
    """Return a target's page, its place among others of the node, and the node's name."""
    labels = found.labels
    scheme = labels.get("__scheme__", naming.scheme)
    path = labels.get("__metrics_path__", naming.metrics_path)
    if scheme not in {"http", "https"} or not _PATH.fullmatch(path):
        raise InvalidInput("its scheme or path cannot be used")
    host, port = split_address(found.address, naming.default_port)
    origin = checked_node_url(f"{scheme}://{host}:{port}" if port else f"{scheme}://{host}")
    name = node_name("{address}", found.name, "", labels) if found.name else None
    if name is None:
        name = node_name(naming.rule, host.strip("[]"), port, labels)
    return origin + path, (host, int(port or 0)), name


def split_address(address: str, default_port: int | None) -> tuple[str, str]:
    """Return host (IPv6 in brackets) and port as text; "" where there is none. Raises InvalidInput."""
    text = address.strip()
    if "/" in text or "@" in text or "?" in text or not text:
        raise InvalidInput("is not host:port")
    host, colon, port = text.rpartition(":")
    if not colon or (text.startswith("[") and text.endswith("]")):
        host, port = text, ""
    elif ":" in host and not host.startswith("["):  # an IPv6 address without brackets has no port
        host, port = f"[{text}]", ""
    if port and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65_536):
        raise InvalidInput("has no usable port")
    return host, port or (str(default_port) if default_port is not None else "")


def _node(naming: Naming, name: str, pages: Iterable[tuple[tuple[str, int], str, Found]]) -> Wanted:
    (_, page, found), *others = pages
    scheme, _, rest = page.partition("://")
    authority, slash, path = rest.partition("/")
    host, _ = split_address(authority, None)
    labels = {k: v for k, v in found.labels.items() if not k.startswith("__")}
    return Wanted(
        name=name,
        url=f"{scheme}://{authority}",
        metrics_path=slash + path,
        labels=labels,
        pages=tuple(page for _, page, _ in others),
        gpu_url=None if naming.gpu_port is None else f"http://{host}:{naming.gpu_port}/metrics",
        is_ready=found.is_ready,
    )
