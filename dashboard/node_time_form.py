"""The form that corrects a node's life: quarter-hours it ran unseen, or did not run.

Prevents: node time on a provider's invoice that only somebody with a shell could bring into the books.
"""

from __future__ import annotations

import streamlit as st

from control.node_life import correct_node_life
from control.roles import Permission
from dashboard import access, components, state, words
from dashboard.actions import change
from fleet.errors import FleetError
from fleet.instants import instant_of

_RAN, _RAN_NOT = "It ran, unseen", "It did not run"


def node_time_form() -> None:
    """Draw the form; disabled with the reason for who may not."""
    why_not = access.may_not(Permission.CLOSE_MONTHS)
    off = why_not is not None
    with st.expander("Correct a node's life"), st.form("node_time"):
        st.caption(
            words.plain(why_not or "Closed months stay closed: the next one carries the difference.")
        )
        places = components.places(4, min_px=180)
        node = places[0].text_input("Node", disabled=off, key="life_node")
        was = places[1].selectbox("What is right", (_RAN, _RAN_NOT), disabled=off, key="life_was")
        start = places[2].text_input("From, as 2026-11-09T06:00Z", disabled=off, key="life_from")
        end = places[3].text_input(
            "To, not included", disabled=off, key="life_to", help="Quarter-hours the ledger has counted"
        )
        reason = st.text_input("What was wrong", max_chars=300, disabled=off, key="life_reason")
        if not st.form_submit_button("Correct node time", disabled=off, help=why_not):
            return
    try:
        first, last = instant_of(start or "", "from"), instant_of(end or "", "to")
        changed = change(
            lambda session, actor, now: correct_node_life(
                session,
                node=(node or "").strip(),
                start=first,
                end=last,
                was_up=was == _RAN,
                reason=reason or "",
                actor=actor,
                now=now,
            )
        )
    except FleetError as exc:
        components.failure(exc)
        return
    state.flash(f"Node time of {(node or '').strip()} changed by {changed / 3600:+,.2f} node-hours.")
    st.rerun()
