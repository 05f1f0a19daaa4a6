"""Which months are closed, and what still stops the next one?"""

from __future__ import annotations

import streamlit as st

from dashboard import components, data, data_months, state, tables_months, viewmodels_spend, words
from dashboard import viewmodels_months as vm
from dashboard.cost_rule_forms import cost_rules
from dashboard.month_controls import month_controls
from dashboard.node_time_form import node_time_form

st.title("Month close")
chosen = state.filters()
months = data_months.month_list()
if components.problem(months, data.now(), chosen.zone) or not months.value:
    st.stop()
components.table(vm.list_rows(months.value, chosen.zone), tables_months.MONTHS, key="months")
names = [month.name for month in months.value]
month = st.selectbox(
    "Month",
    names,
    index=names.index(vm.first_to_close(months.value)),
    key="close_month",
    bind="query-params",
    width=240,
)
found = data_months.month_book(month)
if not components.problem(found, data.now(), chosen.zone) and found.value is not None:
    book = found.value
    components.cards(vm.cards(book.spend, book.checks))
    if book.verified is not None:
        components.verdict(*vm.verified_text(book.verified))
        st.caption(
            f"sha256 `{book.verified.sha256}`. {vm.late_text(book.late, book.late_time, chosen.zone)}"
        )
        st.link_button("Download the closed file", viewmodels_spend.export_path(month))
    left, right = components.two()
    with left:
        st.subheader("Parts")
        components.table(vm.kind_rows(book.spend), tables_months.KINDS, key="kinds")
    with right:
        st.subheader("Checklist")
        if book.checks:
            components.table(
                vm.check_rows(book.checks), tables_months.CHECKS, key="checks", is_wrapped=True
            )
        else:
            st.markdown(words.plain(f"{month} is {book.spend.state}: nothing is to be checked."))
    adjustments = vm.adjustment_rows(book.spend)
    if adjustments["usd"]:
        st.subheader("Adjustments of closed months")
        components.table(adjustments, tables_months.ADJUSTMENTS, key="adjustments")
    month_controls(month, book.spend.state, book.checks)
    node_time_form()
declared = data_months.cost_rules()
if not components.problem(declared, data.now(), chosen.zone) and declared.value is not None:
    cost_rules(declared.value, chosen.zone)
