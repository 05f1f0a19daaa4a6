"""How each table's columns look: labels, units, bars. Constants only.

Prevents: a column without its unit.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

column = st.column_config

NODES: dict[str, Any] = {
    "node": column.LinkColumn("Node", display_text=r"node=(.+)$"),
    "pool": column.TextColumn("Pool"),
    "state": column.TextColumn("State, age"),
    "rho": column.ProgressColumn(
        "rho", min_value=0, max_value=1.2, format="%.2f", help="1.0 is the capacity", width=120
    ),
    "interval": column.TextColumn("Interval"),
    "grade": column.TextColumn("Grade"),
    "arrivals": column.NumberColumn("Req/s", format="%.2f", help="Arrivals at the node"),
    "running": column.NumberColumn("Running"),
    "waiting": column.NumberColumn("Waiting"),
    "kv": column.ProgressColumn("KV used", min_value=0, max_value=100, format="%.0f %%", width=120),
    "flags": column.TextColumn("Remarks"),
    "last problem": column.TextColumn("Last problem"),
}
TRAFFIC: dict[str, Any] = {
    "tenant": column.TextColumn("Tenant"),
    "tier": column.TextColumn("Tier", width="small"),
    "offered": column.NumberColumn("Offered", format="localized"),
    "admitted": column.NumberColumn("Admitted", format="localized"),
    "refused": column.NumberColumn("Refused", format="localized"),
    "refused %": column.NumberColumn("Refused, %", format="%.1f %%"),
    "why": column.TextColumn("Why refused"),
    "tokens/s": column.NumberColumn("Output tokens/s", format="%.0f"),
    "wait p95": column.TextColumn("Queue wait p95"),
    "TTFT p95": column.TextColumn("TTFT p95"),
}
LATENCY: dict[str, Any] = {
    "latency": column.TextColumn("Latency"),
    **{name: column.TextColumn(name) for name in ("p50", "p95", "p99", "p99.9", "mean")},
    "requests": column.NumberColumn("Observations", format="localized"),
    "note": column.TextColumn("How far to trust it", width="medium"),
}
GATEWAYS: dict[str, Any] = {
    "gateway": column.TextColumn("Gateway"),
    "condition": column.TextColumn("Condition"),
    "revision": column.TextColumn("Revision", help="runs / should run"),
    "generation": column.TextColumn("Generation", help="runs / should run"),
    "heard": column.TextColumn("Last answer"),
    "in flight": column.NumberColumn("In flight"),
    "queued": column.TextColumn("Queued", help="interactive / batch / best-effort"),
    "nodes": column.TextColumn("Usable nodes"),
    "why": column.TextColumn("Why"),
}
HISTORY: dict[str, Any] = {
    "revision": column.NumberColumn("Revision", width="small"),
    "at": column.TextColumn("When"),
    "author": column.TextColumn("Who"),
    "note": column.TextColumn("Why", width="large"),
    "restores": column.TextColumn("Restores", width="small"),
    "rollout": column.TextColumn("Rollout", width="small"),
}
DIFFERENCES: dict[str, Any] = {
    "field": column.TextColumn("Field", width="medium"),
    "old": column.TextColumn("Now"),
    "new": column.TextColumn("Draft"),
    "theirs": column.TextColumn("Changed meanwhile to"),
}
TENANTS: dict[str, Any] = {
    "tenant": column.TextColumn(
        "Tenant", width=160, required=True, max_chars=63, validate=r"^[a-z0-9][a-z0-9_.-]{0,62}$"
    ),
    "tier": column.SelectboxColumn("Tier", options=["interactive", "batch", "best_effort"], required=True),
    "tokens_per_minute": column.NumberColumn(
        "Tokens/min", min_value=0, step=1, required=True, format="localized"
    ),
    "burst_tokens": column.NumberColumn(
        "Burst, tokens", min_value=0, step=1, required=True, format="localized"
    ),
    "max_in_flight_tokens": column.NumberColumn(
        "In flight, tokens", min_value=0, step=1, required=True, format="localized"
    ),
    "max_concurrent_requests": column.NumberColumn(
        "Requests at once", min_value=0, step=1, required=True, format="localized"
    ),
    "weight": column.NumberColumn("Weight", min_value=1, max_value=10_000, step=1, required=True),
    "monthly_budget_usd": column.TextColumn("Budget, USD/month", help="Empty: no budget"),
    "over_budget": column.SelectboxColumn(
        "Over budget", options=["warn", "downgrade", "refuse"], required=True
    ),
}
KEYS: dict[str, Any] = {
    "key": column.TextColumn("Key"),
    "tenant": column.TextColumn("Tenant"),
    "label": column.TextColumn("Label"),
    "by": column.TextColumn("Created by"),
    "at": column.TextColumn("Created"),
    "state": column.TextColumn("State"),
}
SPEND: dict[str, Any] = {
    "line": column.TextColumn("Line", width="small"),
    "tenant": column.TextColumn("Tenant"),
    "tier": column.TextColumn("Tier"),
    "model": column.TextColumn("Model"),
    "pool": column.TextColumn("Pool"),
    "requests": column.NumberColumn("Requests", format="localized"),
    "prompt": column.NumberColumn("Prompt tokens", format="localized"),
    "output": column.NumberColumn("Output tokens", format="localized"),
    "hours": column.TextColumn("Node-hours"),
    "usd": column.TextColumn("USD"),
}
SUBTOTALS: dict[str, Any] = {
    "of": column.TextColumn("Of"),
    "usd": column.TextColumn("USD"),
    "share": column.ProgressColumn("Share", min_value=0, max_value=100, format="%.1f %%"),
}
PRICES: dict[str, Any] = {
    "class": column.TextColumn("Price class"),
    "pool": column.TextColumn("Pool"),
    "usd": column.TextColumn("USD a node-hour"),
    "from": column.TextColumn("In force from"),
    "source": column.TextColumn("Source", width="medium"),
    "by": column.TextColumn("Set by"),
}
AUDIT: dict[str, Any] = {
    "id": column.NumberColumn("Row", width="small"),
    "at": column.TextColumn("When"),
    "actor": column.TextColumn("Who"),
    "role": column.TextColumn("Role", width="small"),
    "via": column.TextColumn("Via", width="small"),
    "action": column.TextColumn("Action"),
    "subject": column.TextColumn("Subject"),
    "note": column.TextColumn("Why", width="medium"),
    "detail": column.TextColumn("Detail", width="medium"),
}
OPTIONS: dict[str, Any] = {
    "option": column.TextColumn("Option", width="medium"),
    "nodes": column.NumberColumn("Nodes"),
    "spot": column.NumberColumn("Spot nodes"),
    "usd": column.TextColumn("USD a month"),
    "rho peak": column.NumberColumn("rho at peak", format="%.2f"),
    "rho mean": column.NumberColumn("rho at mean", format="%.2f"),
    "shed": column.TextColumn("Refused while at peak"),
    "per million": column.TextColumn("USD per million tokens"),
}
PLAIN: dict[str, Any] = {}
