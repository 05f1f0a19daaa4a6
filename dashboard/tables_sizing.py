"""How the tables of the Sizing page look: labels, units. Constants only.

Prevents: a bound without the word that says so.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

column = st.column_config

CHOICES: dict[str, Any] = {
    "spread": column.TextColumn("Spread", width="medium", pinned=True),
    "batch": column.TextColumn("Largest batch", alignment="right", help="Sequences of one replica"),
    "limit": column.TextColumn("Stopped by"),
    "step": column.TextColumn("Token, at least", alignment="right", help="Bound of a decoding step"),
    "rate": column.TextColumn("Output tokens/s", alignment="right", help="At 40 % of the bound"),
    "cache": column.TextColumn("KV tokens a replica", alignment="right", help="Expected"),
    "weights": column.TextColumn("Weights, GB a GPU", alignment="right"),
    "verdict": column.TextColumn("Verdict", width="large", help="With what to mind"),
}
REFUSED: dict[str, Any] = {
    "spread": column.TextColumn("Spread", width="medium"),
    "reason": column.TextColumn("Why it cannot be", width="large"),
}
FLAGS: dict[str, Any] = {
    "flag": column.TextColumn("Flag", width="medium"),
    "why": column.TextColumn("Why", width="large"),
}
DIFFERENCES: dict[str, Any] = {
    "node": column.TextColumn("Node"),
    "setting": column.TextColumn("Setting"),
    "runs": column.TextColumn("Runs"),
    "suggested": column.TextColumn("Suggested"),
    "verdict": column.TextColumn("Verdict"),
}
