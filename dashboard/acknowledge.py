"""Acknowledging an alert: a button for each open one, usable by who may.

Prevents: an alert everybody sees and nobody takes.
"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from control.queries_fleet import AlertView
from control.roles import Permission
from dashboard import access, actions, components, state
from fleet.errors import FleetError


def acknowledge_controls(alerts: Sequence[AlertView]) -> None:
    """Draw a button for every alert nobody has acknowledged."""
    open_ones = [a for a in alerts if a.acknowledged_at is None]
    why_not = access.current().may_not(Permission.ACKNOWLEDGE_ALERTS)
    for alert in open_ones:
        if st.button(
            f"Acknowledge: {alert.rule.replace('_', ' ')}, {alert.subject or 'fleet'}",
            key=f"acknowledge_{alert.id}",
            disabled=why_not is not None,
            help=why_not,
        ):
            try:
                actions.acknowledge(alert.id, note="")
            except FleetError as exc:
                components.failure(exc)
                return
            state.flash(f"Alert {alert.id} is acknowledged.")
            st.rerun()
