"""Puts what happened onto every chart over time, unless the strip says plain.

Prevents: a page that forgets to, and a chart that is lost because its marks could not be read.
"""

from __future__ import annotations

import streamlit as st

from dashboard import data_alerts, state
from dashboard.charts import Figure
from dashboard.charts_marks import with_marks


def marked(figure: Figure, node: str | None) -> Figure:
    """Return a figure with the marks of the chosen range, of one node or of the fleet."""
    chosen = state.filters()
    if figure.time is None or not chosen.has_marks:
        return figure
    found = data_alerts.marks(chosen.span_s, node).value or []
    return with_marks(figure, found, linked())


def linked() -> int | None:
    """Return the alert the address points at."""
    text = str(st.query_params.get("mark", ""))
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 18 else None
