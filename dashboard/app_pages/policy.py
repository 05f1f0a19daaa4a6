"""What may every tenant use, how do tiers share, and what shall change?"""

from __future__ import annotations

import streamlit as st

from dashboard import (
    access,
    components,
    data,
    data_limits,
    policy_editor,
    policy_review,
    refusals_panel,
    state,
    tables,
)
from dashboard import viewmodels_policy as vm
from dashboard.rollout_notice import rollout_notice
from dashboard.tenant_keys_panel import tenant_keys_panel

st.title("Policy")
chosen = state.filters()
found = data.policy()
if components.problem(found, data.now(), chosen.zone) or found.value is None:
    st.stop()
head = found.value.head
why_not = access.may_not(access.PUBLISH)
st.markdown(vm.head_text(head, data.now(), chosen.zone))
if why_not:
    st.info(why_not, title="You can look, not change")
draft = policy_editor.draft_of(head)


def watch() -> None:
    """Say early that somebody else published while this draft was open."""
    rollout_notice()
    newest = data.policy().value
    if newest is not None and newest.head is not None and newest.head.number != draft.parent:
        st.warning(vm.moved_text(newest.head, draft.parent), title="Somebody else published")


components.live(watch, chosen.tick_s())
review = policy_editor.edit(draft, head, why_not=why_not, shadow=data_limits.would_refuse().value)
with st.bottom, st.container(horizontal=True, vertical_alignment="center"):
    st.markdown(vm.pending_text(review.changes), width="content")
    is_asked = st.button(
        "Review",
        type="primary",
        key="review",
        disabled=why_not is not None or not review.changes,
        help=why_not,
        shortcut="Alt+V",
    )
    st.button(
        "Discard", key="discard", disabled=not review.changes, on_click=policy_editor.discard, args=(head,)
    )
if is_asked:
    policy_review.open_review()
    policy_review.review_dialog(draft, head)

refusals_panel.draw(draft, review)

st.subheader("History")
if head is not None:
    components.table(vm.history_rows(found.value.history, chosen.zone), tables.HISTORY, key="history")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        to = st.selectbox("Revision", vm.restorable(found.value.history), key="rollback_to", width=240)
        if st.button(
            "Roll back", key="open_rollback", disabled=why_not is not None or to is None, help=why_not
        ):
            policy_review.open_rollback()
            policy_review.rollback_dialog(to, head)

st.subheader("Tenants' keys")
keys = data.tenant_keys()
if not components.problem(keys, data.now(), chosen.zone) and keys.value is not None:
    tenant_keys_panel(keys.value, chosen.zone)
