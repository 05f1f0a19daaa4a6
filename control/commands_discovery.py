"""What an operator may change about discovery sources and a node's pages. Joins the caller's transaction.

Each writes its audit row beside the change and checks the actor's role. Times are seconds. Prevents: a
source that first shows its mistake by removing nodes, and a page of a node nobody can say the origin of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from control import audit, commands_fleet
from control.commands_fleet import METRICS_PATH, NAME, checked_node_url
from control.discovery_settings import checked_settings
from control.discovery_targets import PAGES_MAX, check_rule
from control.page_readers import reader_of
from control.page_store import forget_pages
from control.roles import Actor, Permission, require
from control.tables import (
    DiscoveredNodeRow,
    DiscoverySourceRow,
    NodeEndpointRow,
    NodeRow,
    PoolRow,
)
from fleet.errors import Conflict, InvalidInput, NotFound
from fleet.messages import PRICE_CLASSES

SOURCES_MAX = 100
DEFAULT_RULES = {"kubernetes": "{label_pod}"}
DEFAULT_RULE = "{host}"
MIN_INTERVAL_S, MAX_INTERVAL_S = 2.0, 86_400.0
MAX_GRACE_S = 30 * 86_400.0
_GPU_UUID_CHARACTERS = 80


def add_source(
    session: Session,
    actor: Actor,
    *,
    name: str,
    kind: str,
    settings: dict[str, Any],
    pool: str,
    now: datetime,
    name_rule: str | None = None,
    price_class: str = "on_demand",
    scheme: str = "http",
    metrics_path: str = "/metrics",
    gpu_port: int | None = None,
    interval_s: float = 30.0,
    grace_s: float = 600.0,
) -> None:
    """Register a place where nodes of `pool` are looked up every `interval_s` seconds.

    A node it names no more is removed after `grace_s` seconds. Raises InvalidInput, NotFound (the pool),
    Conflict (the name is in use).
    """
    require(actor, Permission.MANAGE_FLEET)
    if not NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:80]!r} is not a source's name",
            hint="Use 1 to 63 of a-z, 0-9, '-', '_', '.', starting with a letter or digit",
            field="name",
        )
    rule = name_rule or DEFAULT_RULES.get(kind, DEFAULT_RULE)
    checked = checked_settings(kind, settings)
    if any(getattr(checked, name, None) is not None for name in ("token_file", "basic_file")):
        require(actor, Permission.NAME_CREDENTIAL_FILES)  # what they hold is sent to the address
    check_rule(rule)
    _check_form(price_class, scheme, metrics_path, gpu_port)
    _check_times(interval_s, grace_s)
    if session.get(PoolRow, pool) is None:
        raise NotFound(
            f"no pool is called {pool!r}",
            hint="Add it with `rhodeck pools add NAME --model MODEL`",
            field="pool",
        )
    if len(session.scalars(select(DiscoverySourceRow.name)).all()) >= SOURCES_MAX:
        raise Conflict(f"there are {SOURCES_MAX} discovery sources already", hint="Remove one first")
    row = DiscoverySourceRow(
        name=name,
        kind=kind,
        settings=checked.model_dump(mode="json"),
        pool=pool,
        name_rule=rule,
        price_class=price_class,
        scheme=scheme,
        metrics_path=metrics_path,
        gpu_port=gpu_port,
        interval_s=interval_s,
        grace_s=grace_s,
        state="active",
        created_at=now,
    )
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError as exc:
        raise Conflict(f"source {name} exists", hint="Choose another name", field="name") from exc
    detail = {"kind": kind, "pool": pool, "settings": row.settings, "name_rule": rule}
    audit.append(session, actor, "discovery.add", f"discovery {name}", "", detail, now)


def _check_form(price_class: str, scheme: str, metrics_path: str, gpu_port: int | None) -> None:
    if price_class not in PRICE_CLASSES:
        raise InvalidInput(
            f"price class {price_class!r} does not exist",
            hint=f"Write one of {', '.join(PRICE_CLASSES)}",
            field="price_class",
        )
    if scheme not in {"http", "https"}:
        raise InvalidInput(f"scheme {scheme[:20]!r} is not allowed", hint="http or https", field="scheme")
    if not METRICS_PATH.fullmatch(metrics_path):
        raise InvalidInput(
            "the metrics path must begin with / and have only letters, digits and _ . / -",
            hint="vLLM serves /metrics",
            field="metrics_path",
        )
    if gpu_port is not None and not 0 < gpu_port < 65_536:
        raise InvalidInput(f"port {gpu_port} does not exist", hint="dcgm-exporter: 9400", field="gpu_port")


def _check_times(interval_s: float, grace_s: float) -> None:
    if not MIN_INTERVAL_S <= interval_s <= MAX_INTERVAL_S:
        raise InvalidInput(
            f"an interval of {interval_s:g} s: {MIN_INTERVAL_S:g} to {MAX_INTERVAL_S:g} are taken",
            field="interval_s",
        )
    if not 0 <= grace_s <= MAX_GRACE_S:
        raise InvalidInput(
            f"a grace of {grace_s:g} s: 0 to {MAX_GRACE_S:g} are taken",
            hint="A node its source names no more is removed after it",
            field="grace_s",
        )


def remove_source(
    session: Session, actor: Actor, *, name: str, now: datetime, with_nodes: bool = False
) -> int:
    """Take out a source; return how many nodes it had. They stay, as if added by hand, unless `with_nodes`.

    Raises NotFound.
    """
    row = _source(session, actor, name)
    found = DiscoveredNodeRow
    nodes = session.scalars(select(found.node).where(found.source == name)).all()
    if with_nodes:
        for node in nodes:
            present = session.get(NodeRow, node)
            if present is not None and present.state != "removed":
                commands_fleet.remove_node(
                    session, actor, name=node, note=f"with its source {name}", now=now
                )
    session.execute(delete(found).where(found.source == name))
    session.delete(row)
    audit.append(
        session,
        actor,
        "discovery.remove",
        f"discovery {name}",
        "",
        {"nodes": len(nodes), "with_nodes": with_nodes},
        now,
    )
    return len(nodes)


def pause_source(session: Session, actor: Actor, *, name: str, now: datetime, note: str = "") -> None:
    """Look there no more: its nodes stay as they are. Raises NotFound, Conflict."""
    _set_state(session, actor, name, "paused", now, note)


def resume_source(session: Session, actor: Actor, *, name: str, now: datetime, note: str = "") -> None:
    """Look there again. Raises NotFound, Conflict."""
    _set_state(session, actor, name, "active", now, note)


def _set_state(session: Session, actor: Actor, name: str, state: str, now: datetime, note: str) -> None:
    row = _source(session, actor, name)
    if row.state == state:
        raise Conflict(f"source {name} is {state} already", hint="Nothing was changed", field="name")
    row.state = state
    verb = "discovery.pause" if state == "paused" else "discovery.resume"
    audit.append(session, actor, verb, f"discovery {name}", note, {}, now)


def _source(session: Session, actor: Actor, name: str) -> DiscoverySourceRow:
    require(actor, Permission.MANAGE_FLEET)
    row = session.get(DiscoverySourceRow, name, with_for_update=True)
    if row is None:
        raise NotFound(
            f"no source is called {name[:80]!r}", hint="List them: `rhodeck discovery list`", field="name"
        )
    return row


def add_page(
    session: Session,
    actor: Actor,
    *,
    node: str,
    url: str,
    kind: str,
    now: datetime,
    host: str | None = None,
    gpus: Sequence[str] = (),
) -> None:
    """Register one more page of a node: a further engine's, or its GPU exporter's.

    `url` is the whole address; without a path, /metrics. Of an exporter that speaks for several machines,
    `host` or `gpus` (UUIDs) say which are this node's. Raises InvalidInput, NotFound, Conflict.
    """
    require(actor, Permission.MANAGE_FLEET)
    page = checked_page(url)
    if kind not in {"engine", "gpu"}:
        raise InvalidInput(f"a page is of an engine or gpu, not {kind[:20]!r}", field="kind")
    if any(not g.isprintable() or not 0 < len(g) <= _GPU_UUID_CHARACTERS for g in gpus) or len(gpus) > 128:
        raise InvalidInput(
            "GPUs are named by at most 128 UUIDs", hint="As `nvidia-smi -L` prints", field="gpus"
        )
    row = session.get(NodeRow, node, with_for_update=True)
    if row is None or row.state == "removed":
        raise NotFound(
            f"no node is called {node[:80]!r}", hint="List them: `rhodeck nodes list`", field="node"
        )
    if page == row.base_url + row.metrics_path or session.get(NodeEndpointRow, (node, page)) is not None:
        raise Conflict(f"{page} is a page of node {node} already", hint="Nothing was changed", field="url")
    e = NodeEndpointRow
    if kind == "engine" and (owner := reader_of(session, page)) is not None:
        raise Conflict(
            f"{page} is a page of node {owner} already", hint="Its engines would count twice", field="url"
        )
    if len(session.scalars(select(e.url).where(e.node == node)).all()) >= PAGES_MAX:
        raise Conflict(f"node {node} has {PAGES_MAX} pages already", hint="Remove one first", field="url")
    session.add(
        NodeEndpointRow(
            node=node,
            url=page,
            kind=kind,
            host=host,
            gpus=list(gpus) or None,
            source=None,
            created_at=now,
        )
    )
    audit.append(session, actor, "node.page_add", f"node {node}", "", {"url": page, "kind": kind}, now)


def checked_page(url: str) -> str:
    """Return the whole address of a page. Raises InvalidInput unless origin and path can be used."""
    parts = urlsplit(url) if url.isascii() and url.isprintable() else urlsplit("")
    path = parts.path if parts.path not in {"", "/"} else "/metrics"
    if not METRICS_PATH.fullmatch(path) or parts.query or parts.fragment:
        raise InvalidInput(
            "the page's path must have only letters, digits and _ . / -", hint="/metrics", field="url"
        )
    return checked_node_url(f"{parts.scheme}://{parts.netloc}") + path


def remove_page(session: Session, actor: Actor, *, node: str, url: str, now: datetime) -> None:
    """Read a further page of a node no more. Raises NotFound."""
    require(actor, Permission.MANAGE_FLEET)
    row = session.get(NodeEndpointRow, (node, url))
    if row is None:
        raise NotFound(f"node {node[:80]} has no further page {url[:200]}", field="url")
    session.delete(row)
    forget_pages(session, node, [url])
    audit.append(session, actor, "node.page_remove", f"node {node}", "", {"url": url}, now)


@dataclass(frozen=True, slots=True)
class Move:
    """A node and where it answers from now on."""

    name: str
    url: str
    metrics_path: str


def move_nodes(session: Session, actor: Actor, moves: Sequence[Move], now: datetime) -> None:
    """Take over that nodes answer at other addresses now: all of them together, so that two may swap.

    Raises InvalidInput, NotFound, Conflict where one of them cannot; then none is moved.
    """
    require(actor, Permission.MANAGE_FLEET)
    targets = {move.name: (_checked_origin(move), move.metrics_path) for move in moves}
    rows: dict[str, NodeRow] = {}
    for name in sorted(targets):
        row = session.get(NodeRow, name, with_for_update=True)
        if row is None or row.state == "removed":
            raise NotFound(f"no node is called {name[:80]!r}", field="name")
        rows[name] = row
    for name, (origin, path) in targets.items():
        owner = reader_of(session, origin + path, besides=rows.keys())
        twin = next((n for n, target in targets.items() if n != name and target == (origin, path)), None)
        if owner is not None or twin is not None:
            raise Conflict(f"{origin} is node {owner or twin} already", field="url")
    for name, (origin, path) in targets.items():
        row = rows[name]
        before = row.base_url + row.metrics_path
        row.base_url, row.metrics_path = origin, path
        forget_pages(session, name, [before])
        detail = {"from": before, "to": origin + path}
        audit.append(session, actor, "node.move", f"node {name}", "", detail, now)


def _checked_origin(move: Move) -> str:
    if not METRICS_PATH.fullmatch(move.metrics_path):
        raise InvalidInput("the metrics path cannot be used", field="metrics_path")
    return checked_node_url(move.url)
