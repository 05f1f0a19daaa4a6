"""Does this model fit these GPUs, spread how, how fast at best, and what do our nodes run instead?"""

from __future__ import annotations

import streamlit as st

from dashboard import components, data, data_sizing, state, tables_sizing
from dashboard import viewmodels_sizing as vm
from dashboard.sizing_inputs import asked
from fleet.errors import InvalidInput

st.title("Sizing")
st.caption("From the model's own file and data sheets: bounds and plans, not measurements.")
try:
    found = asked()
except InvalidInput as exc:
    components.failure(exc, title="This cannot be sized")
    st.stop()
components.verdict(*vm.headline(found))
if found.warnings:
    components.lines(found.warnings)
answer = vm.cards(found)
if answer:
    components.cards(answer)
    st.subheader("Ways to spread it")
    components.table(vm.choice_rows(found), tables_sizing.CHOICES, key="choices")
    components.lines(vm.minds(found))
figure = vm.batch_figure(found)
if figure is not None:
    left, right = components.two()
    with left:
        components.plot(figure, key="batches")
    with right:
        st.subheader("Start it with")
        st.code(vm.command(found), language="bash")
    components.table(vm.flag_rows(found), tables_sizing.FLAGS, key="flags")
    st.subheader("What nodes run")
    launches = data_sizing.every_launch()
    if not components.problem(launches, data.now(), state.filters().zone) and launches.value is not None:
        if launches.value:
            pool = st.selectbox("Pool", list(launches.value), key="sizing_pool")
            runs = launches.value.get(pool or "", {})
            components.table(vm.difference_rows(found, runs), tables_sizing.DIFFERENCES, key="differences")
        else:
            st.info("No pool is registered yet: `rhodeck pools add` and `rhodeck nodes add` say what runs.")
refused = vm.refused_rows(found)
if refused["spread"]:
    st.subheader("Ways that cannot be")
    components.table(refused, tables_sizing.REFUSED, key="refused")
