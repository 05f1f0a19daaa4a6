"""How the tables of estimates look: labels, units. Constants only.

Prevents: a share without what it is a share of.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

column = st.column_config


def _figure(label: str, about: str | None = None) -> Any:
    return column.TextColumn(label, alignment="right", help=about)


OUTCOMES: dict[str, Any] = {
    "strategy": column.TextColumn("Strategy", width="medium", pinned=True),
    "usd": _figure("USD a month", "720 h"),
    "per million": _figure("per M tokens", "USD per million tokens served, prompt and output"),
    "per million out": _figure("per M output", "USD per million output tokens served"),
    "nodes": _figure("Nodes", "On average (at most), billed from launch"),
    "refused": _figure("Refused", "Of offered requests"),
    "p50": _figure("Wait p50", "Of admitted requests"),
    "p95": _figure("p95"),
    "p99": _figure("p99"),
    "slo": _figure("In objective", "Of offered requests: refused ones are not within it"),
    "rho": column.NumberColumn("rho", format="%.2f", help="Served / what the billed nodes could serve"),
    "stands": column.TextColumn("Against the baseline", width=250),
}
NOTICED: dict[str, Any] = {
    "strategy": column.TextColumn("Strategy", width="medium", pinned=True),
    "tier": column.TextColumn("Tier"),
    "tenant": column.TextColumn("Tenant"),
    "offered": _figure("Requests a month"),
    "refused": _figure("Refused"),
    "share": _figure("Of its own"),
    "worst hour": _figure("In its worst hour"),
}
INPUTS: dict[str, Any] = {
    "input": column.TextColumn("Input", width="small"),
    "value": column.TextColumn("Value", width="medium"),
    "source": column.TextColumn("Where it comes from, and when", width="large"),
}
BANDS: dict[str, Any] = {
    "strategy": column.TextColumn("Strategy", width="medium", pinned=True),
    "cold_start": _figure("Cold start, 1 to 10 min"),
    "burst_length": _figure("Bursts, a tenth to twice as long"),
    "spot_ratio": _figure("Spot at 20 to 80 % of on demand"),
}
METHODS: dict[str, Any] = {
    "strategy": column.TextColumn("Strategy", width="medium", pinned=True),
    "state": column.TextColumn("Simulation"),
    "progress": column.ProgressColumn("Days", format="percent", min_value=0.0, max_value=1.0),
    "usd": _figure("USD, fluid"),
    "usd events": _figure("USD, events"),
    "refused": _figure("Refused, fluid"),
    "refused events": _figure("Refused, events"),
    "p99": _figure("p99, fluid"),
    "p99 events": _figure("p99, events"),
    "slo": _figure("In objective, fluid"),
    "slo events": _figure("In objective, events"),
    "difference": column.TextColumn("Why they differ", width="large"),
}
GATE_DAYS: dict[str, Any] = {
    "strategy": column.TextColumn("Strategy", width="medium", pinned=True),
    "state": column.TextColumn("Simulation"),
    "progress": column.ProgressColumn("Days", format="percent", min_value=0.0, max_value=1.0),
    "usd": _figure("USD of these days"),
    "refused events": _figure("Refused, one queue"),
    "refused": _figure("Refused, gate"),
    "interactive": _figure("Interactive", "Of its own requests, refused by the gate"),
    "batch": _figure("Batch", "Of its own requests, refused by the gate"),
    "best_effort": _figure("Best effort", "Of its own requests, refused by the gate"),
    "p95 events": _figure("p95, one queue"),
    "p95": _figure("p95, gate"),
    "p99 events": _figure("p99, one queue"),
    "p99": _figure("p99, gate"),
    "first p95": _figure(
        "First token p95", "Interactive, arrival to first token; known where engines serve"
    ),
    "slo events": _figure("In objective, one queue"),
    "slo": _figure("In objective, gate"),
    "difference": column.TextColumn("What the gate does", width="large"),
}
GATE_TENANTS: dict[str, Any] = {
    "strategy": column.TextColumn("Strategy", width="medium", pinned=True),
    "tier": column.TextColumn("Tier"),
    "tenant": column.TextColumn("Tenant"),
    "offered": _figure("Requests", "Of the days simulated"),
    "refused": _figure("Refused", "Of its own requests, by the gate"),
    "mean wait": _figure("Mean wait", "Of its requests that started"),
    "slo": _figure("In objective", "Of its own requests"),
}
MEASURED: dict[str, Any] = INPUTS
