"""How the tables about nodes, sources, pages and GPUs look: labels, units. Constants only.

Prevents: a column without its unit.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

column = st.column_config

REGISTRY: dict[str, Any] = {
    "node": column.LinkColumn("Node", display_text=r"node=(.+)$", width=75),
    "state": column.TextColumn(
        "State",
        width=100,
        help="Draining and resting nodes are in no sum; missing: its source names it no more",
    ),
    "seen": column.TextColumn("Last sample", width=90),
    "origin": column.TextColumn("Added", width=70, help="By hand, or by the discovery source of that name"),
    "pool": column.TextColumn("Pool, price", width=105),
    "address": column.TextColumn("Address", width=138),
}
SOURCES: dict[str, Any] = {
    "source": column.TextColumn("Source", width=90),
    "state": column.TextColumn("State", width=85),
    "answered": column.TextColumn("Last good answer", width=115),
    "nodes": column.NumberColumn("Nodes", width=60),
    "missing": column.NumberColumn("Missing", width=65),
    "pool": column.TextColumn("Pool", width=85),
    "where": column.TextColumn("Where", width=150),
}
PAGES: dict[str, Any] = {
    "page": column.TextColumn("Page"),
    "of": column.TextColumn("Of"),
    "dialect": column.TextColumn("Dialect"),
    "state": column.TextColumn("State", width=150),
    "seen": column.TextColumn("Last read", width=175),
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
