"""What pages, API and CLI may ask about pools: what they serve and how their engines were started.

Prevents: limits that were typed once and are never seen again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control.tables import NodeRow, PoolRow


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool as registered. None: nobody said."""

    name: str
    models: tuple[str, ...]
    nodes: int  # not removed
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    scheduling_policy: str | None
    chunked_prefill: bool | None
    configured_service_rate: float | None  # requests/s a node
    configured_source: str | None
    configured_at: datetime | None
    created_at: datetime
    role: str | None = None  # "prefill" | "decode"; None: both phases


def pool_table(session: Session) -> list[PoolView]:
    """Return every pool by name."""
    members = session.execute(
        select(NodeRow.pool, func.count()).where(NodeRow.state != "removed").group_by(NodeRow.pool)
    )
    counts = {pool: count for pool, count in members}
    return [
        PoolView(
            name=row.name,
            models=tuple(row.models),
            nodes=counts.get(row.name, 0),
            max_num_seqs=row.max_num_seqs,
            max_num_batched_tokens=row.max_num_batched_tokens,
            scheduling_policy=row.scheduling_policy,
            chunked_prefill=row.chunked_prefill,
            configured_service_rate=row.configured_service_rate,
            configured_source=row.configured_source,
            configured_at=row.configured_at,
            created_at=row.created_at,
            role=row.role,
        )
        for row in session.scalars(select(PoolRow).order_by(PoolRow.name))
    ]
