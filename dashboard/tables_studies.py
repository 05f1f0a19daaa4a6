"""How the tables of the Disciplines and Goodput pages look: labels, units. Constants only.

Prevents: a latency without who it is a latency of.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

column = st.column_config


def _figure(label: str, about: str | None = None) -> Any:
    return column.TextColumn(label, alignment="right", help=about)


CASES: dict[str, Any] = {
    "case": column.TextColumn("Case", width="medium", pinned=True),
    "p50": _figure("First token p50", "Of completed requests, from arrival"),
    "p95": _figure("p95"),
    "p99": _figure("p99"),
    "last": _figure("Last token p99"),
    "good": _figure("In objective", "Of offered requests"),
    "refused": _figure("Refused", "At the door, or out of the queue"),
    "gap": _figure("Gap p99", "Between two tokens, over all tokens"),
    "longest": _figure("Longest gap"),
    "rate": _figure("Output tokens/s", "All nodes"),
    "preempted": _figure("Preempted", "By the engines"),
    "what": column.TextColumn("How", width="large"),
}
GROUPS: dict[str, Any] = {
    "who": column.TextColumn("Who", width="medium", pinned=True),
    "case": column.TextColumn("Case", width="medium"),
    "offered": _figure("Requests"),
    "p50": _figure("First token p50"),
    "p95": _figure("p95"),
    "p99": _figure("p99"),
    "last": _figure("Last token p99"),
    "good": _figure("In objective"),
    "refused": _figure("Refused"),
}
CHOICES: dict[str, Any] = {
    "batch": _figure("Sequences at once"),
    "rate": _figure("Admit, req/s", "The most that keeps every objective"),
    "goodput": _figure("In time, req/s"),
    "ttft": _figure("First token", "At that rate, at the chosen quantile"),
    "itl": _figure("Between tokens"),
    "last": _figure("Last token"),
    "saturation": _figure("Saturates at, req/s"),
    "limit": column.TextColumn("Reached first", width="medium"),
    "verdict": column.TextColumn("Verdict"),
}
REFUSALS: dict[str, Any] = {
    "tenant": column.TextColumn("Tenant", width="medium", pinned=True),
    "tier": column.TextColumn("Tier"),
    "offered": _figure("Requests", "Of the last hour, those refused then included"),
    "draft": _figure("Draft refuses"),
    "in force": _figure("In force refuses", "The policy in force, replayed on the same requests"),
    "then": _figure("Refused then", "As the gateways counted"),
    "wait": _figure("Wait p95", "In the queue, with the draft, of requests that started"),
    "why": column.TextColumn("Why the draft refuses", width="large"),
}
