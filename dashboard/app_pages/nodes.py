"""Which nodes are there, where do they come from, and how are they added and taken out?"""

from __future__ import annotations

import streamlit as st

from dashboard import components, data, data_nodes, state, tables_nodes
from dashboard import viewmodels_nodes as vm
from dashboard.node_controls import node_controls
from dashboard.node_forms import node_form, source_actions, source_form

st.title("Nodes")
chosen = state.filters()


def live() -> None:
    """Draw the lists."""
    at, found = data.now(), data_nodes.registry()
    if components.problem(found, at, chosen.zone) or found.value is None:
        return
    registry = found.value
    components.verdict(*vm.summary(registry, at))
    if registry.nodes:
        components.table(
            vm.node_rows(registry, at, chosen.zone), tables_nodes.REGISTRY, key="registry", is_wrapped=True
        )
    else:
        st.markdown("No node is registered.")
    st.subheader("Discovery sources")
    if registry.sources:
        rows = vm.source_rows(registry.sources, at, chosen.zone)
        components.table(rows, tables_nodes.SOURCES, key="sources", is_wrapped=True)
        components.lines(vm.source_lines(registry.sources))
    else:
        st.markdown("No source is registered: nodes come and go by hand only.")


components.live(live, chosen.tick_s())
now = data_nodes.registry().value
if now is not None:
    pools = [pool.name for pool in now.pools]
    if now.sources:
        source_actions(now.sources)
    st.subheader("Change")
    if now.nodes:
        st.markdown("**One node**")
        states = {node.name: node.state for node in now.nodes}
        name = st.selectbox("Node", list(states), key="change_node", width=320)
        node_controls(name, states[name])
    with st.expander("Add a node"):
        node_form(pools)
    with st.expander("Add a discovery source"):
        source_form(pools)
