"""What an operator may change about pools, nodes and alerts. Every command joins the caller's transaction.

Each writes its audit row beside the change and checks the actor's role. Addresses are http(s) origins
without credentials; nothing is fetched here. Prevents: a typo that makes the scraper ask a metadata
service, a node that vanishes together with its history, and a change nobody can be asked about.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from datetime import datetime
from urllib.parse import urlsplit

from sqlalchemy import delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from control import audit
from control.fetch import FetchFailed, is_allowed, split_url
from control.page_readers import reader_of
from control.roles import Actor, Permission, require
from control.tables import AlertRow, DiscoveredNodeRow, NodeRow, NodeSourceRow, PoolRow
from fleet.errors import Conflict, InvalidInput, NotFound
from fleet.messages import PRICE_CLASSES, ROLES

NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
METRICS_PATH = re.compile(r"/[A-Za-z0-9_./-]{0,200}")
_NUMBER_HOST = re.compile(r"[0-9.]+|0[xX].*")
MAX_URL_CHARACTERS = 300
MAX_MODELS = 100


def add_pool(
    session: Session,
    actor: Actor,
    *,
    name: str,
    models: Sequence[str],
    now: datetime,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    scheduling_policy: str | None = None,
    chunked_prefill: bool | None = None,
    configured_service_rate: float | None = None,
    configured_source: str | None = None,
    role: str | None = None,
) -> None:
    """Register a pool of nodes that serve `models` under one launch configuration.

    `configured_service_rate` is requests/s a node, with where it comes from. Raises InvalidInput for
    values that cannot be, Conflict if the name is in use.
    """
    require(actor, Permission.MANAGE_FLEET)
    _check_name(name, "pool")
    kept = list(dict.fromkeys(models))
    if not 1 <= len(kept) <= MAX_MODELS or not all(m and m.isprintable() and len(m) <= 200 for m in kept):
        raise InvalidInput(
            f"a pool serves 1 to {MAX_MODELS} models with printable names, not {len(kept)}",
            hint="Name each model as the engines serve it, with --model",
            field="models",
        )
    _check_positive(max_num_seqs, "max_num_seqs")
    _check_positive(max_num_batched_tokens, "max_num_batched_tokens")
    _check_positive(configured_service_rate, "configured_service_rate")
    if scheduling_policy not in (None, "fcfs", "priority"):
        raise InvalidInput(
            f"scheduling policy {scheduling_policy!r} does not exist",
            hint="Write fcfs or priority, as vLLM was started",
            field="scheduling_policy",
        )
    if role is not None and role not in ROLES:
        raise InvalidInput(
            f"role {role!r} does not exist",
            hint="Write prefill or decode; leave it out for nodes that do both",
            field="role",
        )
    try:
        with session.begin_nested():
            session.add(
                PoolRow(
                    name=name,
                    models=kept,
                    max_num_seqs=max_num_seqs,
                    max_num_batched_tokens=max_num_batched_tokens,
                    scheduling_policy=scheduling_policy,
                    chunked_prefill=chunked_prefill,
                    configured_service_rate=configured_service_rate,
                    configured_source=configured_source,
                    configured_at=None if configured_service_rate is None else now,
                    created_at=now,
                    role=role,
                )
            )
    except IntegrityError as exc:
        raise Conflict(f"pool {name} exists", hint="Choose another name", field="name") from exc
    detail = {
        "models": kept,
        "max_num_seqs": max_num_seqs,
        "configured_service_rate": configured_service_rate,
        "role": role,
    }
    audit.append(session, actor, "pool.add", f"pool {name}", "", detail, now)


def remove_pool(session: Session, actor: Actor, *, name: str, now: datetime) -> None:
    """Take out a pool that no node belongs to. Raises NotFound, or Conflict naming how many nodes it has.

    A pool whose nodes were removed stays, because their history refers to it.
    """
    require(actor, Permission.MANAGE_FLEET)
    pool = session.get(PoolRow, name, with_for_update=True)
    if pool is None:
        raise _no_pool(name)
    nodes = session.scalar(select(func.count()).select_from(NodeRow).where(NodeRow.pool == name)) or 0
    if nodes:
        raise Conflict(
            f"{nodes} nodes belong or belonged to pool {name}",
            hint="A pool with history stays; it costs nothing",
            field="name",
        )
    session.delete(pool)
    audit.append(session, actor, "pool.remove", f"pool {name}", "", {}, now)


def add_node(
    session: Session,
    actor: Actor,
    *,
    name: str,
    url: str,
    pool: str,
    now: datetime,
    price_class: str = "on_demand",
    metrics_path: str = "/metrics",
) -> None:
    """Register a node, or take back one that was removed; the next round asks it. It is nobody's find.

    Raises InvalidInput for a bad name, address or price class, NotFound for an unknown pool, Conflict if
    the name is in use or another node has the address, as its own or as a further page.
    """
    require(actor, Permission.MANAGE_FLEET)
    _check_name(name, "node")
    origin = checked_node_url(url)
    if price_class not in PRICE_CLASSES:
        raise InvalidInput(
            f"price class {price_class!r} does not exist",
            hint=f"Write one of {', '.join(PRICE_CLASSES)}",
            field="price_class",
        )
    if not METRICS_PATH.fullmatch(metrics_path):
        raise InvalidInput(
            "the metrics path must begin with / and have only letters, digits and _ . / -",
            hint="vLLM serves /metrics",
            field="metrics_path",
        )
    if session.get(PoolRow, pool) is None:
        raise _no_pool(pool)
    taken = reader_of(session, origin + metrics_path)
    row = session.get(NodeRow, name, with_for_update=True)
    if row is not None and row.state != "removed":
        raise Conflict(f"node {name} exists, at {row.base_url}", hint="Choose another name", field="name")
    if taken is not None:
        raise Conflict(
            f"{origin} is node {taken} already, or one of its pages",
            hint="See `rhodeck nodes list` and `rhodeck nodes show`",
            field="url",
        )
    try:
        with session.begin_nested():
            if row is None:
                row = NodeRow(name=name, created_at=now)
                session.add(row)
            row.pool, row.base_url, row.metrics_path = pool, origin, metrics_path
            row.price_class, row.state, row.removed_at = price_class, "active", None
            session.execute(delete(DiscoveredNodeRow).where(DiscoveredNodeRow.node == name))
    except IntegrityError as exc:
        raise Conflict(f"node {name} exists", hint="Choose another name", field="name") from exc
    detail = {"url": origin, "pool": pool, "price_class": price_class}
    audit.append(session, actor, "node.add", f"node {name}", "", detail, now)


def drain_node(session: Session, actor: Actor, *, name: str, now: datetime, note: str = "") -> None:
    """Stop new work for a node; what runs there finishes. It stays watched, and is no capacity any more."""
    _set_state(session, actor, name, "draining", "node.drain", now, note)


def rest_node(session: Session, actor: Actor, *, name: str, now: datetime, note: str = "") -> None:
    """Put a node into maintenance: no new work, no alerts."""
    _set_state(session, actor, name, "maintenance", "node.rest", now, note)


def resume_node(session: Session, actor: Actor, *, name: str, now: datetime, note: str = "") -> None:
    """Let a drained or resting node take work again."""
    _set_state(session, actor, name, "active", "node.resume", now, note)


def remove_node(session: Session, actor: Actor, *, name: str, now: datetime, note: str = "") -> None:
    """Take a node out of the fleet. Its history stays; its name can be added again."""
    row = _set_state(session, actor, name, "removed", "node.remove", now, note)
    row.removed_at = now
    session.execute(delete(NodeSourceRow).where(NodeSourceRow.node == name))  # it may come back elsewhere


def _set_state(
    session: Session, actor: Actor, name: str, state: str, action: str, now: datetime, note: str
) -> NodeRow:
    require(actor, Permission.MANAGE_FLEET)
    row = session.get(NodeRow, name, with_for_update=True)
    if row is None or row.state == "removed":
        raise NotFound(
            f"no node is called {name!r}", hint="List them with `rhodeck nodes list`", field="name"
        )
    if row.state == state:
        raise Conflict(f"node {name} is {state} already", hint="Nothing was changed", field="name")
    before, row.state = row.state, state
    audit.append(session, actor, action, f"node {name}", note, {"from": before, "to": state}, now)
    return row


def acknowledge_alert(
    session: Session, actor: Actor, *, alert_id: int, now: datetime, note: str = ""
) -> None:
    """Say that somebody looks after an alert. It stays until its cause is gone; a repeat changes nothing.

    Raises NotFound, or Conflict if it is resolved.
    """
    require(actor, Permission.ACKNOWLEDGE_ALERTS)
    row = session.get(AlertRow, alert_id, with_for_update=True)
    if row is None:
        raise NotFound(f"there is no alert {alert_id}", hint="See `rhodeck alerts list`", field="alert_id")
    if row.state == "resolved":
        raise Conflict(f"alert {alert_id} is resolved", hint="Nothing is left to do", field="alert_id")
    if row.acknowledged_at is not None:
        return
    row.acknowledged_at, row.acknowledged_by = now, actor.name
    if row.state == "open":
        row.state = "acknowledged"
    subject = f"alert {alert_id}"
    detail = {"rule": row.rule, "scope": row.scope, "subject": row.subject}
    audit.append(session, actor, "alert.acknowledge", subject, note, detail, now)


def _no_pool(name: str) -> NotFound:
    return NotFound(
        f"no pool is called {name!r}",
        hint="Add it with `rhodeck pools add NAME --model MODEL`",
        field="pool",
    )


def _check_name(name: str, kind: str) -> None:
    if not NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:80]!r} is not a {kind} name",
            hint="Use 1 to 63 of a-z, 0-9, '-', '_', '.', starting with a letter or digit",
            field="name",
        )


def _check_positive(value: float | None, field: str) -> None:
    if value is not None and not 0 < value < 1e9:
        raise InvalidInput(f"{field} is {value:g}; it must be above 0 and below 1e9", field=field)


def checked_node_url(url: str) -> str:
    """Return `url` as scheme://host[:port]. Raises InvalidInput unless it is a plain http(s) origin.

    `/metrics` at the end is taken off. Link-local, metadata, multicast and unspecified addresses are
    refused here when written as numbers, and again at every scrape for names.
    """

    def bad(why: str) -> InvalidInput:
        return InvalidInput(f"the node's address {why}", hint="Write it as http://host:port", field="url")

    if len(url) > MAX_URL_CHARACTERS or not url.isascii():
        raise bad(f"must be plain ASCII of at most {MAX_URL_CHARACTERS} characters")
    try:
        parts = split_url(url)
    except FetchFailed as problem:
        raise bad(f"cannot be used: {problem.message}") from problem
    if urlsplit(url).path not in ("", "/", "/metrics") or parts.query or "#" in url:
        raise bad("must not have a path, query or fragment")
    host = parts.hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if _NUMBER_HOST.fullmatch(host):
            raise bad(f"has no usable host: {host}") from None
    else:
        if not is_allowed(address):
            raise bad(f"must not be {host}, which is not allowed as a scrape target")
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + (f":{parts.port}" if parts.port is not None else "")
