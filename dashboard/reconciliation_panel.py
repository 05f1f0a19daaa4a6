"""The part of the Spend page about days and invoices: what each day cost, and does the provider agree?

Prevents: an unexplained difference that is folded into a class.
"""

from __future__ import annotations

import streamlit as st

from control.roles import Permission
from dashboard import access, actions_invoices, components, data, data_reconciliation, state, words
from dashboard import tables_reconciliation as tables
from dashboard import viewmodels_reconciliation as vm
from dashboard.charts_days import days_chart
from dashboard.invoice_form import invoice_form
from dashboard.times import Zone
from fleet.errors import FleetError


def days_panel(month: str, zone: Zone) -> None:
    """Draw each day of the month, as a chart and as a table that sums to the month."""
    st.subheader("Days")
    found = data_reconciliation.month_days(month)
    if components.problem(found, data.now(), zone) or found.value is None:
        return
    if not found.value.is_known:
        st.markdown("No day of this month is recorded.")
        return
    components.plot(days_chart(found.value), key="month_days")
    with st.expander("Days as a table", icon=":material/table:"):
        components.table(vm.day_rows(found.value), tables.DAYS, key="days")
    st.caption(vm.days_text(found.value))


def reconciliation_panel(month: str, zone: Zone) -> None:
    """Draw the month's invoices beside the books, and the import."""
    st.subheader("Invoices")
    found = data_reconciliation.month_reconciliation(month)
    if components.problem(found, data.now(), zone):
        return
    report = found.value
    if report is None:
        st.markdown(f"No invoice of {words.plain(month)} was imported.")
    else:
        components.verdict(*vm.headline(report))
        components.cards(vm.cards(report))
        components.table(vm.class_rows(report), tables.CLASSES, key="invoice_classes", is_wrapped=True)
        rows = vm.differing_rows(report)
        if rows["what"]:
            st.markdown("**Where they differ, by day**, USD")
            components.table(rows, tables.CLASS_DAYS, key="invoice_days", height=420, is_wrapped=True)
        st.caption(vm.bridge_text(report))
        components.lines(vm.import_text(report, zone))
        with st.expander("Labels of the invoice", icon=":material/label:"):
            components.table(vm.label_rows(report.labels), tables.LABELS, key="invoice_labels")
            _assign(vm.label_names(report.labels))
    with st.expander("Import an invoice", icon=":material/upload_file:"):
        invoice_form(month)


def _assign(labels: list[tuple[str, str]]) -> None:
    why_not = access.may_not(Permission.CLOSE_MONTHS)
    if not labels:
        return
    if why_not:
        st.caption(words.plain(why_not))
    off = why_not is not None
    with st.form("invoice_assign"):
        first, second, third = components.places(3, min_px=200)
        provider, label = first.selectbox(
            "Label",
            labels,
            format_func=": ".join,
            disabled=off,
            key="assign_label",
        )
        node_class = second.selectbox("Is", vm.CLASSES, disabled=off, key="assign_class")
        pool = third.text_input("Only pool (empty: all)", disabled=off, key="assign_pool")
        if not st.form_submit_button("Assign", disabled=off, help=why_not):
            return
    try:
        only = (pool or "").strip()
        actions_invoices.assign_label(provider, label, f"{node_class}/{only}" if only else node_class)
    except FleetError as exc:
        components.failure(exc)
        return
    state.flash(f"{label} is {node_class}.")
    st.rerun()
