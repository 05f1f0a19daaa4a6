"""How each table's columns look: labels, units, bars. Constants only.

Prevents: a column without its unit.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

column = st.column_config


def _bar(label: str, top: float, help_: str) -> Any:
    """Return a bar without a number: beside the number's own column, which shows a dash for unknown."""
    return column.ProgressColumn(label, min_value=0, max_value=top, format=" ", help=help_, width=70)


def _figure(label: str, help_: str | None = None, *, width: int = 90) -> Any:
    """Return a column of formatted numbers: text, set right so that digits stand under digits."""
    return column.TextColumn(label, help=help_, alignment="right", width=width)


NODES: dict[str, Any] = {
    "node": column.LinkColumn("Node", display_text=r"node=(.+)$", width=80, pinned=True),
    "state": column.TextColumn("State, age", width=125),
    "rho": column.NumberColumn("rho", format="%.2f", help="1.0 is the capacity", width=52),
    "rho bar": _bar("0 to 1.2", 1.2, "rho, from 0 to 1.2"),
    "kv": column.NumberColumn("KV used", format="%.0f %%", width=70),
    "waiting": column.NumberColumn("Waiting", width=68),
    "why": column.LinkColumn("Why?", display_text="why", help="What is wrong with its data", width=54),
    "flags": column.TextColumn("Remarks", width=150),
    "last problem": column.TextColumn("Last problem", width=120),
    "running": column.NumberColumn("Running", width=68),
    "arrivals": column.NumberColumn("Req/s", format="%.2f", help="Arrivals at the node", width=60),
    "interval": column.TextColumn("Interval", width=95),
    "grade": column.TextColumn("Grade", width=55),
    "pool": column.TextColumn("Pool", width=110),
    "kv bar": _bar("KV", 100, "KV used, from 0 to 100 %"),
}
RHO: dict[str, Any] = {
    "subject": column.TextColumn("Of", width=170, pinned=True),
    "verdict": column.TextColumn("Verdict", width=150),
    "rho": column.NumberColumn("rho", format="%.2f", help="Demand / capacity, last minute", width=52),
    "interval": column.TextColumn("Interval", width=95),
    "grade": column.TextColumn("Grade", width=55),
    "demand": _figure("Demand", "Requests that compete for capacity, refused for want of it included"),
    "capacity": _figure("Capacity"),
    "room": _figure("Room to 0.85", width=95),
    "binding": column.TextColumn("Bound by", width=125),
    "time": column.TextColumn("If it goes on", width=145),
    "5 min": column.TextColumn("Over 5 min", width=130),
    "backlog": column.TextColumn("With backlog", help="To be level again in a minute", width=130),
    "worst": column.TextColumn(
        "Worst part", help="The engine of the largest rho, and how uneven that is", width=150
    ),
    "higher": column.NumberColumn(
        "With higher tiers",
        format="%.2f",
        help="rho of the tier and those of higher precedence: past 1, this tier is refused",
        width=120,
    ),
    "own limits": _figure("Refused by own limits", "Quotas of the callers: not part of rho", width=140),
}
#: Shown on demand, so that the rest fits.
RHO_MORE = ("5 min", "backlog", "worst", "higher", "own limits")
TRAFFIC_MORE = ("admitted", "refused")
NODES_MORE = ("pool", "kv bar")
#: Shown only where some row has something to say in them.
NODES_REMARKS = ("why", "flags", "last problem")
LIMITS: dict[str, Any] = {
    "limit": column.TextColumn("Limit", width=200),
    "rho": column.NumberColumn("rho", format="%.2f", width=70),
    "interval": column.TextColumn("Interval", width=120),
    "capacity": _figure("Capacity", width=120),
}
TRAFFIC: dict[str, Any] = {
    "tenant": column.TextColumn("Tenant", width=115, pinned=True),
    "tier": column.TextColumn("Tier", width=88),
    "offered": column.NumberColumn("Offered", format="localized", width=70),
    "refused %": column.NumberColumn("Refused", format="%.1f %%", width=72),
    "wait p95": _figure("Wait p95", "Queue wait at the gateways", width=105),
    "TTFT p95": _figure(
        "TTFT p95",
        "At the gateways: with their queue and the way to the engine and back. Streams only: an answer in "
        "one piece has no first token.",
        width=105,
    ),
    "tokens/s": column.NumberColumn("Output tokens/s", format="localized", width=115),
    "why": column.TextColumn("Why refused", width=400),
    "admitted": column.NumberColumn("Admitted", format="localized", width=78),
    "refused": column.NumberColumn("Refusals", format="localized", width=90),
}
LATENCY: dict[str, Any] = {
    "latency": column.TextColumn("Latency", width=165, pinned=True),
    **{name: _figure(name, width=88) for name in ("p50", "p95", "p99", "p99.9", "mean")},
    "requests": column.NumberColumn("Observations", format="localized", width=95),
    "note": column.TextColumn("How far to trust it", width=300),
}
GATEWAYS: dict[str, Any] = {
    "gateway": column.TextColumn("Gateway", width=82, pinned=True),
    "condition": column.TextColumn("Condition", width=110),
    "revision": column.TextColumn("Revision", help="runs / should run", width=70),
    "nodes": column.TextColumn("Usable nodes", width=95),
    "heard": column.TextColumn("Last answer", width=88),
    "queued": column.TextColumn("Queued", help="interactive / batch / best-effort", width=110),
    "in flight": column.NumberColumn("In flight", width=68),
    "generation": column.TextColumn("Generation", help="runs / should run", width=85),
}
PROMPTS: dict[str, Any] = {
    "model": column.TextColumn("Model", width=190),
    "gateway": column.TextColumn("Gateway", width=110),
    "bytes": column.NumberColumn(
        "Bytes a token", format="%.2f", help="learned from what engines counted", width=110
    ),
    "off": column.TextColumn(
        "Estimates off by",
        help="absolute differences by the tokens counted",
        width=130,
        alignment="right",
    ),
}
HISTORY: dict[str, Any] = {
    "revision": column.NumberColumn("Revision", width=70),
    "at": column.TextColumn("When", width=165),
    "author": column.TextColumn("Who", width=85),
    "rollout": column.TextColumn("Rollout", width=85),
    "note": column.TextColumn("Why", width=270),
    "restores": column.TextColumn("Restores", width=75),
}
DIFFERENCES: dict[str, Any] = {
    "field": column.TextColumn("Field", width=250, pinned=True),
    "old": _figure("Before"),
    "new": _figure("After"),
    "theirs": _figure("Others changed it to", width=135),
    "means": column.TextColumn("What it does", width=400),
}
TENANTS: dict[str, Any] = {
    "tenant": column.TextColumn(
        "Tenant",
        width=112,
        pinned=True,
        required=True,
        max_chars=63,
        validate=r"^[a-z0-9][a-z0-9_.-]{0,62}$",
    ),
    "tier": column.SelectboxColumn(
        "Tier",
        options=["interactive", "batch", "best_effort"],
        format_func=lambda tier: tier.replace("_", "-"),
        required=True,
        width=88,
    ),
    "tokens_per_minute": column.NumberColumn(
        "Tokens/min", min_value=0, step=1, required=True, format="localized", width=104
    ),
    "burst_tokens": column.NumberColumn(
        "Burst", min_value=0, step=1, required=True, format="localized", width=80, help="Tokens"
    ),
    "max_in_flight_tokens": column.NumberColumn(
        "In flight",
        min_value=0,
        step=1,
        required=True,
        format="localized",
        width=88,
        help="Tokens at once, prompt and reserved output",
    ),
    "max_concurrent_requests": column.NumberColumn(
        "Requests",
        min_value=0,
        step=1,
        required=True,
        format="localized",
        width=78,
        help="At once",
    ),
    "weight": column.NumberColumn("Weight", min_value=1, max_value=10_000, step=1, required=True, width=75),
    "monthly_budget_usd": column.TextColumn(
        "USD/month", help="Budget. Empty: none", alignment="right", width=110
    ),
    "over_budget": column.SelectboxColumn(
        "Over budget", options=["warn", "downgrade", "refuse"], required=True, width=105
    ),
    "quota_mode": column.SelectboxColumn(
        "Quota",
        options=["leases", "exact"],
        required=True,
        width=90,
        help="leases: lent between gateways; exact: counted in one store at each request",
    ),
}
KEYS: dict[str, Any] = {
    "key": column.TextColumn("Key", width=110),
    "tenant": column.TextColumn("Tenant", width=115),
    "label": column.TextColumn("Label", width=130),
    "state": column.TextColumn("State", width=75),
    "at": column.TextColumn("Created", width=165),
    "by": column.TextColumn("Created by", width=90),
}
SPEND: dict[str, Any] = {
    "line": column.TextColumn("Line", width=72),
    "tenant": column.TextColumn("Tenant", width=115),
    "tier": column.TextColumn("Tier", width=88),
    "model": column.TextColumn("Model", width=140),
    "usd": _figure("USD", width=85),
    "hours": _figure("Node-hours", width=82),
    "requests": column.NumberColumn("Requests", format="localized", width=80),
    "prompt": column.NumberColumn("Prompt tokens", format="localized", width=105),
    "output": column.NumberColumn("Output tokens", format="localized", width=105),
    "pool": column.TextColumn("Pool", width=130),
}
SUBTOTALS: dict[str, Any] = {
    "of": column.TextColumn("Of", width=115),
    "usd": _figure("USD", width=75),
    "share": column.ProgressColumn("Share", min_value=0, max_value=100, format="%.1f %%", width=130),
}
PRICES: dict[str, Any] = {
    "class": column.TextColumn("Price class", width=90),
    "pool": column.TextColumn("Pool", width=90),
    "usd": _figure("USD a node-hour", width=115),
    "from": column.TextColumn("In force from", width=105),
    "source": column.TextColumn("Source", width=180),
    "by": column.TextColumn("Set by", width=85),
}
AUDIT: dict[str, Any] = {
    "id": column.NumberColumn("Row", width=52),
    "at": column.TextColumn("When", width=165),
    "actor": column.TextColumn("Who", width=85),
    "action": column.TextColumn("Action", width=130),
    "subject": column.TextColumn("Subject", width=140),
    "note": column.TextColumn("Why", width=200),
    "role": column.TextColumn("Role", width=75),
    "via": column.TextColumn("Via", width=62),
    "detail": column.TextColumn("Detail", width=150),
}
QUALITY: dict[str, Any] = {
    "severity": column.TextColumn("How bad", width=85),
    "source": column.LinkColumn("Source", display_text=r"#(.+)$", width=85),
    "what": column.TextColumn("What", width=165),
    "affects": column.TextColumn("Affects", width=150, help="Numbers that are unknown or worse for it"),
    "since": column.TextColumn("Since", width=100),
    "lasted": column.TextColumn("Lasted", width=75, alignment="right"),
}
#: What is over: no numbers suffer any more, and the time has room.
ENDED: dict[str, Any] = QUALITY | {
    "source": column.LinkColumn("Source", display_text=r"#(.+)$", width=75),
    "what": column.TextColumn("What", width=160),
    "since": column.TextColumn("Since", width=185),
}
EVIDENCE: dict[str, Any] = {
    "evidence": column.TextColumn("Evidence", width=250),
    "value": column.TextColumn("Value", width=130),
}
OPTIONS: dict[str, Any] = {
    "option": column.TextColumn("Option", width=165, pinned=True),
    "nodes": column.NumberColumn("Nodes", width=58),
    "usd": _figure("USD a month", width=95),
    "rho peak": column.NumberColumn("rho at peak", format="%.2f", width=85),
    "shed": _figure("Refused while at peak", width=145),
    "spot": column.NumberColumn("Spot nodes", width=80),
    "rho mean": column.NumberColumn("rho at mean", format="%.2f", width=90),
    "per million": _figure("USD per million tokens", width=150),
}
SPOT: dict[str, Any] = {
    name: _figure(name, width=135)
    for name in ("Spot, USD/h", "Burst always on", "Admission and burst", "Saves")
}
CALENDAR: dict[str, Any] = {
    "Month of": column.TextColumn("Month of", width=90),
    **{name: _figure(name, width=140) for name in ("Static peak", "Admission", "Burst pool always on")},
}
