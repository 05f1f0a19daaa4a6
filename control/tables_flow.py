"""Tables of flow: what each disjoint minute of a fleet, pool or tier was, and how its balance stands now.

Counts, seconds and places (requests inside on average); NULL is unknown. A minute is written once, when it
is over; `flow_now` has one row a subject and is overwritten by each round. Prevents: a trend computed from
overlapping windows, and a restart that forgets the hour a doubling took to show.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Index, Integer, text
from sqlalchemy.orm import Mapped, mapped_column

from control.tables_base import Base

SCOPES = "scope IN ('fleet', 'pool', 'tier')"


class FlowMinuteRow(Base):
    """One disjoint minute (or two rounds, where rounds are longer). `at` is its end."""

    __tablename__ = "flow_minute"
    at: Mapped[datetime] = mapped_column(primary_key=True)
    scope: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)  # "" for the fleet
    length_s: Mapped[float]
    covered_s: Mapped[float]
    arrivals: Mapped[int | None]
    departures: Mapped[int | None]
    mean_in_system: Mapped[float | None]
    time_mean_s: Mapped[float | None]
    p50_s: Mapped[float | None]  # time in the system; a tier's: time to first token
    p99_s: Mapped[float | None]
    ttft_p50_s: Mapped[float | None]
    ttft_p99_s: Mapped[float | None]
    slo_offered: Mapped[int | None]  # requests the objective was asked of, refused for capacity included
    slo_good_low: Mapped[int | None]  # surely within it
    slo_good_high: Mapped[int | None]
    balance: Mapped[str | None]
    is_left: Mapped[bool | None]
    p99_doubling_min: Mapped[float | None]
    stages: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))  # name -> L, X, W
    __table_args__ = (
        CheckConstraint(SCOPES, name="scope"),
        Index("ix_flow_minute_scope_name_at", "scope", "name", "at"),
    )


class FlowNowRow(Base):
    """The newest state of one subject, with its signals; `detail` is what the page shows."""

    __tablename__ = "flow_now"
    scope: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    balance: Mapped[str | None]
    is_left: Mapped[bool | None]
    p99_doubling_min: Mapped[float | None]
    minutes: Mapped[int] = mapped_column(Integer)  # disjoint minutes behind the state
    detail: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
    __table_args__ = (CheckConstraint(SCOPES, name="scope"),)
