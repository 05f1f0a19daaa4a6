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


def _figure(label: str, help_: str | None = None) -> Any:
    """Return a column of formatted numbers: text, set right so that digits stand under digits."""
    return column.TextColumn(label, help=help_, alignment="right")


NODES: dict[str, Any] = {
    "node": column.LinkColumn("Node", display_text=r"node=(.+)$", width=90, pinned=True),
    "state": column.TextColumn("State, age", width=125),
    "rho": column.NumberColumn("rho", format="%.2f", help="1.0 is the capacity", width=60),
    "rho bar": _bar("0 to 1.2", 1.2, "rho, from 0 to 1.2"),
    "kv": column.NumberColumn("KV used", format="%.0f %%", width=80),
    "waiting": column.NumberColumn("Waiting", width=75),
    "why": column.LinkColumn("Unknown?", display_text="why", help="What is wrong with its data", width=85),
    "running": column.NumberColumn("Running", width=75),
    "arrivals": column.NumberColumn("Req/s", format="%.2f", help="Arrivals at the node", width=75),
    "interval": column.TextColumn("Interval"),
    "grade": column.TextColumn("Grade", width=60),
    "kv bar": _bar("KV", 100, "KV used, from 0 to 100 %"),
    "flags": column.TextColumn("Remarks"),
    "last problem": column.TextColumn("Last problem"),
    "pool": column.TextColumn("Pool"),
}
RHO: dict[str, Any] = {
    "subject": column.TextColumn("Of"),
    "verdict": column.TextColumn("Verdict"),
    "rho": column.NumberColumn("rho", format="%.2f", help="Demand / capacity, last minute", width=60),
    "interval": column.TextColumn("Interval"),
    "grade": column.TextColumn("Grade", width=60),
    "5 min": column.TextColumn("Over 5 min"),
    "backlog": column.TextColumn("With backlog", help="To be level again in a minute"),
    "worst": column.TextColumn("Worst part", help="The engine of the largest rho, and how uneven that is"),
    "higher": column.NumberColumn(
        "With higher tiers",
        format="%.2f",
        help="rho of the tier and those of higher precedence: past 1, this tier is refused",
    ),
    "binding": column.TextColumn("Bound by"),
    "demand": _figure("Demand", "Requests that compete for capacity, refused for want of it included"),
    "own limits": _figure("Refused by own limits", "Quotas of the callers: not part of rho"),
    "capacity": _figure("Capacity"),
    "room": _figure("Room to 0.85"),
    "time": column.TextColumn("If it goes on"),
}
LIMITS: dict[str, Any] = {
    "limit": column.TextColumn("Limit"),
    "rho": column.NumberColumn("rho", format="%.2f"),
    "interval": column.TextColumn("Interval"),
    "capacity": _figure("Capacity"),
}
TRAFFIC: dict[str, Any] = {
    "tenant": column.TextColumn("Tenant", width=110),
    "tier": column.TextColumn("Tier", width=95),
    "offered": column.NumberColumn("Offered", format="localized", width=80),
    "refused %": column.NumberColumn("Refused", format="%.1f %%", width=80),
    "wait p95": _figure("Wait p95", "Queue wait at the gateways"),
    "TTFT p95": _figure(
        "TTFT p95",
        "At the gateways: with their queue and the way to the engine and back. Streams only: an answer in "
        "one piece has no first token.",
    ),
    "admitted": column.NumberColumn("Admitted", format="localized"),
    "refused": column.NumberColumn("Refused, requests", format="localized"),
    "tokens/s": column.NumberColumn("Output tokens/s", format="localized"),
    "why": column.TextColumn("Why refused", width=240),
}
LATENCY: dict[str, Any] = {
    "latency": column.TextColumn("Latency"),
    **{name: _figure(name) for name in ("p50", "p95", "p99", "p99.9", "mean")},
    "requests": column.NumberColumn("Observations", format="localized"),
    "note": column.TextColumn("How far to trust it", width=330),
}
GATEWAYS: dict[str, Any] = {
    "gateway": column.TextColumn("Gateway"),
    "condition": column.TextColumn("Condition", width=115),
    "revision": column.TextColumn("Revision", help="runs / should run", width=80),
    "generation": column.TextColumn("Generation", help="runs / should run", width=90),
    "heard": column.TextColumn("Last answer"),
    "in flight": column.NumberColumn("In flight"),
    "queued": column.TextColumn("Queued", help="interactive / batch / best-effort"),
    "nodes": column.TextColumn("Usable nodes"),
}
PROMPTS: dict[str, Any] = {
    "model": column.TextColumn("Model"),
    "gateway": column.TextColumn("Gateway"),
    "bytes": column.NumberColumn("Bytes a token", format="%.2f", help="learned from what engines counted"),
    "off": column.TextColumn("Estimates off by", help="absolute differences by the tokens counted"),
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
    "field": column.TextColumn("Field", width="medium", pinned=True),
    "old": _figure("Before"),
    "new": _figure("After"),
    "means": column.TextColumn("What it does", width="large"),
    "theirs": _figure("Others changed it to"),
}
TENANTS: dict[str, Any] = {
    "tenant": column.TextColumn(
        "Tenant",
        width=120,
        required=True,
        max_chars=63,
        validate=r"^[a-z0-9][a-z0-9_.-]{0,62}$",
    ),
    "tier": column.SelectboxColumn(
        "Tier", options=["interactive", "batch", "best_effort"], required=True, width=95
    ),
    "tokens_per_minute": column.NumberColumn(
        "Tokens/min", min_value=0, step=1, required=True, format="localized", width=110
    ),
    "burst_tokens": column.NumberColumn(
        "Burst, tokens", min_value=0, step=1, required=True, format="localized", width=115
    ),
    "max_in_flight_tokens": column.NumberColumn(
        "In flight, tokens", min_value=0, step=1, required=True, format="localized", width=125
    ),
    "max_concurrent_requests": column.NumberColumn(
        "Requests",
        min_value=0,
        step=1,
        required=True,
        format="localized",
        width=95,
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
    "hours": _figure("Node-hours"),
    "usd": _figure("USD"),
}
SUBTOTALS: dict[str, Any] = {
    "of": column.TextColumn("Of"),
    "usd": _figure("USD"),
    "share": column.ProgressColumn("Share", min_value=0, max_value=100, format="%.1f %%", width=130),
}
PRICES: dict[str, Any] = {
    "class": column.TextColumn("Price class"),
    "pool": column.TextColumn("Pool"),
    "usd": _figure("USD a node-hour"),
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
    "option": column.TextColumn("Option", width="medium"),
    "nodes": column.NumberColumn("Nodes"),
    "spot": column.NumberColumn("Spot nodes"),
    "usd": _figure("USD a month"),
    "rho peak": column.NumberColumn("rho at peak", format="%.2f"),
    "rho mean": column.NumberColumn("rho at mean", format="%.2f"),
    "shed": _figure("Refused while at peak"),
    "per million": _figure("USD per million tokens"),
}
SPOT: dict[str, Any] = {
    name: _figure(name) for name in ("Spot, USD/h", "Burst always on", "Admission and burst", "Saves")
}
CALENDAR: dict[str, Any] = {
    "Month of": column.TextColumn("Month of"),
    **{name: _figure(name) for name in ("Static peak", "Admission", "Burst pool always on")},
}
