"""Tables of estimates: traffic somebody brought or recorded, simulations of every request, their snapshots.

Rates are requests/s in 10 s bins, as compressed little-endian doubles under their SHA-256. A run's inputs
are complete in `spec` and named by its hash. Prevents: a result whose traffic is gone, and the same month
simulated twice.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, LargeBinary, text
from sqlalchemy.orm import Mapped, mapped_column

from control.tables_base import Base

STATES = ("queued", "running", "done", "cancelled", "failed")


class EstimateTraceRow(Base):
    """A traffic, by its content."""

    __tablename__ = "estimate_trace"
    sha256: Mapped[str] = mapped_column(primary_key=True)  # of the uncompressed rates
    name: Mapped[str]
    source: Mapped[str]
    bins: Mapped[int]
    rates: Mapped[bytes] = mapped_column(LargeBinary())
    tokens_in: Mapped[float | None]
    tokens_out: Mapped[float | None]
    requests: Mapped[int | None]
    filled_share: Mapped[float]
    created_at: Mapped[datetime]
    created_by: Mapped[str]


class EstimateRunRow(Base):
    """Months of one strategy, simulated request by request in the background."""

    __tablename__ = "estimate_run"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    sha256: Mapped[str]  # of `spec`
    strategy: Mapped[str]  # its name
    spec: Mapped[dict[str, Any]]
    state: Mapped[str]
    days_done: Mapped[int] = mapped_column(server_default=text("0"))  # over all replications
    days: Mapped[int]
    months: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))  # finished, by seed
    error: Mapped[str] = mapped_column(server_default=text("''"))
    cancel_requested: Mapped[bool] = mapped_column(server_default=text("false"))
    attempts: Mapped[int] = mapped_column(server_default=text("0"))
    worker: Mapped[str | None]  # who simulates it now
    beat_at: Mapped[datetime | None]  # when that one last said so
    created_at: Mapped[datetime]
    created_by: Mapped[str]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    __table_args__ = (
        CheckConstraint("state IN ('queued', 'running', 'done', 'cancelled', 'failed')", name="state"),
        CheckConstraint("(state = 'running') = (worker IS NOT NULL)", name="worker"),
        Index(
            "uq_estimate_run_sha256_live",
            "sha256",
            unique=True,
            postgresql_where=text("state IN ('queued', 'running', 'done')"),
        ),
    )


class EstimateSnapshotRow(Base):
    """Where a run in progress can go on. Gone when it ends."""

    __tablename__ = "estimate_snapshot"
    run: Mapped[int] = mapped_column(ForeignKey("estimate_run.id", ondelete="CASCADE"), primary_key=True)
    seed: Mapped[int]  # of the month it is in
    days_done: Mapped[int]  # of that month
    body: Mapped[bytes] = mapped_column(LargeBinary())
    saved_at: Mapped[datetime]
