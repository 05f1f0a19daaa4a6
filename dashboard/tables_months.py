"""How the month-close page's tables look. Constants only.

Prevents: a column without its unit.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

column = st.column_config
_USD: Any = column.TextColumn("USD", alignment="right", width=85)

MONTHS: dict[str, Any] = {
    "month": column.TextColumn("Month", width=76, pinned=True),
    "state": column.TextColumn("State", width=80),
    "usd": _USD,
    "rows": column.NumberColumn("Lines", format="localized", width=70),
    "sha256": column.TextColumn("sha256", help="First 12 characters", width=105),
    "at": column.TextColumn("Closed", width=165),
    "by": column.TextColumn("By", width=75),
}
KINDS: dict[str, Any] = {"of": column.TextColumn("Part", width=200), "usd": _USD}
CHECKS: dict[str, Any] = {
    "item": column.TextColumn("Item", width=130),
    "is": column.TextColumn("Is", width=115),
    "found": column.TextColumn("Found", width=210),
}
ADJUSTMENTS: dict[str, Any] = {
    "month": column.TextColumn("Adjusts", width=75),
    "tenant": column.TextColumn("Tenant", width=105),
    "why": column.TextColumn("Why", width=220),
    "requests": column.NumberColumn("Requests", format="localized", width=80),
    "hours": column.TextColumn("Node-hours", alignment="right", width=90),
    "usd": _USD,
}
RULES: dict[str, Any] = {
    "from": column.TextColumn("From month", width=90),
    "basis": column.TextColumn("Divided by", width=130),
    "unused": column.TextColumn("Unused parts", width=130),
    "weight": column.TextColumn(
        "Output token", width=90, alignment="right", help="A prompt token counts 1"
    ),
    "reason": column.TextColumn("Why", width=190),
    "who": column.TextColumn("Declared by", width=100),
}
COMMITMENTS: dict[str, Any] = {
    "of": column.TextColumn("Of", width=110),
    "nodes": column.NumberColumn("Nodes", width=60),
    "hourly": column.TextColumn("USD/h each", width=90, alignment="right"),
    "upfront": column.TextColumn("USD upfront", width=95, alignment="right"),
    "from": column.TextColumn("From", width=95),
    "to": column.TextColumn("Until", width=95),
    "source": column.TextColumn("Source", width=170),
    "who": column.TextColumn("Entered by", width=90),
}
