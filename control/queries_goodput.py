"""Engines whose step times are fitted, and how one of them stands today: input of the goodput page.

Rates are requests/s of an engine, times seconds. `None` is not known. Prevents: a limit computed for an
engine from another engine's curve, and today's point drawn at zero because nobody measured it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from control.queries_latency import latency_quantiles
from control.tables import CapacityEstimateRow, HealthRow, NodeRow, PoolRow
from fleet.curve_fit import StepCurve
from fleet.histograms import Quantile

RECENT = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class FittedEngine:
    """One engine with a step-time curve."""

    node: str
    engine: str
    at: datetime  # of the fit
    grade: str
    curve: StepCurve
    prompt_tokens: float | None
    output_tokens: float | None
    slots: int | None  # what it was launched with
    kv_batch: int | None = None  # sequences of its mix that its KV cache holds

    @property
    def name(self) -> str:
        """Return its name for people."""
        return self.node if self.engine in ("", "0") else f"{self.node} engine {self.engine}"


@dataclass(frozen=True, slots=True)
class Today:
    """What a node did in the last ten minutes."""

    arrival_rate: float | None  # of the newest verdict
    throughput: float | None  # finished, of the same
    ttft_p95: Quantile | None


def fitted_engines(session: Session) -> list[FittedEngine]:
    """Return every engine of a node that is not removed and has a curve, by node and engine."""
    c = CapacityEstimateRow
    rows = session.execute(
        select(c, PoolRow.max_num_seqs)
        .join(NodeRow, NodeRow.name == c.node)
        .join(PoolRow, PoolRow.name == NodeRow.pool)
        .where(NodeRow.state != "removed")
        .order_by(c.node, c.engine)
    )
    found: list[FittedEngine] = []
    for row, slots in rows:
        curve = curve_in(row.detail)
        if curve is None:
            continue
        mix = cast("dict[str, Any]", row.detail.get("mix") or {})
        found.append(
            FittedEngine(
                row.node,
                row.engine,
                row.at,
                row.grade,
                curve,
                mix.get("prompt_tokens"),
                mix.get("decode_events"),
                slots,
                _held(row.detail),
            )
        )
    return found


def _held(detail: dict[str, Any]) -> int | None:
    """Return the sequences of the measured mix that the KV cache holds; None where it is not known."""
    held = cast("dict[str, Any]", detail.get("limits") or {}).get("kv")
    return None if held is None else max(1, int(held))


def curve_in(detail: dict[str, Any]) -> StepCurve | None:
    """Return the curve stored with a capacity estimate; None where there is none."""
    stored: dict[str, Any] | None = detail.get("curve")
    if not stored or stored["intercept_s"] <= 0:
        return None
    slope = float(stored["slope_s"])
    knee = stored["knee"]
    extra = 0.0 if knee is None else float(stored["last_slope_s"]) - slope
    return StepCurve(float(stored["intercept_s"]), slope, knee, extra)


def today(session: Session, node: str, now: datetime) -> Today:
    """Return a node's newest rates and its p95 of the first token over ten minutes."""
    h = HealthRow
    rates = session.execute(
        select(h.arrival_rate, h.throughput)
        .where(h.scope == "node", h.name == node, h.at > now - RECENT)
        .order_by(h.at.desc())
        .limit(1)
    ).first()
    latency = latency_quantiles(session, since=now - RECENT, until=now, node=node)
    arrival_rate, throughput = (None, None) if rates is None else rates
    return Today(arrival_rate, throughput, latency["ttft_s"].p95)
