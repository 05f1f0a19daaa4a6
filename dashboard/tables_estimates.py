"""How the tables of estimates look: labels, units. Constants only.

Prevents: a share without what it is a share of.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

column = st.column_config


def _figure(label: str, about: str | None = None, *, width: int = 85) -> Any:
    return column.TextColumn(label, alignment="right", help=about, width=width)


OUTCOMES: dict[str, Any] = {
    "strategy": column.TextColumn("Strategy", width=165, pinned=True),
    "usd": _figure("USD a month", "720 h", width=95),
    "nodes": _figure("Nodes", "On average (at most), billed from launch", width=80),
    "refused": _figure("Refused", "Of offered requests", width=70),
    "p99": _figure("Wait p99", "Of admitted requests", width=72),
    "slo": _figure("In objective", "Of offered requests: refused ones are not within it", width=90),
    "per million": _figure("per M tokens", "USD per million tokens served, prompt and output", width=95),
    "rho": column.NumberColumn(
        "rho", format="%.2f", help="Served / what the billed nodes could serve", width=52
    ),
    "stands": column.TextColumn("Against the baseline", width=350),
    "p50": _figure("Wait p50", "Of admitted requests", width=72),
    "p95": _figure("Wait p95", "Of admitted requests", width=72),
    "per million out": _figure("per M output", "USD per million output tokens served", width=95),
}
NOTICED: dict[str, Any] = {
    "strategy": column.TextColumn("Strategy", width=160, pinned=True),
    "tier": column.TextColumn("Tier", width=82),
    "tenant": column.TextColumn("Tenant", width=64),
    "refused": _figure("Refused", width=70),
    "share": _figure("Of its own", width=72),
    "worst hour": _figure("Worst hour", "The largest share in one hour", width=80),
    "offered": _figure("Requests a month", width=115),
}
INPUTS: dict[str, Any] = {
    "input": column.TextColumn("Input", width=120),
    "value": column.TextColumn("Value", width=150),
    "source": column.TextColumn("Where it comes from, and when", width=310),
}
BANDS: dict[str, Any] = {
    "strategy": column.TextColumn("Strategy", width=150, pinned=True),
    "cold_start": _figure("Cold start 1 to 10 min", width=144),
    "burst_length": _figure("Bursts 0.1 to 2 times as long", width=144),
    "spot_ratio": _figure("Spot at 20 to 80 % of list", width=144),
}
METHODS: dict[str, Any] = {
    "strategy": column.TextColumn("Strategy", width=165, pinned=True),
    "state": column.TextColumn("Simulation", width=95),
    "progress": column.ProgressColumn("Days", format="percent", min_value=0.0, max_value=1.0, width=70),
    "usd": _figure("USD, fluid", width=80),
    "usd events": _figure("USD, events", width=85),
    "refused": _figure("Refused, fluid", width=95),
    "refused events": _figure("Refused, events", width=102),
    "difference": column.TextColumn("Why they differ", width=380),
    "p99": _figure("p99, fluid", width=80),
    "p99 events": _figure("p99, events", width=85),
    "slo": _figure("In objective, fluid", width=115),
    "slo events": _figure("In objective, events", width=125),
}
GATE_DAYS: dict[str, Any] = {
    "strategy": column.TextColumn("Strategy", width=165, pinned=True),
    "state": column.TextColumn("Simulation", width=95),
    "progress": column.ProgressColumn("Days", format="percent", min_value=0.0, max_value=1.0, width=70),
    "usd": _figure("USD of these days", width=115),
    "refused": _figure("Refused", "Of offered requests, by the gate", width=70),
    "interactive": _figure("Interactive", "Of its own requests, refused by the gate", width=80),
    "batch": _figure("Batch", "Of its own requests, refused by the gate", width=60),
    "best_effort": _figure("Best-effort", "Of its own requests, refused by the gate", width=80),
    "difference": column.TextColumn("What the gate does", width=330),
    "first p95": _figure(
        "First token p95", "Interactive, arrival to first token; known where engines serve", width=110
    ),
    "p95": _figure("p95, gate", width=80),
    "p95 events": _figure("p95, one queue", width=105),
    "p99": _figure("p99, gate", width=80),
    "p99 events": _figure("p99, one queue", width=105),
    "slo": _figure("In objective, gate", width=115),
    "slo events": _figure("In objective, one queue", width=145),
    "refused events": _figure("Refused, one queue", width=130),
}
GATE_TENANTS: dict[str, Any] = {
    "strategy": column.TextColumn("Strategy", width=165, pinned=True),
    "tier": column.TextColumn("Tier", width=88),
    "tenant": column.TextColumn("Tenant", width=110),
    "refused": _figure("Refused", "Of its own requests, by the gate", width=75),
    "mean wait": _figure("Mean wait", "Of its requests that started", width=80),
    "slo": _figure("In objective", "Of its own requests", width=90),
    "offered": _figure("Requests", "Of the days simulated", width=85),
}
MEASURED: dict[str, Any] = INPUTS
#: Shown on demand, so that the rest fits.
OUTCOMES_MORE = ("p50", "p95", "per million out")
METHODS_MORE = ("p99", "p99 events", "slo", "slo events")
GATE_DAYS_MORE = (
    *("first p95", "p95", "p95 events", "p99", "p99 events"),
    *("slo", "slo events", "refused events"),
)
