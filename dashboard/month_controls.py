"""Beginning to close a month, closing it for good, correcting a closed one.

Prevents: a month closed by a slip of the mouse: its name must be typed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from control.month_checks import Check
from control.roles import Permission
from dashboard import access, actions_months, components, state, viewmodels_spend, words
from dashboard import viewmodels_months as vm
from fleet.errors import FleetError
from fleet.spend import MonthState


def month_controls(month: str, month_state: MonthState, checks: Sequence[Check]) -> None:
    """Draw what fits the month's state; disabled with the reason for who may not."""
    why_not = access.may_not(Permission.CLOSE_MONTHS)
    if why_not:
        st.caption(words.plain(why_not))
    if month_state == "open":
        st.markdown("To begin closing changes no number and can be taken back.")
        if st.button("Begin to close", key="month_start", disabled=why_not is not None, help=why_not):
            _do(lambda: actions_months.start_closing(month), f"{month} is closing: see the checklist.")
    elif month_state == "closing":
        _close_form(month, checks, why_not)
    elif month_state == "closed":
        _correction_form(month, why_not)


def _close_form(month: str, checks: Sequence[Check], why_not: str | None) -> None:
    off = why_not is not None
    open_items = vm.to_accept(checks)
    st.link_button("Download a preview of the file", viewmodels_spend.export_path(month), disabled=off)
    with st.form("month_close"):
        st.markdown("**Close for good**: what comes later is adjusted in the next month.")
        if open_items:
            components.lines(open_items)
        accept = bool(open_items) and st.checkbox(
            f"Accept {words.plural(len(open_items), 'open item')}", disabled=off, key="month_accept"
        )
        note = st.text_input("Note", max_chars=300, disabled=off, key="month_note")
        typed = st.text_input(f"Type {month} to confirm", disabled=off, key="month_typed")
        wants = st.form_submit_button(f"Close {month}", type="primary", disabled=off)
    if st.button("Back to open", key="month_stop", disabled=off):
        _do(lambda: actions_months.stop_closing(month), f"{month} is open again.")
    if not wants:
        return
    if (typed or "").strip() != month:
        st.error(f"Type {month} to close it.")
        return
    _do(
        lambda: actions_months.close_month(month, accept=accept, note=note or ""),
        f"{month} is closed and signed.",
    )


def _correction_form(month: str, why_not: str | None) -> None:
    off = why_not is not None
    with st.form("month_correct", clear_on_submit=False):
        st.markdown("**Correct it** by a line of the next month that closes")
        first, second = components.places(2)
        tenant = first.text_input("Tenant", disabled=off, key="correct_tenant")
        amount = second.text_input("USD, negative for less", disabled=off, key="correct_amount")
        reason = st.text_input("Reason", max_chars=300, disabled=off, key="correct_reason")
        wants = st.form_submit_button("Enter the correction", disabled=off)
    if wants:
        _do(
            lambda: actions_months.correct(
                month, tenant=(tenant or "").strip(), amount_usd=amount or "", reason=reason or ""
            ),
            f"The correction of {month} is entered: the next month that closes carries it, see there.",
        )


def _do(work: Callable[[], object], said: str) -> None:
    try:
        work()
    except FleetError as exc:
        components.failure(exc)
        return
    state.flash(said)
    st.rerun()
