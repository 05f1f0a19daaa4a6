"""What pages, API and CLI may ask about discovery, a node's pages, and its GPUs.

Ages are seconds, ratios 0..1, watts, bytes. None: not said. Prevents: a source that has failed for a day
and still looks fine, and a GPU's value without the time it was taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control.tables import (
    DiscoveredNodeRow,
    DiscoverySourceRow,
    EndpointSeenRow,
    GpuRow,
    GpuSampleRow,
    NodeEndpointRow,
    NodeRow,
)
from fleet.gpu_names import xid_meaning


@dataclass(frozen=True, slots=True)
class SourceView:
    """A discovery source and how its newest look went."""

    name: str
    kind: str
    settings: dict[str, Any]
    pool: str
    name_rule: str
    gpu_port: int | None
    interval_s: float
    grace_s: float
    state: str
    tried_at: datetime | None
    answered_at: datetime | None
    found: int | None
    problem: str
    remarks: tuple[str, ...]
    nodes: int  # of it, not removed
    missing: int  # of these, those it names no more


@dataclass(frozen=True, slots=True)
class OriginView:
    """Where a node comes from. `source` None: added by hand."""

    node: str
    source: str | None
    labels: dict[str, str]
    first_seen_at: datetime | None
    missing_since: datetime | None
    removed_after: datetime | None  # when a missing node will be removed


@dataclass(frozen=True, slots=True)
class PageView:
    """One page of a node and what it was when last asked."""

    node: str
    url: str
    kind: str
    is_own: bool
    source: str | None
    dialect: str | None
    seen_at: datetime | None
    tried_at: datetime | None
    reason: str | None
    detail: str
    not_exported: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU of a node: its newest values and their date."""

    uuid: str
    label: str
    model: str
    host: str
    seen_at: datetime
    used_ratio: float | None
    tensor_ratio: float | None
    power_w: float | None
    memory_used_bytes: float | None
    memory_total_bytes: float | None
    temperature_c: float | None
    row_remap_failed: bool | None
    xid: int | None
    xid_at: datetime | None
    slot: int

    @property
    def xid_words(self) -> tuple[str, str] | None:
        """What the last error code means and what to do; None while there was none."""
        return xid_meaning(self.xid) if self.xid else None


@dataclass(frozen=True, slots=True)
class GpuHistory:
    """Values of a node's GPUs over time: one list a time, by slot."""

    at: tuple[datetime, ...]
    used_ratio: tuple[tuple[float | None, ...], ...]
    power_w: tuple[tuple[float | None, ...], ...]
    memory_used_ratio: tuple[tuple[float | None, ...], ...]


def discovery_sources(session: Session) -> list[SourceView]:
    """Return every source by name."""
    d, n = DiscoveredNodeRow, NodeRow
    counts = {
        source: (nodes, missing)
        for source, nodes, missing in session.execute(
            select(d.source, func.count(), func.count(d.missing_since))
            .join(n, n.name == d.node)
            .where(n.state != "removed")
            .group_by(d.source)
        )
    }
    return [
        SourceView(
            name=row.name,
            kind=row.kind,
            settings=dict(row.settings),
            pool=row.pool,
            name_rule=row.name_rule,
            gpu_port=row.gpu_port,
            interval_s=row.interval_s,
            grace_s=row.grace_s,
            state=row.state,
            tried_at=row.tried_at,
            answered_at=row.answered_at,
            found=row.found,
            problem=row.problem,
            remarks=tuple(row.remarks),
            nodes=counts.get(row.name, (0, 0))[0],
            missing=counts.get(row.name, (0, 0))[1],
        )
        for row in session.scalars(select(DiscoverySourceRow).order_by(DiscoverySourceRow.name))
    ]


def origins(session: Session) -> dict[str, OriginView]:
    """Return where each node that is not removed comes from, by node."""
    n, d, s = NodeRow, DiscoveredNodeRow, DiscoverySourceRow
    rows = session.execute(
        select(n.name, d.source, d.labels, d.first_seen_at, d.missing_since, s.grace_s)
        .outerjoin(d, d.node == n.name)
        .outerjoin(s, s.name == d.source)
        .where(n.state != "removed")
        .order_by(n.name)
    )
    return {
        name: OriginView(
            name,
            source,
            dict(labels or {}),
            first_seen_at,
            missing,
            None if missing is None else missing + timedelta(seconds=grace_s),
        )
        for name, source, labels, first_seen_at, missing, grace_s in rows
    }


def node_pages(session: Session, node: str) -> list[PageView]:
    """Return a node's pages, its own first. One that was not asked yet has no dates."""
    row = session.get(NodeRow, node)
    if row is None:
        return []
    e, s = NodeEndpointRow, EndpointSeenRow
    further = session.scalars(select(e).where(e.node == node).order_by(e.kind, e.url)).all()
    seen = {r.url: r for r in session.scalars(select(s).where(s.node == node))}
    own = (row.base_url.rstrip("/") + row.metrics_path, "engine", True, None)
    rest = [(r.url, r.kind, False, r.source) for r in further]
    return [_page(node, *page, seen.get(page[0])) for page in (own, *rest)]


def _page(
    node: str, url: str, kind: str, is_own: bool, source: str | None, seen: EndpointSeenRow | None
) -> PageView:
    return PageView(
        node=node,
        url=url,
        kind=kind,
        is_own=is_own,
        source=source,
        dialect=None if seen is None else seen.dialect,
        seen_at=None if seen is None else seen.seen_at,
        tried_at=None if seen is None else seen.tried_at,
        reason=None if seen is None else seen.reason,
        detail="" if seen is None else seen.detail,
        not_exported=() if seen is None else tuple(seen.not_exported),
    )


def node_gpus(session: Session, node: str) -> list[GpuView]:
    """Return the GPUs a node ever had, in the order of their label, each with the date of its values."""
    rows = session.scalars(select(GpuRow).where(GpuRow.node == node)).all()
    views = [
        GpuView(
            uuid=row.uuid,
            label=row.label,
            model=row.model,
            host=row.host,
            seen_at=row.seen_at,
            used_ratio=row.used_ratio,
            tensor_ratio=row.tensor_ratio,
            power_w=row.power_w,
            memory_used_bytes=row.memory_used_bytes,
            memory_total_bytes=row.memory_total_bytes,
            temperature_c=row.temperature_c,
            row_remap_failed=row.row_remap_failed,
            xid=row.xid,
            xid_at=row.xid_at,
            slot=row.slot,
        )
        for row in rows
    ]
    return sorted(views, key=lambda v: (v.label.zfill(6) if v.label.isdigit() else v.label, v.uuid))


def gpu_history(session: Session, node: str, *, since: datetime) -> GpuHistory:
    """Return the values of a node's GPUs since a time, oldest first, one a minute."""
    g = GpuSampleRow
    rows: Sequence[GpuSampleRow] = session.scalars(
        select(g).where(g.node == node, g.at >= since).order_by(g.at)
    ).all()
    return GpuHistory(
        at=tuple(row.at for row in rows),
        used_ratio=tuple(tuple(row.used_ratio) for row in rows),
        power_w=tuple(tuple(row.power_w) for row in rows),
        memory_used_ratio=tuple(tuple(row.memory_used_ratio) for row in rows),
    )
