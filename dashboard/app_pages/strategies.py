"""Which of up to six ways to provision serves this traffic best, and does every single request agree?"""

from __future__ import annotations

import streamlit as st

from dashboard import charts_estimates as charts
from dashboard import comparison_inputs, components, data_estimates, strategy_editor
from dashboard import tables_estimates as tables
from dashboard import viewmodels_comparison as vm
from dashboard.simulation_panel import simulation_panel
from fleet.errors import InvalidInput

st.title("Strategies")
st.caption("Change a cell and the months are simulated again. Traffic and prices are set under Estimates.")
try:
    start = data_estimates.ready(comparison_inputs.document())
    ready = comparison_inputs.written(data_estimates.ready(strategy_editor.edited(start.document)))
    strategy_editor.compared()
    found = data_estimates.answer(ready)
except InvalidInput as exc:
    components.failure(exc, title="These strategies cannot be compared")
    st.stop()
compared = found.compared
components.verdict(*vm.headline(ready, compared))
components.table(
    vm.outcome_rows(ready, compared), tables.OUTCOMES, key="outcomes", more=tables.OUTCOMES_MORE
)
left, right = components.two()
with left:
    components.plot(charts.cost_and_refusals(compared), key="cost_refusals")
with right:
    components.plot(charts.nodes_over_time(compared), key="nodes_hours")
st.subheader("Every request simulated")
simulation_panel(ready, compared)
comparison_inputs.share(ready)
