"""Which tenants will run over their budget, when, and what happens then?"""

from __future__ import annotations

import streamlit as st

from dashboard import charts_budgets, components, data, data_budgets, state, tables_budgets
from dashboard import viewmodels_budgets as vm

st.title("Budgets")
chosen = state.filters()
found = data_budgets.budgets()
if components.problem(found, data.now(), chosen.zone) or found.value is None:
    st.stop()
report = found.value
components.verdict(*vm.headline(report))
components.cards(vm.cards(report, data.now(), chosen.zone))
if report.budgets:
    components.table(vm.budget_rows(report), tables_budgets.BUDGETS, key="budgets", is_wrapped=True)
    st.caption(vm.method_text(report))
    names = vm.names(report)
    state.recall("budget_tenant", names)
    tenant = st.selectbox("Tenant", names, key="budget_tenant", bind="query-params", width=240)
    state.remember("budget_tenant", tenant)
    one = vm.one(report.budgets, tenant)
    left, right = components.two()
    with left:
        components.plot(
            charts_budgets.month_path(
                one,
                report.month,
                data.now(),
                report.thresholds,
                is_counted=report.counted_to is not None,
            ),
            key="budget_path",
        )
        if why := vm.no_forecast_text(one):
            st.caption(why)
    with right:
        st.subheader("At 100 %")
        if one.gateways:
            components.table(vm.gateway_rows(one), tables_budgets.GATEWAYS, key="gateways")
        else:
            st.markdown("No gateway is registered: nothing would happen.")
if report.unbudgeted:
    components.table(vm.unbudgeted_rows(report), tables_budgets.UNBUDGETED, key="unbudgeted")
