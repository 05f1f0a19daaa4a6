"""How the tables of the Disciplines and Goodput pages look: labels, units. Constants only.

Prevents: a latency without who it is a latency of.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

column = st.column_config


def _figure(label: str, about: str | None = None, *, width: int = 85) -> Any:
    return column.TextColumn(label, alignment="right", help=about, width=width)


CASES: dict[str, Any] = {
    "case": column.TextColumn("Case", width=165, pinned=True),
    "p50": _figure("First token p50", "Of completed requests, from arrival", width=112),
    "p95": _figure("p95", width=65),
    "p99": _figure("p99", width=65),
    "good": _figure("In objective", "Of offered requests", width=90),
    "refused": _figure("Refused", "At the door, or out of the queue", width=72),
    "what": column.TextColumn("How", width=250),
    "last": _figure("Last token p99", width=105),
    "gap": _figure("Gap p99", "Between two tokens, over all tokens", width=70),
    "rate": _figure("Tokens/s", "Output, all nodes", width=75),
    "longest": _figure("Longest gap", width=90),
    "preempted": _figure("Preempted", "By the engines", width=85),
}
#: Shown on demand, so that the rest fits.
CASES_MORE = ("longest", "preempted")
GROUPS: dict[str, Any] = {
    "who": column.TextColumn("Who", width=130, pinned=True),
    "case": column.TextColumn("Case", width=130),
    "p50": _figure("First token p50", width=112),
    "p95": _figure("p95", width=65),
    "good": _figure("In objective", width=82),
    "refused": _figure("Refused", width=63),
    "p99": _figure("p99", width=65),
    "last": _figure("Last token p99", width=105),
    "offered": _figure("Requests", width=75),
}
CHOICES: dict[str, Any] = {
    "batch": _figure("At once", "Sequences", width=66),
    "rate": _figure("Admit, req/s", "The most that keeps every objective", width=92),
    "goodput": _figure("In time, req/s", width=97),
    "ttft": _figure("First token", "At that rate, at the chosen quantile", width=82),
    "verdict": column.TextColumn("Verdict", width=105),
    "limit": column.TextColumn("Reached first", width=140),
    "itl": _figure("Between tokens", width=105),
    "last": _figure("Last token", width=85),
    "saturation": _figure("Saturates at, req/s", width=125),
}
REFUSALS: dict[str, Any] = {
    "tenant": column.TextColumn("Tenant", width=115, pinned=True),
    "tier": column.TextColumn("Tier", width=88),
    "offered": _figure("Requests", "Of the last hour, those refused then included", width=75),
    "draft": _figure("Draft refuses", width=93),
    "in force": _figure(
        "In force refuses", "The policy in force, replayed on the same requests", width=110
    ),
    "then": _figure("Refused then", "As the gateways counted", width=95),
    "wait": _figure("Wait p95", "In the queue, with the draft, of requests that started", width=78),
    "why": column.TextColumn("Why the draft refuses", width=330),
}
