"""The panel that shows every rho and, for the one chosen, why it reads as it does."""

from __future__ import annotations

import streamlit as st

from dashboard import components, data, data_rho, tables
from dashboard import viewmodels_rho as vm
from dashboard.times import Zone


def rho_panel(zone: Zone) -> None:
    """Draw the table of rhos and the formula of one of them with its values."""
    at = data.now()
    st.subheader("Every rho")
    found = data_rho.every_rho()
    if components.problem(found, at, zone) or not found.value:
        if found.problem is None:
            st.markdown("No verdict yet: the controller writes them with each scrape round.")
        return
    components.table(vm.rows(found.value), tables.RHO, key="every_rho", more=tables.RHO_MORE)
    by_name = {vm.subject(view): view for view in found.value}
    with st.expander("Why this number", key="why_rho"):
        chosen = st.selectbox("Of", list(by_name), key="why_of", width=320)
        view = by_name.get(chosen)
        if view is None:
            return
        components.lines([*vm.why(view), vm.occupancy(view)])
        limits = vm.limit_rows(view)
        if limits["limit"]:
            components.table(limits, tables.LIMITS, key="rho_limits")
