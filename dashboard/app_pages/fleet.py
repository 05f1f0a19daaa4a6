"""Is the fleet healthy, what is wrong, and what changed?"""

from __future__ import annotations

import streamlit as st

from dashboard import components, data, state, tables, words
from dashboard import viewmodels_fleet as vm
from dashboard import viewmodels_load as load
from dashboard.acknowledge import acknowledge_button
from dashboard.nodes_panel import nodes_panel
from dashboard.rho_panel import rho_panel
from dashboard.viewmodels import ALL_SOURCES
from dashboard.viewmodels_attention import attention, nothing
from dashboard.viewmodels_changes import changes
from dashboard.viewmodels_history import resolution

st.title("Fleet")
chosen = state.filters()


def live() -> None:
    """Draw everything that moves."""
    at = data.now()
    found = data.fleet_now()
    if components.problem(found, at, chosen.zone) or found.value is None:
        return
    fleet, is_old = found.value, found.problem is not None
    if is_old and found.as_of is not None:
        at = found.as_of  # judged by the clock of then: nobody stopped but the database
    if not fleet.nodes:
        st.info(
            "No node is registered yet. Add a pool, then its nodes: "
            "`rhodeck pools add main --model MODEL`, `rhodeck nodes add NAME URL --pool main`.",
            title="Nothing to watch",
        )
    components.cards(vm.cards(fleet, is_last_known=is_old), why=ALL_SOURCES)
    st.caption(vm.coverage(fleet, data.now()))  # how old it is now, whoever stopped
    left, right = components.two()
    with left:
        st.subheader("Needs attention")
        wanting = attention(fleet, at, chosen.zone)
        if not wanting:
            st.markdown(nothing(fleet))
        components.notices(wanting, beside=acknowledge_button)
    with right:
        st.subheader("Recent changes")
        components.paragraphs(
            changes(fleet.changes, at, chosen.zone) or ["Nobody has changed anything yet."]
        )
    nodes_panel(fleet, at)
    st.subheader("Load")
    history = data.timeline("fleet", "", chosen.span_s)
    if not components.problem(history, at, chosen.zone) and history.value is not None:
        first, second = components.two()
        with first:
            components.plot(load.rho_figure(history.value.points, chosen.zone), key="fleet_rho")
        with second:
            components.plot(load.flow_figure(history.value.points, chosen.zone), key="fleet_flow")
        st.caption(resolution(history.value))
        st.caption(load.balance(fleet.health), help=load.BALANCE_HELP)
    st.subheader("Traffic by tenant")
    traffic = data.traffic(chosen.span_s)
    if components.problem(traffic, at, chosen.zone) or traffic.value is None:
        return
    if not traffic.value.flows:
        st.markdown("No gateway counted a request in this range. Widen it, or look at the Rollout page.")
        return
    components.table(
        vm.traffic_rows(traffic.value), tables.TRAFFIC, key="traffic", more=tables.TRAFFIC_MORE
    )


components.live(live, chosen.tick_s())
components.live(lambda: rho_panel(chosen.zone), chosen.tick_s())
st.caption(f"Traffic is of the chosen range; a {words.UNKNOWN} means that nobody knows.")
