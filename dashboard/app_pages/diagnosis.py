"""Capacity or scheduling: what is wrong, why, and which knob turns it?"""

from __future__ import annotations

import streamlit as st

from dashboard import components, data, data_diagnosis, state, words
from dashboard import viewmodels_diagnosis as vm
from dashboard.diagnosis_panel import finding
from dashboard.viewmodels_attention import controller_stopped

st.title("Diagnosis")
chosen = state.filters()
intervals = list(data_diagnosis.INTERVALS)
state.recall("over", intervals)
over = st.segmented_control(
    "Over the last", intervals, key="over", default=intervals[0], required=True, bind="query-params"
)
state.remember("over", over or intervals[0])


def live() -> None:
    """Draw everything that moves."""
    at = data.now()
    found = data_diagnosis.verdict(over or intervals[0])
    if components.problem(found, at, chosen.zone) or found.value is None:
        return
    verdict = found.value
    fleet = data.fleet_now()
    shown = fleet.value if fleet.problem is None else None
    now = shown.health if shown is not None else None
    stopped = controller_stopped(shown, at, chosen.zone) if shown is not None else None
    silent = vm.not_heard(shown.gateways) if shown is not None and stopped is None else None
    is_partial = stopped is not None or silent is not None or found.problem is not None
    components.verdict(vm.tone_of(verdict, is_partial=is_partial), verdict.sentence)
    if silent is not None:
        st.warning(f"{words.plain(silent)}.")
    if stopped is not None:
        st.warning(f"{words.with_code(stopped.text)} The verdict is of what was measured before that.")
    components.cards(vm.cards(verdict, over or intervals[0], now, is_partial=is_partial))
    figure = vm.utilization_figure(verdict, chosen.zone)
    if figure is not None:
        components.plot(figure, key="utilization")
    for view in vm.findings(verdict, chosen.zone):
        finding(view)
    said = vm.cannot_tell(verdict)
    if said:
        st.subheader("What could not be looked for")
        components.lines(said)
    if found.as_of is not None:
        st.caption(vm.judged(chosen.zone.clock(found.as_of), over or intervals[0]))


components.live(live, data_diagnosis.TICK_S if chosen.is_live else None)
