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
    "page": column.TextColumn("Page", width=95),
    "state": column.TextColumn("State", width=150),
    "seen": column.TextColumn("Last read", width=165),
    "dialect": column.TextColumn("Dialect", width=110),
    "of": column.TextColumn("Of", width=80),
    "from": column.TextColumn("From", width=150),
    "not exported": column.TextColumn(
        "Not exported by this engine", help="Quantities this engine family has no metric for", width=240
    ),
}
GPUS: dict[str, Any] = {
    "gpu": column.TextColumn("GPU", width=50),
    "use": column.NumberColumn("Use, %", format="%.0f", help="Time in which some kernel ran", width=65),
    "tensor": column.NumberColumn(
        "Tensor, %", format="%.0f", help="Time in which tensor cores worked", width=80
    ),
    "power": column.NumberColumn("Power, W", format="%.0f", width=80),
    "memory": column.TextColumn("Memory used", width=120),
    "temperature": column.NumberColumn("°C", format="%.0f", width=50),
    "error": column.TextColumn("Last error", width=130),
    "age": column.TextColumn("Age", width=65),
    "model": column.TextColumn("Model", width=160),
    "uuid": column.TextColumn("UUID", width=150),
}
