"""What an operator may change about Prometheus-compatible sources, and which nodes are read from them.

Commands join the caller's transaction, check the actor's role and write the audit row beside the change.
Secrets stay in files; only their absolute paths are kept. Prevents: a token in the database, a source
that vanishes under its nodes, and a query an operator's text can break out of.
"""

from __future__ import annotations

import re
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from control import audit
from control.fetch import FetchFailed, is_allowed, split_url
from control.promsource import SourceSettings
from control.queries_promsource import source_named
from control.roles import Actor, Permission, require
from control.tables import NodeRow, NodeSourceRow, PromSourceRow
from fleet.errors import Conflict, InvalidInput, NotFound
from fleet.promql import matcher, parsed_matchers

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_PATH = re.compile(r"(/[A-Za-z0-9_.~-]+)*/?")
_TENANT = re.compile(r"[A-Za-z0-9_.|-]{1,150}")
MAX_TEXT = 1_000


def add_source(
    session: Session,
    actor: Actor,
    *,
    name: str,
    url: str,
    now: datetime,
    instance_label: str = "instance",
    matchers: str = "",
    token_file: Path | None = None,
    basic_file: Path | None = None,
    ca_file: Path | None = None,
    tenant: str | None = None,
) -> SourceSettings:
    """Register a server that answers Prometheus's query API. Nothing is fetched here.

    Raises InvalidInput for what cannot be used, Conflict if the name is in use.
    """
    require(actor, Permission.MANAGE_FLEET)
    if token_file is not None or basic_file is not None:
        require(actor, Permission.NAME_CREDENTIAL_FILES)  # what they hold is sent to the address
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:80]!r} is not a source's name",
            hint="Use 1 to 63 of a-z, 0-9, '-', '_', '.', starting with a letter or digit",
            field="name",
        )
    matcher(instance_label, ["x"])  # a label name, or InvalidInput
    if len(matchers) > MAX_TEXT:
        raise InvalidInput(f"matchers have {len(matchers)} characters, over {MAX_TEXT}", field="match")
    parsed = parsed_matchers(matchers)
    if token_file is not None and basic_file is not None:
        raise InvalidInput("a source has a token or a password, not both", field="token_file")
    if tenant is not None and not _TENANT.fullmatch(tenant):
        raise InvalidInput(f"{tenant[:60]!r} is not a tenant", hint="X-Scope-OrgID", field="tenant")
    row = PromSourceRow(
        name=name,
        url=checked_source_url(url),
        instance_label=instance_label,
        matchers=",".join(parsed),
        token_file=_absolute(token_file, "token_file"),
        basic_file=_absolute(basic_file, "basic_file"),
        ca_file=_absolute(ca_file, "ca_file"),
        tenant=tenant,
        created_at=now,
    )
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError as exc:
        raise Conflict(f"source {name} exists", hint="Choose another name", field="name") from exc
    detail = {"url": row.url, "matchers": row.matchers, "instance_label": instance_label}
    audit.append(session, actor, "source.add", f"source {name}", "", detail, now)
    return source_named(session, name)


def remove_source(session: Session, actor: Actor, *, name: str, now: datetime) -> None:
    """Take out a source no node is read from. Raises NotFound, or Conflict naming how many nodes it has."""
    require(actor, Permission.MANAGE_FLEET)
    row = session.get(PromSourceRow, name, with_for_update=True)
    if row is None:
        raise NotFound(f"no source is called {name[:80]!r}", hint="See `rhodeck prom list`", field="name")
    s = NodeSourceRow
    alive = select(func.count()).select_from(s).join(NodeRow, NodeRow.name == s.node)
    nodes = session.scalar(alive.where(s.source == name, NodeRow.state != "removed")) or 0
    if nodes:
        raise Conflict(
            f"{nodes} nodes are read from source {name}",
            hint="Read them directly first: `rhodeck prom direct NODE`",
            field="name",
        )
    for left in session.scalars(select(s).where(s.source == name)):  # of removed nodes
        session.delete(left)
    session.flush()
    session.delete(row)
    audit.append(session, actor, "source.remove", f"source {name}", "", {}, now)


def read_from(
    session: Session, actor: Actor, *, node: str, source: str, now: datetime, instance: str | None = None
) -> str:
    """Read a node's samples from a source, where it is called `instance` (else the node's host:port).

    Returns the instance. Raises NotFound, InvalidInput, or Conflict if another node has that instance.
    """
    require(actor, Permission.MANAGE_FLEET)
    row = _node(session, node)
    source_named(session, source)
    known_as = instance or row.base_url.partition("://")[2]
    if not known_as.isprintable() or not 1 <= len(known_as) <= 500:
        raise InvalidInput("the instance is empty, too long or not printable", field="instance")
    s = NodeSourceRow
    taken = session.scalar(
        select(s.node)
        .join(NodeRow, NodeRow.name == s.node)
        .where(s.source == source, s.instance == known_as, s.node != node, NodeRow.state != "removed")
    )
    if taken is not None:
        raise Conflict(
            f"{known_as} at {source} is node {taken} already",
            hint="Two nodes cannot be one target",
            field="instance",
        )
    session.merge(s(node=node, source=source, instance=known_as))
    detail = {"source": source, "instance": known_as}
    audit.append(session, actor, "node.source", f"node {node}", "", detail, now)
    return known_as


def read_directly(session: Session, actor: Actor, *, node: str, now: datetime) -> None:
    """Scrape a node itself again. Raises NotFound, or Conflict if it is scraped directly already."""
    require(actor, Permission.MANAGE_FLEET)
    _node(session, node)
    row = session.get(NodeSourceRow, node, with_for_update=True)
    if row is None:
        raise Conflict(f"node {node} is scraped directly already", hint="Nothing was changed", field="node")
    session.delete(row)
    audit.append(session, actor, "node.source", f"node {node}", "", {"source": "direct"}, now)


def checked_source_url(url: str) -> str:
    """Return a source's address without a slash at its end. Raises InvalidInput for what must not be asked.

    A path is allowed (/prometheus, /select/0/prometheus), `/api/v1` at its end is taken off.
    """

    def bad(why: str) -> InvalidInput:
        return InvalidInput(
            f"the source's address {why}", hint="Write it as http://host:port[/path]", field="url"
        )

    if len(url) > 500:
        raise bad("is longer than 500 characters")
    try:
        parts = split_url(url, default_path="/")
    except FetchFailed as problem:
        raise bad(f"cannot be used: {problem.message}") from problem
    if parts.query or "#" in url or not _PATH.fullmatch(parts.path) or ".." in parts.path:
        raise bad("has a query, a fragment or an unusual path")
    try:
        address = ip_address(parts.hostname or "")
    except ValueError:
        pass  # a name: looked at whenever it is resolved
    else:
        if not is_allowed(address):
            raise bad(f"must not be {address}, which is not allowed")
    path = parts.path.rstrip("/").removesuffix("/api/v1")
    return f"{parts.scheme}://{parts.netloc}{path}"


def _node(session: Session, name: str) -> NodeRow:
    row = session.get(NodeRow, name, with_for_update=True)
    if row is None or row.state == "removed":
        raise NotFound(f"no node is called {name[:80]!r}", hint="See `rhodeck nodes list`", field="node")
    return row


def _absolute(path: Path | None, field: str) -> str | None:
    if path is None:
        return None
    if not path.is_absolute():
        raise InvalidInput(f"{path} is not an absolute path", hint="Write it from /", field=field)
    return str(path)
