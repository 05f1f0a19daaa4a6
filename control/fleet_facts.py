"""What there is to look after: nodes with their pools' launch configuration, and gateways.

A snapshot read at the start of a round. Prevents: a drained node counted as capacity, and a limit typed
at registration that never reaches the estimator.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

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

    @property
    def takes_work(self) -> bool:
        return self.state == "active"


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """The fleet as registered."""

    nodes: tuple[Node, ...] = ()
    pools: tuple[Pool, ...] = ()
    gateways: tuple[Target, ...] = ()

    @property
    def targets(self) -> list[Target]:
        return [Target(node.name, node.metrics_url, node.pool) for node in self.nodes]


def load_fleet(session: Session) -> FleetFacts:
    """Return everything that is not removed, by name."""
    nodes = session.scalars(select(NodeRow).where(NodeRow.state != "removed").order_by(NodeRow.name))
    pools = session.scalars(select(PoolRow).order_by(PoolRow.name))
    gateways = session.scalars(
        select(GatewayRow).where(GatewayRow.state == "active").order_by(GatewayRow.name)
    )
    return FleetFacts(
        nodes=tuple(
            Node(n.name, n.pool, n.base_url.rstrip("/") + n.metrics_path, n.state, n.created_at)
            for n in nodes
        ),
        pools=tuple(_pool(row) for row in pools),
        gateways=tuple(Target(g.name, g.base_url.rstrip("/") + "/metrics") for g in gateways),
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
