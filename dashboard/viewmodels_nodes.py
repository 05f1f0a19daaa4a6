"""Nodes and discovery sources in words: what is registered, where it comes from, what fails. Pure.

Prevents: a source that has failed for a day beside a green list of nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from control.freshness import Freshness
from control.queries_discovery import OriginView, PageView, SourceView
from dashboard import words
from dashboard.data_nodes import Registry
from dashboard.times import UNKNOWN, Zone, age
from dashboard.viewmodels import SIGNS
from dashboard.words import Tone

BY_HAND = "by hand"
_STATE_TONES: dict[str, Tone] = {"active": "good", "draining": "watch", "maintenance": "plain"}
_KINDS = {"engine": "engine", "gpu": "GPU exporter"}
_LOOKS: dict[Freshness, Tone] = {
    Freshness.FRESH: "good",
    Freshness.STALE: "watch",
    Freshness.SILENT: "act",
}


def summary(registry: Registry, now: datetime) -> tuple[Tone, str]:
    """Return one sentence about how the list stands."""
    failing = [s.name for s in registry.sources if is_failing(s)]
    missing = sum(o.missing_since is not None for o in registry.origins.values())
    if not registry.nodes and not registry.sources:
        return "unknown", "Nothing is registered yet: add a pool, then a node or a discovery source."
    if failing:
        names = ", ".join(words.plain(name) for name in failing)
        return "act", f"Discovery fails at {names}: its nodes stay as they are, and new ones are not seen."
    if missing:
        return "watch", f"{words.plural(missing, 'node')} missing from discovery; see below until when."
    lost = [n.name for n in registry.nodes if n.state == "active" and _LOOKS.get(n.freshness) != "good"]
    if lost:
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        names = ", ".join(words.plain(name) for name in lost[:3])
        whole = words.plural(len(registry.nodes), "node")
        return "watch", f"{len(lost)} of {whole} without a fresh sample: {names}{more}."
    hand = sum(o.source is None for o in registry.origins.values())
    return "good", f"{words.plural(len(registry.nodes), 'node')}, {hand} of them added by hand."


def is_failing(source: SourceView) -> bool:
    """Say whether the newest look at an active source went wrong."""
    return source.state == "active" and bool(source.problem)


def node_rows(registry: Registry, now: datetime, zone: Zone) -> dict[str, list[Any]]:
    """Return nodes by column."""
    nodes = registry.nodes
    origins = [registry.origins.get(node.name) for node in nodes]
    return {
        "node": [f"node?node={quote(node.name)}" for node in nodes],
        "state": [
            f"{SIGNS[_STATE_TONES.get(n.state, 'unknown')]} {n.state}{_missing(origin, now, zone)}"
            for n, origin in zip(nodes, origins, strict=True)
        ],
        "seen": [
            f"{SIGNS[_LOOKS.get(n.freshness, 'unknown')]} {age(n.age_s)} ago"
            if n.age_s is not None
            else f"{SIGNS['act']} never"
            for n in nodes
        ],
        "origin": [_origin(origin) for origin in origins],
        "pool": [f"{node.pool}, {node.price_class.replace('_', ' ')}" for node in nodes],
        "address": [node.base_url for node in nodes],
    }


def _origin(origin: OriginView | None) -> str:
    return UNKNOWN if origin is None else origin.source or BY_HAND


def _missing(origin: OriginView | None, now: datetime, zone: Zone) -> str:
    if origin is None or origin.missing_since is None or origin.removed_after is None:
        return ""
    left_s = (origin.removed_after - now).total_seconds()
    until = f"removed in {age(left_s)}" if left_s > 0 else "removed at its source's next answer"
    return f", missing since {zone.clock(origin.missing_since)}, {until}"


def source_rows(sources: Sequence[SourceView], now: datetime, zone: Zone) -> dict[str, list[Any]]:
    """Return discovery sources by column."""
    return {
        "source": [source.name for source in sources],
        "state": [_state(source) for source in sources],
        "answered": [zone.since(source.answered_at, now) for source in sources],
        "nodes": [source.nodes for source in sources],
        "missing": [source.missing for source in sources],
        "pool": [source.pool for source in sources],
        "where": [f"{source.kind}: {_where(source)}" for source in sources],
    }


def source_lines(sources: Sequence[SourceView]) -> list[str]:
    """Return what is wrong at each source, in whole sentences: the table's column is narrow."""
    said: list[str] = []
    for source in sources:
        if is_failing(source):
            kept = f" Its {words.plural(source.nodes, 'node')} stay." if source.nodes else ""
            said.append(f"{source.name} fails: {source.problem}.{kept}")
        said += [f"{source.name} left out {remark}." for remark in source.remarks]
    return said


def _state(source: SourceView) -> str:
    if source.state == "paused":
        return f"{SIGNS['plain']} paused"
    if source.tried_at is None:
        return f"{SIGNS['unknown']} not asked yet"
    if source.problem:
        return f"{SIGNS['act']} failing"
    return f"{SIGNS['watch']} partly" if source.remarks else f"{SIGNS['good']} answers"


def _where(source: SourceView) -> str:
    """Return the one setting that says where: a path, an address, a name."""
    settings = source.settings
    found = [settings.get(key) for key in ("path", "url", "service", "selector")]
    return next((str(value) for value in found if value), UNKNOWN)


def page_rows(pages: Sequence[PageView], now: datetime, zone: Zone) -> dict[str, list[Any]]:
    """Return a node's pages by column."""
    return {
        "page": [page.url for page in pages],
        "of": [_KINDS.get(page.kind, page.kind) for page in pages],
        "dialect": [page.dialect or UNKNOWN for page in pages],
        "state": [_page_state(page) for page in pages],
        "seen": [zone.since(page.seen_at, now) for page in pages],
        "from": [page.source or ("the node's own" if page.is_own else BY_HAND) for page in pages],
        "not exported": [", ".join(page.not_exported) for page in pages],
    }


def _page_state(page: PageView) -> str:
    if page.tried_at is None:
        return f"{SIGNS['unknown']} not asked yet"
    if page.reason is None:
        return f"{SIGNS['good']} read"
    said = page.reason.replace("_", " ")
    return f"{SIGNS['act']} {said}: {page.detail}" if page.detail else f"{SIGNS['act']} {said}"
