"""How is this node, and why does its rho read as it does?"""

from __future__ import annotations

import streamlit as st

from dashboard import components, data, data_latency, data_quality, state, tables
from dashboard import viewmodels_node as vm
from dashboard import viewmodels_quality as vm_quality
from dashboard.ejected_panel import ejected_panel
from dashboard.hardware_panel import hardware_panel
from dashboard.node_controls import node_controls
from dashboard.viewmodels import QUALITY_PAGE
from dashboard.viewmodels_history import resolution
from dashboard.viewmodels_latency import first_token_figure
from dashboard.viewmodels_rho import occupancy

st.title("Node")
chosen = state.filters()
names = data.node_names()
if components.problem(names, data.now(), chosen.zone) or not names.value:
    if names.problem is None:
        st.info("No node is registered. Add one: `rhodeck nodes add NAME URL --pool POOL`.")
    st.stop()
state.recall("node", names.value)
name = st.selectbox("Node", names.value, key="node", bind="query-params", width=320)
state.remember("node", name)


def live() -> None:
    """Draw everything that moves."""
    at, zone = data.now(), chosen.zone
    found = data.node(name, chosen.span_s)
    if components.problem(found, at, zone) or found.value is None:
        return
    detail = found.value
    components.cards(vm.cards(detail), why=name)
    ejected_panel(name, at, zone)
    st.caption(vm.place(detail))
    left, right = components.two()
    with left:
        st.subheader("Why this rho")
        components.lines(vm.why(detail))
        st.caption(occupancy(detail.health))
    with right:
        st.subheader("Quality of the data")
        wrong = data_quality.quality(chosen.span_s, name).value or []
        components.lines(vm_quality.node_lines(wrong, at, zone) + vm.quality(detail, at, zone))
        st.page_link(QUALITY_PAGE, label="Data quality of this node", query_params={"source": name})
    history = data.timeline("node", name, chosen.span_s)
    if not components.problem(history, at, zone) and history.value is not None:
        left, right = components.two()
        with left:
            components.plot(vm.rho_figure(history.value.points, zone), key="node_rho", node=name)
            components.plot(vm.requests_figure(history.value.points, zone), key="node_requests", node=name)
        with right:
            components.plot(vm.rates_figure(history.value.points, zone), key="node_rates", node=name)
            components.plot(vm.kv_figure(history.value.points, zone), key="node_kv", node=name)
        st.caption(resolution(history.value))
    st.subheader("Latency in the chosen range")
    latency = data.node_latency(name, chosen.span_s)
    if not components.problem(latency, at, zone) and latency.value is not None:
        components.table(vm.latency_rows(latency.value), tables.LATENCY, key="latency")
    if points := data_latency.first_tokens(name, chosen.span_s).value:
        components.plot(first_token_figure(points, zone), key="node_ttft", node=name)
    st.subheader("Capacity")
    components.lines(vm.capacity_lines(detail.capacity))
    if detail.scatter:
        components.plot(vm.capacity_figure(detail.scatter, detail.capacity), key="node_capacity")
    hardware_panel(name, chosen.span_s, at, zone)


components.live(live, chosen.tick_s())
shown = data.node(name, chosen.span_s).value
if shown is not None:
    st.subheader("Actions")
    node_controls(name, shown.row.state)
