"""What there is to look after: nodes with their pools' launch configuration, and gateways.

A snapshot read at the start of a round. Prevents: a drained node counted as capacity, and a limit typed
at registration that never reaches the estimator.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from control.page_store import further_pages
from control.promsource import SourceSettings
from control.queries_promsource import NodeSource, node_sources, sources
from control.rounds import FurtherPage
from control.scrape import Target
from control.tables import GatewayRow, NodeRow, PoolRow
from fleet.capacity import ConfiguredCapacity
from fleet.saturation import EngineLimits

#: Nothing is known about how the engines were launched.
UNLIMITED = EngineLimits()


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool's launch configuration and the capacity somebody typed for one of its nodes."""

    name: str
    limits: EngineLimits = UNLIMITED
    configured: ConfiguredCapacity | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A node to ask. Only active ones count as capacity."""

    name: str
    pool: str
    metrics_url: str
    state: str  # "active" | "draining" | "maintenance"
    created_at: datetime
    source: str = ""  # the server its samples are read from; "" for the node itself
    instance: str = ""  # its name there
    pages: tuple[FurtherPage, ...] = ()

    @property
    def takes_work(self) -> bool:
        return self.state == "active"

    @property
    def counted_in(self) -> str:
        """The pool its samples are part of. While it rests it serves tests, not users: of none."""
        return "" if self.state == "maintenance" else self.pool


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """The fleet as registered."""

    nodes: tuple[Node, ...] = ()
    pools: tuple[Pool, ...] = ()
    gateways: tuple[Target, ...] = ()
    sources: tuple[SourceSettings, ...] = ()

    @property
    def targets(self) -> list[Target]:
        return [
            Target(node.name, node.metrics_url, node.counted_in, pages=node.pages)
            if not node.source
            else Target(
                node.name,
                f"{node.source}:{node.instance}",
                node.counted_in,
                node.source,
                node.instance,
                pages=node.pages,
            )
            for node in self.nodes
        ]


def load_fleet(session: Session) -> FleetFacts:
    """Return everything that is not removed, by name."""
    nodes = session.scalars(select(NodeRow).where(NodeRow.state != "removed").order_by(NodeRow.name))
    pools = session.scalars(select(PoolRow).order_by(PoolRow.name))
    gateways = session.scalars(
        select(GatewayRow).where(GatewayRow.state == "active").order_by(GatewayRow.name)
    )
    read_from, pages = node_sources(session), further_pages(session)
    return FleetFacts(
        nodes=tuple(_node(n, read_from.get(n.name), pages.get(n.name, ())) for n in nodes),
        pools=tuple(_pool(row) for row in pools),
        gateways=tuple(Target(g.name, g.base_url.rstrip("/") + "/metrics") for g in gateways),
        sources=tuple(sources(session)),
    )


def _node(row: NodeRow, read_from: NodeSource | None, pages: tuple[FurtherPage, ...]) -> Node:
    return Node(
        row.name,
        row.pool,
        row.base_url.rstrip("/") + row.metrics_path,
        row.state,
        row.created_at,
        source="" if read_from is None else read_from.source,
        instance="" if read_from is None else read_from.instance,
        pages=pages,
    )


def _pool(row: PoolRow) -> Pool:
    configured = None
    if row.configured_service_rate is not None:
        dated = f" ({row.configured_at:%Y-%m-%d})" if row.configured_at is not None else ""
        configured = ConfiguredCapacity(
            source=f"{row.configured_source or 'typed by an operator'}{dated}",
            requests_per_s=row.configured_service_rate,
        )
    limits = EngineLimits(max_num_seqs=row.max_num_seqs, max_num_batched_tokens=row.max_num_batched_tokens)
    return Pool(row.name, limits, configured)
