"""How many requests/s may an engine admit, how many at once, so that they are served in time; and today?"""

from __future__ import annotations

from typing import Any

import streamlit as st

from dashboard import components, data, data_studies, goodput_inputs, state, study_panel, tables_studies
from dashboard import viewmodels_goodput as vm
from fleet.errors import InvalidInput

st.title("Goodput")
st.caption(
    "From the engine's step times: a forecast for one engine, to be checked by the simulation below."
)
known = data_studies.engines()
components.problem(known, data.now(), state.filters().zone)
try:
    asked = goodput_inputs.asked(known.value or [])
    advice = vm.advised(asked)
except InvalidInput as exc:
    components.failure(exc, title="These inputs have no answer")
    st.stop()
components.verdict(*vm.headline(asked, advice))
if vm.cards(asked, advice):
    components.cards(vm.cards(asked, advice))
simulated: list[dict[str, Any]] = []
if advice.best is not None and st.toggle(
    "Confirm by simulation", key="goodput_simulate", bind="query-params"
):
    study = study_panel.Study(vm.simulation(asked, advice))
    found = study_panel.answer(study, "goodput", title="The simulation has no answer")
    if found is not None:
        simulated = found["simulated"]
        st.info(vm.overload_words(found))
left, right = components.two()
figure = vm.latency_figure(asked, advice, simulated)
with left:
    if figure is not None:
        components.plot(figure, key="latency_curve")
with right:
    components.plot(vm.rate_figure(advice), key="rate_by_batch")
if advice.best is not None:
    st.subheader("Set this")
    components.lines(advice.words)
components.table(vm.choice_rows(asked, advice), tables_studies.CHOICES, key="choices")
