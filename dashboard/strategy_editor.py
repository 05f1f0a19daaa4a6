"""The table in which strategies are changed. Kept in the comparison's document.

Prevents: a change that is lost with the page, and a wrong cell that empties the table.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from dashboard import comparison_inputs, components, data_estimates
from dashboard.strategy_rows import COLUMNS, SCALERS, rows_of, strategies_of
from fleet.comparison import MAX_STRATEGIES
from fleet.errors import InvalidInput

column = st.column_config
_COUNT: dict[str, Any] = {"min_value": 0, "max_value": 10_000, "step": 1}
_LOOK: dict[str, Any] = {
    "name": column.TextColumn("Name", required=True, max_chars=60, width="medium", pinned=True),
    "nodes": column.NumberColumn("Nodes", required=True, help="At the start", **_COUNT),
    "reserved": column.NumberColumn("Reserved", help="Of the nodes that never stop", **_COUNT),
    "wait": column.NumberColumn(
        "Longest wait, s", min_value=0, help="Who would wait longer is refused. Empty: nobody is"
    ),
    "scaler": column.SelectboxColumn("Autoscaler", options=list(SCALERS), required=True, default="none"),
    "least": column.NumberColumn("Least", **_COUNT),
    "most": column.NumberColumn("Most", **_COUNT),
    "rho": column.NumberColumn("Target rho", min_value=0.01, max_value=10.0, format="%.2f"),
    "cold": column.NumberColumn("Cold start, s", min_value=0, max_value=86_400),
    "plan": column.TextColumn("Plan", help="If scheduled: hours and nodes, as 0-8: 4, 8-22: 7, 22-24: 4"),
    "spot": column.NumberColumn("Spot nodes", **_COUNT),
    "spot price": column.NumberColumn("Spot USD/h", min_value=0, format="%.2f"),
    "warm": column.NumberColumn("Spot warm, s", min_value=0, max_value=86_400),
    "taken": column.NumberColumn(
        "Taken away after, h", min_value=0.01, help="Each spot node is interrupted after running so long"
    ),
}


def edited(document: dict[str, Any]) -> dict[str, Any]:
    """Draw the table and return the document with what it holds. Raises InvalidInput with the row."""
    before = document["strategies"]
    version = st.session_state.setdefault("strategies_version", 0)
    start = st.session_state.get("strategies_start")
    if start is None or start[0] != version:
        start = (version, before)  # the table keeps its own edits of what it began with
        st.session_state["strategies_start"] = start
    rows = st.data_editor(
        _records(rows_of(start[1])),
        column_config=_LOOK,
        column_order=COLUMNS,
        num_rows="dynamic",
        hide_index=True,
        placeholder="",
        key=f"strategies_{version}",
    )
    left, right = components.two()
    if left.button(
        "Size them from the traffic again", icon=":material/restart_alt:", key="strategies_reset"
    ):
        st.session_state["strategies_version"] = version + 1
        st.session_state["comparison_chosen"] = False
        sized = {k: v for k, v in document.items() if k not in ("strategies", "baseline")}
        comparison_inputs.keep(data_estimates.ready(sized).document)
        st.rerun()
    if len(rows) > MAX_STRATEGIES:
        raise InvalidInput(f"{len(rows)} strategies", field="strategies", hint=f"At most {MAX_STRATEGIES}")
    found = strategies_of(rows, start[1])
    if found != [dict(one) for one in start[1]]:
        st.session_state["comparison_chosen"] = True
    names = [one["name"] for one in found]
    kept = document["baseline"] if document["baseline"] in names else (names or [""])[0]
    baseline = right.selectbox(
        "Compared with", names, index=names.index(kept) if kept in names else 0, key="baseline"
    )
    return document | {"strategies": found, "baseline": baseline or kept}


def _records(rows: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(rows, line, strict=True)) for line in zip(*rows.values(), strict=True)]
