"""What follows from a source's answer: nodes to add, move, mark missing and remove. Pure.

Times are UTC. An answer without targets changes nothing; a node that is not named any more is missing for
the source's grace, then removed, its history kept. Nodes of other origin are never touched. Prevents: a
fleet that vanishes because a lookup failed, a hand-made node that discovery fights over, and an engine
counted in two nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from control.discovery_targets import Wanted


@dataclass(frozen=True, slots=True)
class Present:
    """A node as registered. `source` None: added by hand."""

    name: str
    page: str  # its own page, whole
    state: str  # "active" | "draining" | "maintenance" | "removed"
    source: str | None = None
    missing_since: datetime | None = None
    pages: frozenset[str] = frozenset()  # further pages that discovery put there


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, in this order. Names are of nodes."""

    add: tuple[Wanted, ...] = ()
    move: tuple[Wanted, ...] = ()  # its own page is elsewhere now
    repage: tuple[Wanted, ...] = ()  # other further pages, also of those in `add` and `move`
    seen: tuple[str, ...] = ()  # named by this answer, ours
    missing: tuple[str, ...] = ()  # not named, and was until now
    remove: tuple[str, ...] = ()  # missing for longer than the grace
    forget: tuple[str, ...] = ()  # removed by hand, and not named any more
    problem: str = ""
    remarks: tuple[str, ...] = field(default=())


def plan(
    source: str,
    wanted: Sequence[Wanted],
    present: Mapping[str, Present],
    *,
    grace: timedelta,
    now: datetime,
) -> Plan:
    """Return what an answer of `source` asks for. `present` is every node by name, removed ones too."""
    ours = {name: node for name, node in present.items() if node.source == source}
    living = {name for name, node in ours.items() if node.state != "removed"}
    if not wanted:
        kept = f"; {len(living)} nodes stay" if living else ""
        return Plan(problem=f"the answer names no usable target{kept}")
    pages = _owners(source, wanted, present)
    add: list[Wanted] = []
    move: list[Wanted] = []
    repage: list[Wanted] = []
    remarks: list[str] = []
    for asked in wanted:
        node, others = _own_pages(asked, pages)
        remarks.extend(others)
        known = present.get(node.name)
        why_not = _foreign(source, node, known, pages)
        if why_not:
            remarks.append(f"{node.name}: {why_not}")
        elif not node.is_ready and (known is None or known.state == "removed"):
            remarks.append(f"{node.name}: not ready yet")
        elif known is None or (known.state == "removed" and known.source != source):
            add.append(node)
            repage.append(node)
        elif known.state == "removed":
            if known.missing_since is None:
                remarks.append(f"{node.name}: was removed by hand; `rhodeck nodes add` takes it back")
                continue
            add.append(node)
            repage.append(node)
        else:
            if known.page != own_page(node):
                move.append(node)
            if known.pages != further_pages(node):
                repage.append(node)
    named = {node.name for node in wanted}
    gone = {name: node for name, node in ours.items() if name not in named}
    return Plan(
        add=tuple(add),
        move=tuple(move),
        repage=tuple(repage),
        seen=tuple(sorted((named & ours.keys()) | {n.name for n in add})),
        missing=tuple(sorted(n for n in gone if n in living and gone[n].missing_since is None)),
        remove=tuple(sorted(n for n in gone if n in living and _is_over(gone[n], grace, now))),
        forget=tuple(sorted(n for n in gone if n not in living)),
        remarks=tuple(remarks),
    )


def own_page(node: Wanted) -> str:
    """Return the whole address of a node's own page."""
    return node.url + node.metrics_path


def _owners(source: str, wanted: Sequence[Wanted], present: Mapping[str, Present]) -> dict[str, str]:
    """Return whose each page is once the whole answer is carried out: page -> node.

    Nodes of the source that move leave their page, and pages they no longer have, free for each other: two
    can swap. One that cannot move, because its new page is somebody's, keeps the old one.
    """
    living = [n for n in present.values() if n.state != "removed"]
    asked = {w.name: w for w in wanted}
    kept = {
        n.name: n.pages & further_pages(asked[n.name])
        if n.source == source and n.name in asked
        else n.pages
        for n in living
    }
    moving = {
        n.name: own_page(asked[n.name])
        for n in living
        if n.source == source and n.name in asked and own_page(asked[n.name]) != n.page
    }
    while True:
        owners = {url: n.name for n in living for url in kept[n.name]}
        owners |= {n.page: n.name for n in living if n.name not in moving}
        blocked = [name for name, page in sorted(moving.items()) if owners.setdefault(page, name) != name]
        if not blocked:
            return owners
        for name in blocked:
            del moving[name]


def _own_pages(node: Wanted, owners: Mapping[str, str]) -> tuple[Wanted, list[str]]:
    """Return the node without engine pages that are read as another node's, and what was left out."""
    foreign = {url: owners[url] for url in node.pages if owners.get(url, node.name) != node.name}
    if not foreign:
        return node, []
    left_out = [f"{node.name}: {url} is a page of node {owner} already" for url, owner in foreign.items()]
    return replace(node, pages=tuple(url for url in node.pages if url not in foreign)), left_out


def further_pages(node: Wanted) -> frozenset[str]:
    """Return the pages of a node beside its own: further engines and the GPU exporter."""
    return frozenset(node.pages if node.gpu_url is None else (*node.pages, node.gpu_url))


def _foreign(source: str, node: Wanted, known: Present | None, pages: Mapping[str, str]) -> str:
    """Return why this node is not ours to change; "" if it is."""
    if known is not None and known.state != "removed" and known.source != source:
        return "was added by hand and stays" if known.source is None else f"belongs to {known.source}"
    owner = pages.get(own_page(node))
    if owner is not None and owner != node.name:
        return f"its page is node {owner}'s already"
    return ""


def _is_over(node: Present, grace: timedelta, now: datetime) -> bool:
    return node.missing_since is not None and now - node.missing_since >= grace
