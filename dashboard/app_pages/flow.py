"""Is the queue in balance, and who holds the places?"""

from __future__ import annotations

import streamlit as st

from dashboard import charts_flow, components, data, data_flow, state
from dashboard import tables_flow as tables
from dashboard import viewmodels_flow as vm
from dashboard.flow_signals_panel import signals_panel

st.title("Flow")
chosen = state.filters()
options = [vm.label(*subject) for subject in data_flow.subjects().value or [("fleet", "")]]
state.recall("subject", options)
picked = st.selectbox("Queue", options, key="subject", bind="query-params", width=320)
state.remember("subject", picked)
scope, name = vm.subject_of(picked or vm.FLEET)


def live() -> None:
    """Draw everything that moves."""
    at = data.now()
    found, policy = data_flow.flow(scope, name, chosen.span_s), data.policy().value
    if components.problem(found, at, chosen.zone) or found.value is None:
        return
    flow = found.value
    is_last_known = found.problem is not None
    present = [] if is_last_known else vm.fresh(flow.states, at, flow.stale_s)
    now = vm.find(flow.states, scope, name)
    is_old = now is not None and now not in present
    cards = vm.cards(now, flow.slo, vm.policy_of(policy), is_old=is_old)
    components.cards(cards, is_last_known=is_last_known)
    if now is None:
        st.info(
            "Balance is judged from whole minutes of nodes that answer: look again two minutes after the "
            "first round.",
            title="Nothing counted yet",
        )
    else:
        st.subheader("Four signals")
        components.table(vm.signal_rows(now, is_old=is_old), tables.SIGNALS, key="signals")
        if not is_old and (raised := vm.raised_lines(now)):
            components.lines(raised)
        st.caption(vm.RULE)
        st.subheader("Little's law by stage")
        components.table(vm.stage_rows(now), tables.STAGES, key="stages")
        st.caption(vm.stage_caption(now, chosen.zone))
        st.subheader("What the slowest hold")
        components.table(vm.tail_rows(now), tables.TAILS, key="tails")
        first, second = components.two()
        with first:
            title = "Queue wait" if scope == "tier" else "End to end"
            components.plot(charts_flow.latency_figure(flow.points, chosen.zone, title), key="tail")
        with second:
            components.plot(charts_flow.places_figure(flow.points, chosen.zone), key="places")
    if flow.curves:
        st.subheader("Utilization curve by pool")
        components.plot(charts_flow.utilization_figure(flow.curves), key="utilization")
        components.lines(vm.curve_lines(flow.curves))
    if flow.states:
        st.subheader("Every queue")
        rows = vm.subject_rows(flow.states, at, chosen.zone, present)
        components.table(rows, tables.SUBJECTS, key="queues")
        signals_panel(present)


components.live(live, chosen.tick_s())
