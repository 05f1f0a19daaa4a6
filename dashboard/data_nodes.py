"""What the pages about nodes read: who is registered and why, discovery sources, a node's pages and GPUs.

Prevents: a page that asks the database about a node's origin in its own way.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from control import queries_discovery as queries
from control.queries_discovery import GpuHistory, GpuView, OriginView, PageView, SourceView
from control.queries_nodes import NodeRowView, node_table
from control.queries_pools import PoolView, pool_table
from dashboard.data import QUESTIONS, Reading, ask
from dashboard.deps import Deps


@dataclass(frozen=True, slots=True)
class Registry:
    """Everything the nodes page shows, read in one transaction."""

    nodes: tuple[NodeRowView, ...]
    origins: dict[str, OriginView]
    sources: tuple[SourceView, ...]
    pools: tuple[PoolView, ...]


@dataclass(frozen=True, slots=True)
class Hardware:
    """A node's pages and GPUs, and what the GPUs did in a range."""

    pages: tuple[PageView, ...]
    gpus: tuple[GpuView, ...]
    history: GpuHistory


def _registry(session: Any, _of: Deps, now: datetime) -> Registry:
    return Registry(
        nodes=tuple(node_table(session, now)),
        origins=queries.origins(session),
        sources=tuple(queries.discovery_sources(session)),
        pools=tuple(pool_table(session)),
    )


def _hardware(session: Any, _of: Deps, now: datetime, name: str, span_s: int) -> Hardware:
    return Hardware(
        pages=tuple(queries.node_pages(session, name)),
        gpus=tuple(queries.node_gpus(session, name)),
        history=queries.gpu_history(session, name, since=now - timedelta(seconds=span_s)),
    )


QUESTIONS |= {"registry": _registry, "hardware": _hardware}


def registry() -> Reading[Registry]:
    """Nodes, where they come from, discovery sources and pools."""
    return ask("registry")


def hardware(name: str, span_s: int) -> Reading[Hardware]:
    """A node's pages and GPUs, with the GPUs' values of the last `span_s` seconds."""
    return ask("hardware", name, span_s)
