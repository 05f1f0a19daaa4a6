"""How the table of dropped files looks. Constants only.

Prevents: a column without its unit.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

column = st.column_config

DROPS: dict[str, Any] = {
    "to": column.TextColumn("Destination", width=110),
    "file": column.TextColumn("File", width=300),
    "is": column.TextColumn("State", width=90),
    "at": column.TextColumn("When", width=170),
    "tries": column.NumberColumn("Tries", width=60),
    "problem": column.TextColumn("Problem", width=300),
}
