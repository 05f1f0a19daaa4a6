"""The calls of the API about nodes and discovery sources: what they take, do and answer.

Intervals are seconds. Addresses, paths and names are checked by the commands, as for pages and command
line. Prevents: a script that adds nodes around the rules people are held to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import orjson
from pydantic import Field

from control import commands_discovery, commands_fleet
from control.api_calls import Asked, Body, Call, NoteBody
from control.queries_discovery import discovery_sources, node_gpus, node_pages, origins
from control.queries_nodes import node_table
from control.tokens import Scope
from fleet.errors import NotFound


class NodeBody(Body):
    """A node to add."""

    name: str
    url: str
    pool: str
    price_class: str = "on_demand"
    metrics_path: str = "/metrics"


class PageBody(Body):
    """One more page of a node: of a further engine, or of its GPU exporter."""

    url: str
    kind: str
    host: str | None = None
    gpus: list[str] = Field(default_factory=list[str])


class SourceBody(Body):
    """A discovery source to add; `settings` are those of its kind."""

    name: str
    kind: str
    settings: dict[str, Any]
    pool: str
    name_rule: str | None = None
    price_class: str = "on_demand"
    scheme: str = "http"
    metrics_path: str = "/metrics"
    gpu_port: int | None = None
    interval_s: float = 30.0
    grace_s: float = 600.0


call = partial(Call, reads=Scope.FLEET_READ, writes=Scope.FLEET_WRITE)


def _plain(value: object) -> Any:
    """Return dataclasses, times and the like as JSON's own kinds."""
    return orjson.loads(orjson.dumps(value))


def _nodes(asked: Asked) -> dict[str, Any]:
    known = origins(asked.session)
    rows = [
        asdict(row) | {"origin": asdict(known[row.name]) if row.name in known else None}
        for row in node_table(asked.session, asked.now)
    ]
    return {"nodes": _plain(rows)}


def _node(asked: Asked) -> dict[str, Any]:
    name = asked.path["name"]
    pages = node_pages(asked.session, name)
    if not pages:
        raise NotFound(f"no node is called {name[:80]!r}", hint="See /api/v1/nodes", field="name")
    return {"node": name, "pages": _plain(pages), "gpus": _plain(node_gpus(asked.session, name))}


def _add_node(asked: Asked) -> dict[str, Any]:
    given = asked.body.model_dump()
    commands_fleet.add_node(asked.session, asked.actor, now=asked.now, **given)
    return {"node": given["name"], "state": "active"}


def _changed(command: Callable[..., None], state: str) -> Callable[[Asked], dict[str, Any]]:
    def run(asked: Asked) -> dict[str, Any]:
        name, note = asked.path["name"], "" if asked.body is None else asked.body.note
        command(asked.session, asked.actor, name=name, now=asked.now, note=note)
        return {"node": name, "state": state}

    return run


def _add_page(asked: Asked) -> dict[str, Any]:
    name, given = asked.path["name"], asked.body.model_dump()
    commands_discovery.add_page(asked.session, asked.actor, node=name, now=asked.now, **given)
    return {"node": name, "page": commands_discovery.checked_page(given["url"])}


def _sources(asked: Asked) -> dict[str, Any]:
    return {"sources": _plain(discovery_sources(asked.session))}


def _add_source(asked: Asked) -> dict[str, Any]:
    given = asked.body.model_dump()
    commands_discovery.add_source(asked.session, asked.actor, now=asked.now, **given)
    return {"source": given["name"]}


def _remove_source(asked: Asked) -> dict[str, Any]:
    name, with_nodes = asked.path["name"], asked.query.get("with_nodes") == "true"
    nodes = commands_discovery.remove_source(
        asked.session, asked.actor, name=name, with_nodes=with_nodes, now=asked.now
    )
    return {"source": name, "nodes": nodes, "nodes_removed": with_nodes}


def _paused(command: Callable[..., None], state: str) -> Callable[[Asked], dict[str, Any]]:
    def run(asked: Asked) -> dict[str, Any]:
        name = asked.path["name"]
        command(asked.session, asked.actor, name=name, now=asked.now, note=asked.body.note)
        return {"source": name, "state": state}

    return run


_NODE = "/api/v1/nodes/{name}"
_SOURCE = "/api/v1/discovery/{name}"

CALLS: tuple[Call, ...] = (
    call("GET", "/api/v1/nodes", "Nodes with their state and where they come from", _nodes),
    call("POST", "/api/v1/nodes", "Add a node", _add_node, NodeBody, 201),
    call("GET", _NODE, "A node's pages, what each was when last asked, and its GPUs", _node),
    call(
        "DELETE", _NODE, "Remove a node; its history stays", _changed(commands_fleet.remove_node, "removed")
    ),
    call(
        "POST",
        f"{_NODE}/drain",
        "Send it no new work",
        _changed(commands_fleet.drain_node, "draining"),
        NoteBody,
    ),
    call(
        "POST",
        f"{_NODE}/rest",
        "Put it into maintenance",
        _changed(commands_fleet.rest_node, "maintenance"),
        NoteBody,
    ),
    call(
        "POST",
        f"{_NODE}/resume",
        "Let it take work again",
        _changed(commands_fleet.resume_node, "active"),
        NoteBody,
    ),
    call("POST", f"{_NODE}/pages", "Read one more page of it", _add_page, PageBody, 201),
    call("GET", "/api/v1/discovery", "Discovery sources and how their newest look went", _sources),
    call("POST", "/api/v1/discovery", "Look nodes up at one more place", _add_source, SourceBody, 201),
    call("DELETE", _SOURCE, "Take out a source; with_nodes=true removes its nodes too", _remove_source),
    call(
        "POST",
        f"{_SOURCE}/pause",
        "Look there no more",
        _paused(commands_discovery.pause_source, "paused"),
        NoteBody,
    ),
    call(
        "POST",
        f"{_SOURCE}/resume",
        "Look there again",
        _paused(commands_discovery.resume_source, "active"),
        NoteBody,
    ),
)
