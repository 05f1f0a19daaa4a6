"""Tables of months: those being closed, those closed with their lines, corrections, commitments, rules.

USD as Numeric; a closed month keeps the bytes of its canonical file. All but `month_closing` are
append-only. Prevents: a closed month that reads otherwise after an upgrade, a price or a late record.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, LargeBinary, Numeric, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from control.tables_base import Base


class MonthClosingRow(Base):
    """A month somebody began to close. Its row goes when the month is closed."""

    __tablename__ = "month_closing"
    month: Mapped[str] = mapped_column(primary_key=True)
    started_at: Mapped[datetime]
    started_by: Mapped[str]


class MonthCloseRow(Base):
    """A closed month: totals, canonical file, checksum, signature, and what they were made from."""

    __tablename__ = "month_close"
    month: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int]  # 1 for the month closed first
    zone: Mapped[str]
    starts_at: Mapped[datetime]
    ends_at: Mapped[datetime]
    method: Mapped[str]
    rows: Mapped[int]
    total_usd: Mapped[Decimal]
    idle_usd: Mapped[Decimal]
    node_hours: Mapped[Decimal]
    sha256: Mapped[str]  # of `body`
    signature: Mapped[str]  # HMAC-SHA256 with the key `key_id`, which is never in the database
    key_id: Mapped[str]
    body: Mapped[bytes] = mapped_column(LargeBinary())
    basis: Mapped[dict[str, Any]]  # slots and rule the lines were made with; node time they were made of
    watermark: Mapped[dict[str, Any]]  # how far usage and corrections of all months were taken
    checklist: Mapped[dict[str, Any]]
    closed_at: Mapped[datetime]
    closed_by: Mapped[str]
    note: Mapped[str]
    seal_version: Mapped[int] = mapped_column(server_default="1")  # what the signature is about
    __table_args__ = (UniqueConstraint("number"),)


class MonthLineRow(Base):
    """One line of a closed month, in the order of its file."""

    __tablename__ = "month_line"
    month: Mapped[str] = mapped_column(ForeignKey("month_close.month"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    tenant: Mapped[str]
    tier: Mapped[str]
    model: Mapped[str]
    pool: Mapped[str]
    requests: Mapped[int]
    prompt_tokens: Mapped[int]
    output_tokens: Mapped[int]
    engine_s: Mapped[Decimal] = mapped_column(Numeric())
    node_hours: Mapped[Decimal] = mapped_column(Numeric())
    amount_usd: Mapped[Decimal] = mapped_column(Numeric(20, 2))
    adjusts: Mapped[str]  # the closed month an adjustment is for; "" of all others
    note: Mapped[str]
    __table_args__ = (
        CheckConstraint(
            "kind IN ('usage', 'idle', 'burst', 'commitment', 'overhead', 'adjustment')", name="kind"
        ),
    )


class LateNodeTimeRow(Base):
    """A change of the node time of a closed month, written by the database itself. Append-only."""

    __tablename__ = "late_node_time"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    month: Mapped[str] = mapped_column(ForeignKey("month_close.month"))
    node: Mapped[str]
    quarter: Mapped[datetime]
    pool: Mapped[str]
    price_class: Mapped[str]
    change_s: Mapped[Decimal]  # negative: less
    received_at: Mapped[datetime]
    __table_args__ = (Index("ix_late_node_time_month", "month"),)


class MonthCorrectionRow(Base):
    """An amount finance corrects a closed month by. It becomes a line of the next month that closes."""

    __tablename__ = "month_correction"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    month: Mapped[str] = mapped_column(ForeignKey("month_close.month"))
    tenant: Mapped[str]
    tier: Mapped[str]
    model: Mapped[str]
    pool: Mapped[str]
    amount_usd: Mapped[Decimal] = mapped_column(Numeric(20, 2))
    reason: Mapped[str]
    created_by: Mapped[str]
    created_at: Mapped[datetime]


class CommitmentRow(Base):
    """Nodes paid for whether used or not, or the platform's own cost, from `starts_at` to `ends_at`."""

    __tablename__ = "commitment"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    kind: Mapped[str]  # "nodes" | "platform"
    pool: Mapped[str | None]
    nodes: Mapped[int]
    usd_per_hour: Mapped[Decimal]  # of each node
    upfront_usd: Mapped[Decimal]  # of all nodes, spread evenly over the term
    starts_at: Mapped[datetime]
    ends_at: Mapped[datetime]
    source: Mapped[str]
    created_by: Mapped[str]
    created_at: Mapped[datetime]
    __table_args__ = (
        CheckConstraint("kind IN ('nodes', 'platform')", name="kind"),
        CheckConstraint("ends_at > starts_at", name="order"),
        CheckConstraint(
            "starts_at >= '2000-01-01T00:00Z' AND starts_at < '2200-01-01T00:00Z' "
            "AND ends_at >= '2000-01-01T00:00Z' AND ends_at < '2200-01-01T00:00Z'",
            name="dates",
        ),
        CheckConstraint("(kind = 'nodes') = (pool IS NOT NULL)", name="pool"),
        CheckConstraint("nodes > 0 AND usd_per_hour >= 0 AND upfront_usd >= 0", name="amounts"),
    )


class AllocationRuleRow(Base):
    """How cost is divided, from a month on."""

    __tablename__ = "allocation_rule"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    from_month: Mapped[str]
    basis: Mapped[str]
    share: Mapped[str]
    output_weight: Mapped[Decimal]  # what an output token counts, a prompt token being 1
    reason: Mapped[str]
    created_by: Mapped[str]
    created_at: Mapped[datetime]
    __table_args__ = (
        CheckConstraint("basis IN ('engine_seconds', 'tokens', 'kv_token_seconds')", name="basis"),
        CheckConstraint("share IN ('apart', 'proportional', 'even')", name="share"),
        CheckConstraint("output_weight > 0", name="output_weight"),
    )
