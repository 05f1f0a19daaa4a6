"""What the pages change about nodes: add, remove, further pages, discovery sources.

Prevents: a form that checks a node's address in its own way.
"""

from __future__ import annotations

from typing import Any

from control import commands_discovery, commands_fleet
from dashboard.actions import change


def add_node(*, name: str, url: str, pool: str, price_class: str, metrics_path: str) -> None:
    """Register a node; the next round asks it."""
    change(
        lambda s, actor, now: commands_fleet.add_node(
            s,
            actor,
            name=name,
            url=url,
            pool=pool,
            price_class=price_class,
            metrics_path=metrics_path,
            now=now,
        )
    )


def remove_node(name: str, *, note: str) -> None:
    """Take a node out of the fleet; its history stays."""
    change(lambda s, actor, now: commands_fleet.remove_node(s, actor, name=name, note=note, now=now))


def add_page(node: str, *, url: str, kind: str) -> None:
    """Read one more page of a node."""
    change(
        lambda s, actor, now: commands_discovery.add_page(s, actor, node=node, url=url, kind=kind, now=now)
    )


def remove_page(node: str, url: str) -> None:
    """Read a further page of a node no more."""
    change(lambda s, actor, now: commands_discovery.remove_page(s, actor, node=node, url=url, now=now))


def add_source(name: str, kind: str, settings: dict[str, Any], **more: Any) -> None:
    """Look nodes up at one more place."""
    change(
        lambda s, actor, now: commands_discovery.add_source(
            s, actor, name=name, kind=kind, settings=settings, now=now, **more
        )
    )


def set_source_state(name: str, *, paused: bool) -> None:
    """Pause a source or go on with it."""
    command = commands_discovery.pause_source if paused else commands_discovery.resume_source
    change(lambda s, actor, now: command(s, actor, name=name, now=now))


def remove_source(name: str, *, with_nodes: bool) -> int:
    """Take out a source; return how many nodes it had."""
    return change(
        lambda s, actor, now: commands_discovery.remove_source(
            s, actor, name=name, with_nodes=with_nodes, now=now
        )
    )
