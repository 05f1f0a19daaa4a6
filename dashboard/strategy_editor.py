"""The table in which strategies are changed, some columns at a time. Kept in the comparison's document.

Prevents: a change that is lost with the page or with the columns chosen, and a wrong cell that empties the
table.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import streamlit as st

from dashboard import comparison_inputs, components, data_estimates
from dashboard.strategy_rows import GROUPS, SCALERS, rows_of, strategies_of
from fleet.comparison import MAX_STRATEGIES
from fleet.errors import InvalidInput

column = st.column_config
_COUNT: dict[str, Any] = {"min_value": 0, "max_value": 10_000, "step": 1}
#: Widths leave room for the sign of an editable column beside its name.
_LOOK: dict[str, Any] = {
    "name": column.TextColumn("Name", required=True, max_chars=60, width=170, pinned=True),
    "nodes": column.NumberColumn("Nodes", required=True, help="At the start", width=82, **_COUNT),
    "reserved": column.NumberColumn("Reserved", help="Of the nodes that never stop", width=98, **_COUNT),
    "wait": column.NumberColumn(
        "Longest wait, s", min_value=0, help="Who would wait longer is refused. Empty: nobody is", width=135
    ),
    "scaler": column.SelectboxColumn("Autoscaler", options=list(SCALERS), default="none", width=112),
    "least": column.NumberColumn("Least", help="Nodes", width=76, **_COUNT),
    "most": column.NumberColumn("Most", help="Nodes", width=74, **_COUNT),
    "rho": column.NumberColumn("Target rho", min_value=0.01, max_value=10.0, format="%.2f", width=105),
    "cold": column.NumberColumn("Cold start, s", min_value=0, max_value=86_400, width=122),
    "plan": column.TextColumn(
        "Plan", help="If scheduled: hours and nodes, as 0-8: 4, 8-22: 7, 22-24: 4", width=240
    ),
    "spot": column.NumberColumn("Spot nodes", width=110, **_COUNT),
    "spot price": column.NumberColumn("Spot USD/h", min_value=0, format="%.2f", width=112),
    "warm": column.NumberColumn("Spot warm, s", min_value=0, max_value=86_400, width=122),
    "taken": column.NumberColumn(
        "Taken away after, h",
        min_value=0.01,
        help="Each spot node is interrupted after running so long",
        width=165,
    ),
}
_GROUP, _READ = "strategies_group", "strategies_read"


def _regrouped() -> None:
    """Begin the table anew from what was compared last; stay where its edits were not all compared."""
    read = st.session_state.get(_READ)
    if read is not None and read == _edits():
        st.session_state["strategies_version"] += 1
    else:
        st.session_state[_GROUP] = st.session_state.get("strategies_shown")
        st.toast("Mend or remove the row that cannot be compared first", icon=":material/edit_off:")


def compared() -> None:
    """Note that every edit in the table is in the document that was kept."""
    st.session_state[_READ] = deepcopy(_edits())


def _edits() -> dict[str, Any]:
    """Return what was typed into the table since it began, as the browser keeps it."""
    return dict(st.session_state.get(f"strategies_{st.session_state['strategies_version']}") or {})


def edited(document: dict[str, Any]) -> dict[str, Any]:
    """Draw the table and return the document with what it holds. Raises InvalidInput with the row."""
    before = document["strategies"]
    version = st.session_state.setdefault("strategies_version", 0)
    table = f"strategies_{version}"
    if table not in st.session_state or "strategies_start" not in st.session_state:
        st.session_state["strategies_start"] = before  # the table keeps its own edits of what it began with
    start = st.session_state["strategies_start"]
    group = st.segmented_control(
        "Columns",
        list(GROUPS),
        default=next(iter(GROUPS)),
        required=True,
        key=_GROUP,
        on_change=_regrouped,
        label_visibility="collapsed",
    )
    st.session_state["strategies_shown"] = group
    st.session_state[_READ] = None  # until every row was compared
    rows = st.data_editor(
        _records(rows_of(start)),
        column_config=_LOOK,
        column_order=GROUPS[group],
        num_rows="dynamic",
        hide_index=True,
        placeholder="",
        key=table,
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
    found = strategies_of(rows, start)
    if found != [dict(one) for one in start]:
        st.session_state["comparison_chosen"] = True
    names = [one["name"] for one in found]
    kept = document["baseline"] if document["baseline"] in names else (names or [""])[0]
    baseline = right.selectbox(
        "Compared with", names, index=names.index(kept) if kept in names else 0, key="baseline"
    )
    return document | {"strategies": found, "baseline": baseline or kept}


def _records(rows: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(rows, line, strict=True)) for line in zip(*rows.values(), strict=True)]
