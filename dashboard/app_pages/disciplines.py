"""Who goes first, how are batches made: what would each size, tier and tenant notice?"""

from __future__ import annotations

import streamlit as st

from dashboard import components, disciplines_inputs, study_panel, tables_studies
from dashboard import viewmodels_disciplines as vm
from fleet.errors import InvalidInput

st.title("Disciplines")
st.caption(
    "Simulated: the gateway's own gate before engines of 12 ms a step, on made traffic: 85 % short chats, "
    "14 % jobs and 0.7 % long contexts. A comparison, not a measurement of this fleet."
)
try:
    arguments = disciplines_inputs.asked()
except InvalidInput as exc:
    components.failure(exc, title="This cannot be compared")
    st.stop()
document = study_panel.answer(study_panel.Study(arguments), "disciplines", title="This cannot be compared")
if document is None:
    st.stop()
compared = document["comparisons"][0]
st.subheader(compared["question"])
components.verdict(*vm.headline(compared))
components.table(vm.case_rows(compared), tables_studies.CASES, key="cases", more=tables_studies.CASES_MORE)
left, right = components.two()
with left:
    components.plot(vm.tail_figure(compared), key="tails")
with right:
    st.subheader("Who notices")
    for title, lines in vm.notice_lines(compared):
        with st.expander(title, expanded=title == vm.notice_lines(compared)[0][0]):
            components.lines(lines)
st.subheader("Everybody, case by case")
components.table(vm.group_rows(compared), tables_studies.GROUPS, key="groups", height=480)
st.caption(document["traffic"])
