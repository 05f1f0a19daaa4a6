"""Acknowledging an alert: a button beside each open one, usable by who may.

Prevents: an alert everybody sees and nobody takes.
"""

from __future__ import annotations

import streamlit as st

from control.roles import Permission
from dashboard import access, actions, components, state
from dashboard.viewmodels import Notice
from fleet.errors import FleetError


def acknowledge_button(notice: Notice) -> None:
    """Draw the button of an alert nobody has acknowledged; nothing beside other notices."""
    if notice.alert is None:
        return
    why_not = access.current().may_not(Permission.ACKNOWLEDGE_ALERTS)
    is_clicked = st.button(
        "Acknowledge",
        key=f"acknowledge_{notice.alert}",
        disabled=why_not is not None,
        help=why_not or "Say that you look after it; everybody sees who does.",
    )
    if not is_clicked:
        return
    try:
        actions.acknowledge(notice.alert, note="")
    except FleetError as exc:
        components.failure(exc)
        return
    state.flash(f"Alert {notice.alert} is acknowledged.")
    st.rerun()
