"""What did a month cost, by tenant, tier and model, and does it add up?"""

from __future__ import annotations

import streamlit as st

from dashboard import components, data, state, tables
from dashboard import viewmodels_spend as vm
from dashboard.exports_panel import exports_panel
from dashboard.prices_panel import prices_panel
from dashboard.reconciliation_panel import days_panel, reconciliation_panel

st.title("Spend")
chosen = state.filters()
months = data.months()
if components.problem(months, data.now(), chosen.zone) or not months.value:
    st.stop()
labels = {month.name: vm.month_label(month) for month in months.value}
month = st.selectbox(
    "Month", list(labels), format_func=labels.__getitem__, key="month", bind="query-params", width=240
)
found = data.spend(month)
if not components.problem(found, data.now(), chosen.zone) and found.value is not None:
    spend = found.value
    components.cards(vm.cards(spend))
    for line in vm.warnings(spend):
        st.warning(line)
    if not spend.lines:
        st.info("No node was observed up in this month: nothing is recorded.")
    for column, by in zip(components.places(3, min_px=330), ("tenant", "tier", "model"), strict=True):
        with column:
            st.subheader(f"By {by}")
            components.table(vm.subtotal_rows(spend, by), tables.SUBTOTALS, key=f"by_{by}")
    days_panel(month, chosen.zone)
    st.subheader("Lines")
    components.table(vm.line_rows(spend), tables.SPEND, key="lines")
    exports_panel(month, chosen.zone)

reconciliation_panel(month, chosen.zone)
st.subheader("Prices of node-hours")
prices = data.price_list()
if not components.problem(prices, data.now(), chosen.zone) and prices.value is not None:
    prices_panel(prices.value, chosen.zone)
