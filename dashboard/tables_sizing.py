"""How the tables of the Sizing page look: labels, units. Constants only.

Prevents: a bound without the word that says so.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

column = st.column_config

CHOICES: dict[str, Any] = {
    "spread": column.TextColumn("Spread", width=120, pinned=True),
    "verdict": column.TextColumn("Verdict", width=90),
    "batch": column.TextColumn(
        "Batch", alignment="right", help="Largest, sequences of one replica", width=62
    ),
    "limit": column.TextColumn("Stopped by", width=125),
    "rate": column.TextColumn("Output tokens/s", alignment="right", help="At 40 % of the bound", width=110),
    "step": column.TextColumn(
        "Token, at least", alignment="right", help="Bound of a decoding step", width=100
    ),
    "cache": column.TextColumn("KV tokens a replica", alignment="right", help="Expected", width=130),
    "weights": column.TextColumn("Weights, GB a GPU", alignment="right", width=125),
}
REFUSED: dict[str, Any] = {
    "spread": column.TextColumn("Spread", width=140),
    "reason": column.TextColumn("Why it cannot be", width=440),
}
FLAGS: dict[str, Any] = {
    "flag": column.TextColumn("Flag", width=230),
    "why": column.TextColumn("Why", width=350),
}
DIFFERENCES: dict[str, Any] = {
    "node": column.TextColumn("Node", width=90),
    "setting": column.TextColumn("Setting", width=180),
    "runs": column.TextColumn("Runs", width=100),
    "suggested": column.TextColumn("Suggested", width=100),
    "verdict": column.TextColumn("Verdict", width=105),
}
