"""Tables of where nodes come from and what else is read of them: sources, further pages, GPUs.

Times are UTC, ratios 0..1, watts, bytes, degrees Celsius; NULL: not said. `gpu_sample` holds one value a
GPU in the order of `gpu.slot`. Prevents: a node nobody can say the origin of, and a GPU's last word shown
without its age.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import REAL, CheckConstraint, ForeignKey, Index, Integer, SmallInteger, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from control.tables_base import Base


class NodeEndpointRow(Base):
    """One more page of a node beside its own: a further engine, or a GPU exporter."""

    __tablename__ = "node_endpoint"
    node: Mapped[str] = mapped_column(ForeignKey("node.name"), primary_key=True)
    url: Mapped[str] = mapped_column(primary_key=True)  # of the page, whole
    kind: Mapped[str]
    host: Mapped[str | None]  # only GPUs of this host, where the exporter speaks for several
    gpus: Mapped[list[str] | None]  # only these UUIDs
    source: Mapped[str | None]  # the discovery source that put it there; NULL: by hand
    created_at: Mapped[datetime]
    __table_args__ = (CheckConstraint("kind IN ('engine', 'gpu')", name="kind"),)


class EndpointSeenRow(Base):
    """What one page of a node was when it was last asked. Written when it changes, and each minute."""

    __tablename__ = "endpoint_seen"
    node: Mapped[str] = mapped_column(primary_key=True)
    url: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    dialect: Mapped[str | None]
    tried_at: Mapped[datetime]
    seen_at: Mapped[datetime | None]  # newest good answer
    reason: Mapped[str | None]  # why the newest answer was no good
    detail: Mapped[str] = mapped_column(server_default=text("''"))
    not_exported: Mapped[list[str]] = mapped_column(server_default=text("'{}'"))


class GpuRow(Base):
    """One GPU of a node and its newest values. `slot` is its place in `gpu_sample`, for ever."""

    __tablename__ = "gpu"
    node: Mapped[str] = mapped_column(primary_key=True)
    uuid: Mapped[str] = mapped_column(primary_key=True)
    slot: Mapped[int] = mapped_column(SmallInteger)
    label: Mapped[str] = mapped_column(server_default=text("''"))  # the exporter's index; for people
    model: Mapped[str] = mapped_column(server_default=text("''"))
    host: Mapped[str] = mapped_column(server_default=text("''"))
    seen_at: Mapped[datetime]
    used_ratio: Mapped[float | None]
    tensor_ratio: Mapped[float | None]
    power_w: Mapped[float | None]
    memory_used_bytes: Mapped[float | None]
    memory_total_bytes: Mapped[float | None]
    temperature_c: Mapped[float | None]
    row_remap_failed: Mapped[bool | None]
    xid: Mapped[int | None] = mapped_column(Integer)  # last error code; 0: none
    xid_at: Mapped[datetime | None]  # when it became that; NULL: it was that when first seen
    __table_args__ = (Index("uq_gpu_node_slot", "node", "slot", unique=True),)


class GpuSampleRow(Base):
    """The GPUs of one node once a minute: arrays by slot, NULL where a GPU did not say."""

    __tablename__ = "gpu_sample"
    at: Mapped[datetime] = mapped_column(primary_key=True)
    node: Mapped[str] = mapped_column(primary_key=True)
    used_ratio: Mapped[list[float | None]] = mapped_column(ARRAY(REAL[float]()))
    power_w: Mapped[list[float | None]] = mapped_column(ARRAY(REAL[float]()))
    memory_used_ratio: Mapped[list[float | None]] = mapped_column(ARRAY(REAL[float]()))
    temperature_c: Mapped[list[float | None]] = mapped_column(ARRAY(REAL[float]()))
    __table_args__ = (Index("ix_gpu_sample_node_at", "node", "at"),)


class DiscoverySourceRow(Base):
    """Where nodes are looked up, what they become here, and how the last look went."""

    __tablename__ = "discovery_source"
    name: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    settings: Mapped[dict[str, Any]]  # by kind; names of secret files, never secrets
    pool: Mapped[str] = mapped_column(ForeignKey("pool.name"))
    name_rule: Mapped[str]  # "{host}", "{label_instance}", ...: the node's name from what was found
    price_class: Mapped[str]
    scheme: Mapped[str]
    metrics_path: Mapped[str]
    gpu_port: Mapped[int | None] = mapped_column(Integer)  # of the GPU exporter on each host
    interval_s: Mapped[float]
    grace_s: Mapped[float]  # a node missing this long is removed
    state: Mapped[str]
    created_at: Mapped[datetime]
    tried_at: Mapped[datetime | None]
    answered_at: Mapped[datetime | None]
    found: Mapped[int | None] = mapped_column(Integer)  # nodes in the newest good answer
    problem: Mapped[str] = mapped_column(server_default=text("''"))  # of the newest try
    remarks: Mapped[list[str]] = mapped_column(server_default=text("'{}'"))  # what was left out and why
    __table_args__ = (
        CheckConstraint("state IN ('active', 'paused')", name="state"),
        CheckConstraint("scheme IN ('http', 'https')", name="scheme"),
        CheckConstraint("price_class IN ('on_demand', 'reserved', 'spot')", name="price_class"),
        CheckConstraint("interval_s > 0 AND grace_s >= 0", name="times"),
    )


class DiscoveredNodeRow(Base):
    """A node that a source named, and whether it still does. A node belongs to one source at most."""

    __tablename__ = "discovered_node"
    node: Mapped[str] = mapped_column(primary_key=True)
    source: Mapped[str] = mapped_column(ForeignKey("discovery_source.name"))
    labels: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
    first_seen_at: Mapped[datetime]
    seen_at: Mapped[datetime]  # newest answer that named it
    missing_since: Mapped[datetime | None]
