"""Tables of use and money: usage records and their quarter-hours, node time, prices.

USD as Numeric, node time in seconds. Records and prices are append-only. Prevents: a request billed twice
and a price change that rewrites the past.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from sqlalchemy import CheckConstraint, Identity, Index
from sqlalchemy.orm import Mapped, mapped_column

from control.tables_base import Base


class UsageRecordRow(Base):
    """One request that reached an engine, as its gateway recorded it. Append-only."""

    __tablename__ = "usage_record"
    gateway: Mapped[str] = mapped_column(primary_key=True)
    spool: Mapped[str] = mapped_column(primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    request_id: Mapped[str]
    tenant: Mapped[str]
    key_id: Mapped[str]
    tier: Mapped[str]
    model: Mapped[str]
    endpoint: Mapped[str]
    node: Mapped[str]
    pool: Mapped[str]
    outcome: Mapped[str]
    prompt_tokens: Mapped[int]
    cached_tokens: Mapped[int | None]
    output_tokens: Mapped[int]
    exact: Mapped[bool]
    reserved_tokens: Mapped[int]
    queued_s: Mapped[float]
    ttft_s: Mapped[float | None]
    engine_s: Mapped[float]
    finished_at: Mapped[datetime]
    received_at: Mapped[datetime]
    __table_args__ = (Index("ix_usage_record_finished_at", "finished_at"),)


class UsageQuarterRow(Base):
    """Usage summed by quarter-hour of completion, for months and panels.

    Quarter-hours, because every time zone's midnight falls on one. Written in the transaction that stores
    the records, so the two cannot disagree.
    """

    __tablename__ = "usage_quarter"
    quarter: Mapped[datetime] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(primary_key=True)
    tier: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    pool: Mapped[str] = mapped_column(primary_key=True)
    requests: Mapped[int]
    prompt_tokens: Mapped[int]
    output_tokens: Mapped[int]
    engine_s: Mapped[Decimal]


class UsageCursorRow(Base):
    """How far each gateway's spool has been taken. Moves in the transaction that stores the records."""

    __tablename__ = "usage_cursor"
    gateway: Mapped[str] = mapped_column(primary_key=True)
    spool: Mapped[str] = mapped_column(primary_key=True)
    seq: Mapped[int]
    acked_seq: Mapped[int] = mapped_column(server_default="0")
    updated_at: Mapped[datetime]


class NodeQuarterRow(Base):
    """Seconds of one quarter-hour in which a node was observed up. Nodes that never answered have none."""

    __tablename__ = "node_quarter"
    node: Mapped[str] = mapped_column(primary_key=True)
    quarter: Mapped[datetime] = mapped_column(primary_key=True)
    pool: Mapped[str]
    price_class: Mapped[str]
    up_s: Mapped[Decimal]
    last_seen_at: Mapped[datetime]
    __table_args__ = (Index("ix_node_quarter_quarter", "quarter"),)


class PriceRow(Base):
    """USD per node-hour of a price class from a date on. Append-only: the past keeps its price."""

    __tablename__ = "price"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    price_class: Mapped[str]
    pool: Mapped[str | None]  # None: every pool without a price of its own
    usd_per_node_hour: Mapped[Decimal]
    effective_from: Mapped[datetime]
    source: Mapped[str]
    created_by: Mapped[str]
    created_at: Mapped[datetime]
    __table_args__ = (
        CheckConstraint("price_class IN ('on_demand', 'reserved', 'spot')", name="price_class"),
        CheckConstraint("usd_per_node_hour >= 0", name="not_negative"),
        CheckConstraint(
            "effective_from >= '2000-01-01T00:00Z' AND effective_from < '2200-01-01T00:00Z'", name="dates"
        ),
    )
