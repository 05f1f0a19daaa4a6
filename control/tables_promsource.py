"""Tables of Prometheus-compatible servers that samples are read from, and of history read in later.

A node without a row in `node_source` is scraped directly. Secrets stay in files on the controller's
machine; rows hold their paths. Prevents: a password in a backup, and a back-fill that starts over.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Identity
from sqlalchemy.orm import Mapped, mapped_column

from control.tables_base import Base


class PromSourceRow(Base):
    """One server that answers Prometheus's query API: Prometheus, VictoriaMetrics, Thanos, Mimir."""

    __tablename__ = "prom_source"
    name: Mapped[str] = mapped_column(primary_key=True)
    url: Mapped[str]  # without /api/v1
    instance_label: Mapped[str]
    matchers: Mapped[str]  # PromQL matchers every query carries; "" for none
    token_file: Mapped[str | None]  # bearer token
    basic_file: Mapped[str | None]  # one line user:password
    ca_file: Mapped[str | None]
    tenant: Mapped[str | None]  # X-Scope-OrgID of Mimir
    created_at: Mapped[datetime]


class NodeSourceRow(Base):
    """Where a node's samples come from when it is not scraped directly."""

    __tablename__ = "node_source"
    node: Mapped[str] = mapped_column(ForeignKey("node.name"), primary_key=True)
    source: Mapped[str] = mapped_column(ForeignKey("prom_source.name"))
    instance: Mapped[str]  # value of the source's instance label


class PromBackfillRow(Base):
    """History of a source's nodes being read in: [since, until), finished up to `done_until`."""

    __tablename__ = "prom_backfill"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    source: Mapped[str]
    since: Mapped[datetime]
    until: Mapped[datetime]
    done_until: Mapped[datetime]
    period_s: Mapped[float]
    samples: Mapped[int]  # rows written so far
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    __table_args__ = (CheckConstraint("since < until AND done_until <= until", name="range"),)
