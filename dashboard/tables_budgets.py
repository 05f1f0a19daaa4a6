"""How the Budgets page's tables look. Constants only.

Prevents: a column without its unit.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

column = st.column_config

BUDGETS: dict[str, Any] = {
    "tenant": column.TextColumn("Tenant", width=112),
    "standing": column.TextColumn("Standing", width=105),
    "part": column.ProgressColumn("Spent, %", min_value=0, max_value=100, format="%.0f %%", width=68),
    "usd": column.TextColumn("Spent, USD", alignment="right", width=90),
    "end": column.TextColumn(
        "Month's end", alignment="right", width=100, help="USD: middle, and the interval for four in five"
    ),
    "then": column.TextColumn("Then", width=105),
}
GATEWAYS: dict[str, Any] = {
    "gateway": column.TextColumn("Gateway", width=85),
    "does": column.TextColumn("Does", width=120),
    "why": column.TextColumn("By its own word", width=320),
}
UNBUDGETED: dict[str, Any] = {
    "tenant": column.TextColumn("Tenant without a budget", width=200),
    "usd": column.TextColumn("Spent this month, USD", alignment="right", width=170),
}
