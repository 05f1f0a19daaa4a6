"""What is wrong now, who looks after it, and who was told?"""

from __future__ import annotations

import streamlit as st

from dashboard import alert_controls, alert_views, components, data, data_alerts, state
from dashboard import viewmodels_alerts as vm

st.title("Alerts")
chosen = state.filters()
alert_controls.asked_runbook()
linked = str(st.query_params.get("alert", ""))
show = st.segmented_control(
    "Show",
    list(alert_views.VIEWS),
    key="show",
    default="Now",
    required=True,
    bind="query-params",
    label_visibility="collapsed",
)


def live() -> None:
    """Draw everything that moves."""
    at = data.now()
    found = data_alerts.book()
    if components.problem(found, at, chosen.zone) or found.value is None:
        return
    book = found.value
    if book.unknown_since is not None:
        components.verdict("unknown", vm.stopped_text(book.unknown_since, at, chosen.zone))
    components.cards(vm.cards(book), is_last_known=found.problem is not None)
    entry = vm.chosen(book, linked)
    if linked and entry is None:
        st.info(f"Alert {linked[:20]} is not open and not of the last week.")
    elif entry is not None:
        alert_controls.row(vm.row(entry, at, chosen.zone, vm.watch(book)), is_linked=True)
    alert_views.VIEWS[show](book, entry, at, chosen.zone)


components.live(live, chosen.tick_s())
now = data_alerts.book().value
alert_controls.dialogs(now)
if now is not None and show == "Now" and now.silences:
    st.subheader("Silences that hold")
    alert_controls.silences(now.silences, chosen.zone)
if now is not None and show == "Rules":
    st.subheader("Change a rule")
    alert_controls.change_rule(now.rules)
if now is not None and show == "Notices":
    alert_controls.webhook_buttons(now.webhooks)
    st.caption("Add one: `rhodeck webhooks add NAME URL`, or `--kind alertmanager`.")
