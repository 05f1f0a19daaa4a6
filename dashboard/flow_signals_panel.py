"""The panel of what stands beside a queue's balance: what is above its limit first, the rest on demand.

Prevents: an operator who reads forty lines to find the one that matters.
"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from control.flow_store import FlowNow
from dashboard import components
from dashboard import tables_flow as tables
from dashboard import viewmodels_flow_signals as vm


def signals_panel(states: Sequence[FlowNow]) -> None:
    """Draw what is above its limit, all else folded, and who got how much of each tier."""
    st.subheader("Bursts, KV, hot nodes, waits, repetitions")
    st.markdown(vm.others_text(states))
    if (above := vm.other_rows(states, is_above=True))["rule"]:
        components.table(above, tables.OTHERS, key="others")
    if (rest := vm.other_rows(states, is_above=False))["rule"]:
        with st.expander("Those below and those not known", key="others_rest"):
            components.table(rest, tables.OTHERS, key="others_below")
    st.subheader("Shares of tenants")
    shares = vm.share_rows(states)
    if shares["tenant"]:
        components.table(shares, tables.SHARES, key="shares")
    else:
        st.markdown("Not known: no tier gave tokens to tenants in the last five minutes.")
