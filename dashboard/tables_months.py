"""How the month-close page's tables look. Constants only.

Prevents: a column without its unit.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

column = st.column_config
_USD: Any = column.TextColumn("USD", alignment="right")

MONTHS: dict[str, Any] = {
    "month": column.TextColumn("Month", width="small"),
    "state": column.TextColumn("State", width="small"),
    "usd": _USD,
    "rows": column.NumberColumn("Lines", format="localized"),
    "sha256": column.TextColumn("sha256", help="First 12 characters"),
    "at": column.TextColumn("Closed"),
    "by": column.TextColumn("By"),
}
KINDS: dict[str, Any] = {"of": column.TextColumn("Part"), "usd": _USD}
CHECKS: dict[str, Any] = {
    "item": column.TextColumn("Item", width="medium"),
    "is": column.TextColumn("Is", width="small"),
    "found": column.TextColumn("Found", width="large"),
}
ADJUSTMENTS: dict[str, Any] = {
    "month": column.TextColumn("Adjusts"),
    "tenant": column.TextColumn("Tenant"),
    "why": column.TextColumn("Why", width="large"),
    "requests": column.NumberColumn("Requests", format="localized"),
    "usd": _USD,
}
