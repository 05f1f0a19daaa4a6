"""How the tables about nodes, sources, pages and GPUs look: labels, units. Constants only.

Prevents: a column without its unit.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

column = st.column_config

REGISTRY: dict[str, Any] = {
    "node": column.LinkColumn("Node", display_text=r"node=(.+)$"),
    "pool": column.TextColumn("Pool"),
    "address": column.TextColumn("Address"),
    "state": column.TextColumn("State", help="Draining and resting nodes are in no sum and raise no alarm"),
    "seen": column.TextColumn("Last sample"),
    "origin": column.TextColumn("Added", help="By hand, or by the discovery source of that name"),
    "missing": column.TextColumn("Missing", help="Its source names it no more"),
    "price class": column.TextColumn("Price class"),
}
SOURCES: dict[str, Any] = {
    "source": column.TextColumn("Source"),
    "kind": column.TextColumn("Kind"),
    "pool": column.TextColumn("Pool"),
    "state": column.TextColumn("State"),
    "answered": column.TextColumn("Last good answer"),
    "nodes": column.NumberColumn("Nodes"),
    "missing": column.NumberColumn("Missing"),
    "where": column.TextColumn("Where"),
    "problem": column.TextColumn("Problem, or what was left out", width="large"),
}
PAGES: dict[str, Any] = {
    "page": column.TextColumn("Page"),
    "of": column.TextColumn("Of"),
    "dialect": column.TextColumn("Dialect"),
    "state": column.TextColumn("State", width="large"),
    "seen": column.TextColumn("Last read"),
    "from": column.TextColumn("From"),
    "not exported": column.TextColumn(
        "Not exported by this engine", help="Quantities this engine family has no metric for"
    ),
}
GPUS: dict[str, Any] = {
    "gpu": column.TextColumn("GPU", width=50),
    "model": column.TextColumn("Model"),
    "use": column.NumberColumn("Use, %", format="%.0f", help="Time in which some kernel ran"),
    "tensor": column.NumberColumn("Tensor, %", format="%.0f", help="Time in which tensor cores worked"),
    "power": column.NumberColumn("Power, W", format="%.0f"),
    "memory": column.TextColumn("Memory used"),
    "temperature": column.NumberColumn("°C", format="%.0f", width=60),
    "error": column.TextColumn("Last error"),
    "age": column.TextColumn("Age"),
    "uuid": column.TextColumn("UUID"),
}
