"""How the month-close page's tables look. Constants only.

Prevents: a column without its unit.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

column = st.column_config
_USD: Any = column.TextColumn("USD", alignment="right")

MONTHS: dict[str, Any] = {
    "month": column.TextColumn("Month", width=80),
    "state": column.TextColumn("State", width=80),
    "usd": _USD,
    "rows": column.NumberColumn("Lines", format="localized", width=70),
    "sha256": column.TextColumn("sha256", help="First 12 characters", width=120),
    "at": column.TextColumn("Closed"),
    "by": column.TextColumn("By"),
}
KINDS: dict[str, Any] = {"of": column.TextColumn("Part"), "usd": _USD}
CHECKS: dict[str, Any] = {
    "item": column.TextColumn("Item", width=130),
    "is": column.TextColumn("Is", width=115),
    "found": column.TextColumn("Found", width=210),
}
ADJUSTMENTS: dict[str, Any] = {
    "month": column.TextColumn("Adjusts"),
    "tenant": column.TextColumn("Tenant"),
    "why": column.TextColumn("Why", width=220),
    "requests": column.NumberColumn("Requests", format="localized"),
    "usd": _USD,
}
