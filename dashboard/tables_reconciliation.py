"""How the tables of days and invoices look. Constants only.

Prevents: a column without its unit.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

column = st.column_config


def _usd(name: str, help_: str | None = None, *, width: int = 95) -> Any:
    return column.TextColumn(f"{name}, USD", alignment="right", help=help_, width=width)


DAYS: dict[str, Any] = {
    "day": column.TextColumn("Day", width=88),
    "usd": _usd("Total"),
    "nodes": _usd("Nodes"),
    "charges": _usd("Unused, platform", "Unused commitments and platform overhead", width=148),
    "adjustments": _usd(
        "Adjustments", "Of closed months, on the first day of the month that carries them", width=125
    ),
    "hours": column.TextColumn("Node-hours", alignment="right", width=82),
}


def _part(name: str, width: int, help_: str) -> Any:
    return column.TextColumn(name, alignment="right", width=width, help=f"USD. {help_}")


_DIFFERENCE: dict[str, Any] = {
    "difference": _part("Difference", 74, "Invoice less ours: hours, price and unexplained together"),
    "hours": _part("By hours", 70, "Other hours, at our price"),
    "price": _part("By price", 62, "Another price, for the invoice's hours"),
    "unexplained": _part("Unexplained", 85, "Stays on its row; spread over nothing"),
}
CLASSES: dict[str, Any] = {
    "class": column.TextColumn("Node class", width=110),
    "ours": _part("Ours", 75, "Our books"),
    "invoice": _part("Invoice", 75, "As imported"),
    **_DIFFERENCE,
}
CLASS_DAYS: dict[str, Any] = {
    "what": column.TextColumn("Day and class", width=110),
    "both": column.TextColumn(
        "Hours, both", width=85, help="Node-hours: ours / invoice", alignment="right"
    ),
    **_DIFFERENCE,
    "why": column.TextColumn("Why", width=90),
}
LABELS: dict[str, Any] = {
    "provider": column.TextColumn("Provider", width=90),
    "label": column.TextColumn("Label", width=180),
    "is": column.TextColumn("Is", width=130),
    "lines": column.NumberColumn("Lines", format="localized", width=70),
    "usd": _usd("Amount"),
}
READ: dict[str, Any] = {
    "role": column.TextColumn("What", width=90),
    "column": column.TextColumn("Column of the file", width=200),
    "first": column.TextColumn("First value", width=200),
}
