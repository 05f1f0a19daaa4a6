"""How the Budgets page's tables look. Constants only.

Prevents: a column without its unit.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

column = st.column_config

BUDGETS: dict[str, Any] = {
    "tenant": column.TextColumn("Tenant", width="small"),
    "standing": column.TextColumn("This month it", width="small"),
    "part": column.ProgressColumn("Spent, %", min_value=0, max_value=100, format="%.0f %%", width="small"),
    "usd": column.TextColumn("Spent of budget, USD", alignment="right"),
    "end": column.TextColumn(
        "Month's end, USD", alignment="right", help="Middle, and the interval for four months in five"
    ),
    "when": column.TextColumn("Budget spent"),
    "then": column.TextColumn("Then", width="medium"),
}
GATEWAYS: dict[str, Any] = {
    "gateway": column.TextColumn("Gateway", width="small"),
    "does": column.TextColumn("Does", width="small"),
    "why": column.TextColumn("By its own word", width="large"),
}
UNBUDGETED: dict[str, Any] = {
    "tenant": column.TextColumn("Tenant without a budget"),
    "usd": column.TextColumn("Spent this month, USD", alignment="right"),
}
