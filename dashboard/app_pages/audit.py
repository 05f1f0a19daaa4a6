"""Who did what, when and why, and can the record be trusted?"""

from __future__ import annotations

import streamlit as st

from dashboard import components, data, paging, state, tables
from dashboard import viewmodels_audit as vm

st.title("Audit")
chosen = state.filters()
text = (
    st.text_input("Filter this page by person, action, subject or reason", key="audit_filter", width=420)
    or ""
)
before = paging.before("audit")
found = data.audit_page(before, vm.PAGE_ROWS)
if components.problem(found, data.now(), chosen.zone) or found.value is None:
    st.stop()
shown = vm.matching(found.value, text)
if found.value:
    components.table(vm.rows(shown, chosen.zone), tables.AUDIT, key="audit")
else:
    st.markdown("Nobody has changed anything yet.")
st.caption(vm.shown_text(shown, found.value, text))
paging.controls("audit", vm.older_than(found.value))
if st.button("Verify the record", key="verify", icon=":material/verified:"):
    verified = data.audit_verified()
    if not components.problem(verified, data.now(), chosen.zone) and verified.value is not None:
        components.verdict(*vm.verdict(*verified.value))
