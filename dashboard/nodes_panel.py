"""The fleet page's table of nodes, with what gateways hold against them.

Prevents: an ejected node that reads like an idle one.
"""

from __future__ import annotations

from datetime import datetime

import streamlit as st

from dashboard import components, tables, words
from dashboard import viewmodels_fleet as vm
from dashboard.data import FleetNow
from dashboard.viewmodels_ejected import remarks
from dashboard.viewmodels_overload import two_rhos


def nodes_panel(fleet: FleetNow, at: datetime) -> None:
    """Draw the table; nothing where no node is registered."""
    if not fleet.nodes:
        return
    st.subheader("Nodes")
    why_apart = two_rhos(fleet)
    if why_apart is not None:
        st.caption(words.with_code(why_apart))
    rows = vm.node_rows(fleet.nodes, remarks(fleet.gateways, at))
    components.table(rows, tables.NODES, key="nodes", more=tables.NODES_MORE, remarks=tables.NODES_REMARKS)
