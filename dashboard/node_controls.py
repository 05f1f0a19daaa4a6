"""Draining a node, resting it, and letting it take work again: one dialog, one sentence why.

Prevents: a node taken out by a slip of the mouse, and a drained node nobody knows the reason of.
"""

from __future__ import annotations

import streamlit as st

from control.roles import Permission
from dashboard import access, actions, components, state, words
from dashboard.actions import NodeVerb
from dashboard.dialogs import dialog
from fleet.errors import FleetError

#: State a node is in -> what can be done with it.
STEPS: dict[str, tuple[NodeVerb, ...]] = {
    "active": ("drain", "rest", "remove"),
    "draining": ("resume", "rest", "remove"),
    "maintenance": ("resume", "remove"),
}
WORDS: dict[NodeVerb, tuple[str, str]] = {
    "drain": ("Drain", "It takes no new work; what runs there finishes. It counts as capacity no more."),
    "rest": ("Maintenance", "It takes no new work and raises no alerts."),
    "resume": ("Back to work", "Gateways may send to it again."),
    "remove": ("Remove", "It is watched no more and takes no work. Its history stays."),
}


def node_controls(name: str, node_state: str) -> None:
    """Draw the buttons that fit the node's state; disabled with the reason for who may not."""
    why_not = access.current().may_not(Permission.MANAGE_FLEET)
    with st.container(horizontal=True):
        for verb in STEPS.get(node_state, ()):
            label, meaning = WORDS[verb]
            if st.button(label, key=f"node_{verb}", disabled=why_not is not None, help=why_not or meaning):
                confirm(name, verb)
    if why_not:
        st.caption(words.plain(why_not))


@dialog("Change a node")
def confirm(name: str, verb: NodeVerb) -> None:
    """Ask why, then change the node's state."""
    confirm_body(name, verb)


def confirm_body(name: str, verb: NodeVerb) -> None:
    """The dialog's content."""
    label, meaning = WORDS[verb]
    st.markdown(f"**{label}: {name}**")
    st.markdown(meaning)
    note = st.text_input("Reason", key=f"node_note_{verb}", max_chars=200)
    if not st.button(label, key=f"node_confirm_{verb}", type="primary"):
        return
    try:
        actions.set_node_state(verb, name, note=note)
    except FleetError as exc:
        components.failure(exc)
        return
    state.flash(f"Node {name}: {label.lower()} is recorded; gateways follow within seconds.")
    st.rerun()
