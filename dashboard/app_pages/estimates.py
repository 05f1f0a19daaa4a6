"""What does serving this traffic cost, who is refused for it, and what would change the answer?"""

from __future__ import annotations

import streamlit as st

from dashboard import charts_estimates as charts
from dashboard import comparison_inputs, components, data_estimates, estimate_inputs
from dashboard import tables_estimates as tables
from dashboard import viewmodels_comparison as vm
from dashboard.traffic_panel import traffic_panel
from fleet.errors import InvalidInput

st.title("Estimates")
st.caption("Months of 720 hours, simulated: forecasts from the inputs below, not measurements.")
top = st.container()
with st.expander("Traffic, nodes and prices", icon=":material/tune:"):
    try:
        ready = comparison_inputs.asked(comparison_inputs.document())
    except InvalidInput as exc:
        ready = None
        components.failure(exc, title="These inputs have no answer")
    st.markdown("**From the fleet, or from a file**")
    traffic_panel()
if ready is None:
    top.error("The inputs below have no answer: open them to see why.")
    st.stop()
with top:
    found = data_estimates.answer(ready)
    compared = found.compared
    components.verdict(*vm.headline(ready, compared))
    components.cards(vm.cards(ready, compared))
    wrong, others = vm.wrong_answers(ready, compared)
    for line in wrong:
        st.warning(line)
components.table(
    vm.outcome_rows(ready, compared), tables.OUTCOMES, key="outcomes", more=tables.OUTCOMES_MORE
)
left, right = components.two()
with left:
    components.plot(charts.cost_and_refusals(compared), key="cost_refusals")
with right:
    components.plot(charts.nodes_over_time(compared), key="nodes_hours")
st.subheader("Who notices")
left, right = components.two()
with left:
    components.plot(charts.refused_by_tier(compared), key="by_tier")
    st.caption(vm.split(ready))
with right:
    components.table(vm.noticed_rows(compared), tables.NOTICED, key="noticed", more=("offered",))
st.subheader("What would change the answer")
left, right = components.two()
with left:
    components.plot(charts.price_of_a_refusal(compared, ready.refusal_usd), key="refusal_price")
with right:
    components.lines(
        [*vm.cheapest_sentences(compared), *vm.flips(found.axes), vm.reserve_line(found.reserve), *others]
    )
names, places = [o.name for o in compared.outcomes], components.places(3, min_px=300)
for place, axis in zip(places, found.axes, strict=True):
    with place:
        components.plot(charts.sensitivity(axis, names, vm.stands_at(ready, axis)), key=axis.axis.value)
components.table(vm.band_rows(compared, found.axes), tables.BANDS, key="bands")
st.subheader("Inputs")
components.table(vm.input_rows(ready), tables.INPUTS, key="inputs")
comparison_inputs.share(ready)
with st.expander("The closed form, and what it hides", icon=":material/calculate:"):
    estimate_inputs.closed_form_panel()
