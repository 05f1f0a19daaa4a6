"""Steering a rollout: pause, resume, promote, abort. Each asks why and is one short write.

Prevents: a promote that lands on a rollout somebody aborted a second before: the command compares.
"""

from __future__ import annotations

import streamlit as st

from control.queries_policy import Rollout
from dashboard import access, actions, components, data, policy_review, state, words
from dashboard.actions import Verb
from dashboard.dialogs import dialog
from dashboard.viewmodels_rollout import STEPS, VERBS
from fleet.errors import FleetError


def rollout_controls(rollout: Rollout | None) -> None:
    """Draw the buttons that fit the stage; disabled with the reason for who may not."""
    why_not = access.may_not(access.STEER)
    steps = STEPS.get(rollout.state, ()) if rollout is not None else ()
    with st.container(horizontal=True):
        for verb in steps:
            label, meaning = VERBS[verb]
            if st.button(
                label, key=f"rollout_{verb}", disabled=why_not is not None, help=why_not or meaning
            ):
                confirm(verb)
        if rollout is not None:
            _undo(rollout)
    if why_not:
        st.caption(words.plain(why_not))


def _undo(rollout: Rollout) -> None:
    """Draw the way back to the revision that was in force before, once this one is everywhere."""
    before, why_not = rollout.base_revision, access.may_not(access.PUBLISH)
    if rollout.state not in ("all", "live") or before is None:
        return
    if not st.button(
        f"Roll back to revision {before}", key="rollout_undo", disabled=why_not is not None, help=why_not
    ):
        return
    head = data.policy().value
    if head is not None and head.head is not None:
        policy_review.open_rollback()
        policy_review.rollback_dialog(before, head.head)


@dialog("Steer the rollout")
def confirm(verb: Verb) -> None:
    """Show the dialog."""
    confirm_body(verb)


def confirm_body(verb: Verb) -> None:
    """Ask why, then do it."""
    label, meaning = VERBS[verb]
    st.markdown(f"**{label}**: {meaning}")
    note = st.text_input("Reason", key=f"rollout_note_{verb}", max_chars=500, persist_state="page")
    if not st.button(label, key=f"rollout_confirm_{verb}", type="primary"):
        return
    try:
        after = actions.steer_rollout(verb, note=note or "")
    except FleetError as exc:
        components.failure(exc, title="Nothing was changed")
        return
    state.close(f"rollout_note_{verb}")
    state.flash(f"Rollout of revision {after.revision}: {label.lower()} is recorded.")
    st.rerun()
