"""Turns a source's answer into nodes: reads what is there, plans, carries the plan out in one transaction.

Every node change goes through the commands that people use, under the name of the source, so that each has
its audit row. Times are UTC. Prevents: half an answer applied, and a second way to add a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from control import commands_fleet
from control.commands_discovery import Move, move_nodes
from control.discovery_plan import Plan, Present, further_pages, plan
from control.discovery_targets import REMARKS_MAX, Answer, Naming, Wanted, wanted_nodes
from control.page_store import forget_pages
from control.promsource_discovery import read_from_source
from control.roles import Actor, Role
from control.tables import DiscoveredNodeRow, DiscoverySourceRow, NodeEndpointRow, NodeRow
from fleet.errors import FleetError

_PROBLEM_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Applied:
    """What an answer changed, in numbers of nodes."""

    found: int
    added: int = 0
    moved: int = 0
    missing: int = 0
    removed: int = 0
    problem: str = ""

    def __str__(self) -> str:
        counts = {
            "added": self.added,
            "moved": self.moved,
            "missing": self.missing,
            "removed": self.removed,
        }
        said = [f"{self.found} nodes", *(f"{n} {what}" for what, n in counts.items() if n)]
        return ", ".join(said) if not self.problem else self.problem


def naming_of(row: DiscoverySourceRow) -> Naming:
    """Return how targets of a source become nodes."""
    return Naming(
        rule=row.name_rule, scheme=row.scheme, metrics_path=row.metrics_path, gpu_port=row.gpu_port
    )


def apply_answer(session: Session, row: DiscoverySourceRow, answer: Answer, now: datetime) -> Applied:
    """Carry out what an answer asks for, and note on `row` how it went. Joins the caller's transaction."""
    wanted, remarks = wanted_nodes(naming_of(row), answer)
    todo = plan(row.name, wanted, present_nodes(session), grace=timedelta(seconds=row.grace_s), now=now)
    done = _carry_out(session, row, todo, {node.name: node for node in wanted}, now)
    row.tried_at = now
    row.problem = todo.problem[:_PROBLEM_CHARACTERS]
    row.remarks = list((*done[1], *todo.remarks, *remarks))[:REMARKS_MAX]
    if not todo.problem:
        row.answered_at, row.found = now, len(wanted)
    return done[0]


def note_failure(row: DiscoverySourceRow, problem: FleetError, now: datetime) -> None:
    """Note that a source could not be asked. Its nodes stay as they are."""
    row.tried_at, row.problem = now, problem.message[:_PROBLEM_CHARACTERS].replace("\x00", "")


def present_nodes(session: Session) -> dict[str, Present]:
    """Return every node by name, removed ones too, with the source it belongs to."""
    pages: dict[str, set[str]] = {}
    e = NodeEndpointRow
    for node, url in session.execute(select(e.node, e.url).where(e.source.is_not(None))):
        pages.setdefault(node, set()).add(url)
    d, n = DiscoveredNodeRow, NodeRow
    rows = session.execute(
        select(n.name, n.base_url, n.metrics_path, n.state, d.source, d.missing_since).outerjoin(
            d, d.node == n.name
        )
    )
    return {
        name: Present(name, origin + path, state, source, missing, frozenset(pages.get(name, ())))
        for name, origin, path, state, source, missing in rows
    }


def _carry_out(
    session: Session, row: DiscoverySourceRow, todo: Plan, wanted: dict[str, Wanted], now: datetime
) -> tuple[Applied, list[str]]:
    actor = Actor(f"discovery {row.name}", Role.OPERATOR, "controller")
    refused: dict[str, str] = {}
    _move(session, actor, todo.move, refused, now)
    fresh = {node.name for node in todo.add}
    for node in todo.repage:  # pages given up are free for the nodes to come
        if node.name not in refused and node.name not in fresh:
            _set_pages(session, row.name, node, now)
    for node in todo.add:
        _attempt(session, refused, node.name, lambda n=node: _add(session, actor, row, n, now))
    added_now = [node for node in todo.add if node.name not in refused]
    unread = read_from_source(session, actor, row.settings, added_now, now)
    for node in todo.repage:
        if node.name not in refused and node.name in fresh:
            _set_pages(session, row.name, node, now)
    _note_seen(session, (wanted[name] for name in todo.seen if name not in refused), now)
    d = DiscoveredNodeRow
    session.execute(update(d).where(d.node.in_(todo.missing)).values(missing_since=now))
    for name in todo.remove:
        note = f"{row.name} names it no more"
        commands_fleet.remove_node(session, actor, name=name, note=note, now=now)
        _set_pages(session, row.name, Wanted(name, "", "", {}), now)
    session.execute(delete(d).where(d.node.in_(todo.forget)))
    moved = sum(node.name not in refused for node in todo.move)
    counts = Applied(
        len(wanted), len(added_now), moved, len(todo.missing), len(todo.remove), problem=todo.problem
    )
    return counts, [*unread, *(f"{name}: {why}" for name, why in refused.items())]


def _attempt(session: Session, refused: dict[str, str], name: str, change: Callable[[], None]) -> None:
    """Try one change in a savepoint: what a command refuses costs this node, not the answer."""
    try:
        with session.begin_nested():
            change()
    except FleetError as problem:
        refused[name] = problem.message


def _add(session: Session, actor: Actor, row: DiscoverySourceRow, node: Wanted, now: datetime) -> None:
    commands_fleet.add_node(
        session,
        actor,
        name=node.name,
        url=node.url,
        pool=row.pool,
        price_class=row.price_class,
        metrics_path=node.metrics_path,
        now=now,
    )
    known = session.get(DiscoveredNodeRow, node.name)
    if known is None:
        known = DiscoveredNodeRow(node=node.name, first_seen_at=now)
        session.add(known)
    known.source, known.labels = row.name, dict(node.labels)
    known.seen_at, known.missing_since = now, None


def _move(
    session: Session, actor: Actor, nodes: Sequence[Wanted], refused: dict[str, str], now: datetime
) -> None:
    """Move nodes all together; where that is refused, one by one: one bad address costs one node."""
    moves = [Move(node.name, node.url, node.metrics_path) for node in nodes]
    whole: dict[str, str] = {}
    _attempt(session, whole, "", lambda: move_nodes(session, actor, moves, now))
    for move in moves if whole else ():
        _attempt(session, refused, move.name, lambda m=move: move_nodes(session, actor, [m], now))


def _set_pages(session: Session, source: str, node: Wanted, now: datetime) -> None:
    """Make a node's further pages of this source the wanted ones. Those added by hand stay."""
    e = NodeEndpointRow
    rows = {row.url: row for row in session.scalars(select(e).where(e.node == node.name))}
    wanted = further_pages(node)
    old = [row for row in rows.values() if row.source is not None and row.url not in wanted]
    for row in old:
        session.delete(row)
    forget_pages(session, node.name, [row.url for row in old])
    for url in sorted(wanted - rows.keys()):
        kind = "gpu" if url == node.gpu_url else "engine"
        session.add(NodeEndpointRow(node=node.name, url=url, kind=kind, source=source, created_at=now))


def _note_seen(session: Session, nodes: Iterable[Wanted], now: datetime) -> None:
    rows = [
        {"node": n.name, "labels": dict(n.labels), "seen_at": now, "missing_since": None} for n in nodes
    ]
    if rows:
        session.execute(update(DiscoveredNodeRow), rows)
