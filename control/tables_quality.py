"""Tables of data quality: what was wrong with which source, from when until when.

A row is one finding of one kind about one source, engine and metric, open while `until` is NULL; what it
means stands in `fleet/quality_kinds.py`. Times are UTC. Prevents: a guess at page time about what was
wrong then, and two open rows for one fault.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, Identity, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from control.tables_base import Base


class QualityFindingRow(Base):
    """One thing wrong with one source of metrics, from opening to end."""

    __tablename__ = "quality_finding"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    scope: Mapped[str]  # "node" | "gateway" | "controller"
    source: Mapped[str]  # name of the node or gateway; "" for the controller
    engine: Mapped[str] = mapped_column(server_default=text("''"))  # "": the whole page
    metric: Mapped[str] = mapped_column(server_default=text("''"))  # our short name, or a reason
    kind: Mapped[str]
    severity: Mapped[str]
    since: Mapped[datetime]  # round that showed it first
    until: Mapped[datetime | None]  # last round that showed it
    detail: Mapped[str]  # the newest
    affects: Mapped[list[str]]  # numbers that suffer
    __table_args__ = (
        CheckConstraint("scope IN ('node', 'gateway', 'controller')", name="scope"),
        CheckConstraint("severity IN ('fault', 'warning', 'note')", name="severity"),
        CheckConstraint("until IS NULL OR until >= since", name="order"),
        Index(
            "uq_quality_finding_open",
            "scope",
            "source",
            "engine",
            "metric",
            "kind",
            unique=True,
            postgresql_where=text("until IS NULL"),
        ),
        Index("ix_quality_finding_source_since", "scope", "source", "since"),
        Index("ix_quality_finding_until", "until"),
    )
