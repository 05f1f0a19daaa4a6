"""What would admission control cost against provisioning for the peak, and what does that number hide?"""

from __future__ import annotations

import streamlit as st

from dashboard import components, tables
from dashboard import viewmodels_estimates as vm
from dashboard.estimate_inputs import estimate_inputs
from fleet.cost import closed_form
from fleet.errors import InvalidInput

st.title("Estimates")
st.caption("A closed form from the numbers below: an estimate, not a measurement and not a forecast.")
try:
    found = closed_form(estimate_inputs())
except InvalidInput as exc:
    components.failure(exc, title="These inputs have no answer")
    st.stop()
components.cards(vm.cards(found))
wrong, others = vm.wrong_answer(found)
for line in wrong:
    st.error(line)
st.subheader("Every way to provision")
components.table(vm.option_rows(found), tables.OPTIONS, key="options")
left, right = components.two()
with left:
    st.subheader("What this hides")
    components.lines(vm.hidden(found))
with right:
    st.subheader("Mind")
    components.lines(others)
left, right = components.two()
with left:
    st.subheader("At other spot prices")
    components.table(vm.spot_rows(found), tables.SPOT, key="spot")
with right:
    st.subheader("In calendar months")
    components.table(vm.calendar_rows(found), tables.CALENDAR, key="calendar")
