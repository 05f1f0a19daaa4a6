"""The review before publishing: differences, who else changed what, why, how; then one click.

The idempotency key is made when the dialog opens, so a double click publishes once. Prevents: a change
without a reason, an overwrite unseen, and a draft lost to a conflict.
"""

from __future__ import annotations

from uuid import uuid4

import streamlit as st

from control.commands_policy import DEFAULT_BAKE_S, OvertakenEdit
from control.queries_policy import Revision
from dashboard import actions, components, data, data_policy, policy_editor, refusals_panel, state, tables
from dashboard import viewmodels_policy as vm
from dashboard.dialogs import dialog
from dashboard.policy_editor import Draft
from fleet.errors import FleetError

_KEY, _BACK_KEY = "publish_key", "rollback_key"
STRATEGIES = {
    "staged": "Staged: one gateway first, then all if it stays healthy",
    "all_at_once": "All gateways at once",
}


def open_review() -> None:
    """Begin a review: what is published in it is published once."""
    st.session_state[_KEY] = str(uuid4())


@dialog("Review and publish", width="large")
def review_dialog(draft: Draft, head: Revision | None) -> None:
    """Show the dialog."""
    review_body(draft, head)


def review_body(draft: Draft, head: Revision | None) -> None:
    """The dialog's content."""
    found = policy_editor.drafts.review(draft.base, draft.document, head.document if head else {})
    if head is not None and head.number != draft.parent:
        st.warning(vm.moved_text(head, draft.parent), title="Somebody else published meanwhile")
        st.button("Make my changes on the newest revision", on_click=policy_editor.move_to, args=(head,))
    components.table(vm.difference_rows(found.changes), tables.DIFFERENCES, key="review_differences")
    if found.problem is not None:
        components.failure(found.problem, title="This cannot be published")
    for line in data_policy.unserved(draft.base, draft.document).value or ():
        st.warning(line, title="Requests without a node")
    refusals_panel.in_review(draft)
    strategy = st.radio(
        "Rollout", list(STRATEGIES), format_func=STRATEGIES.__getitem__, key="review_strategy"
    )
    bake_s = DEFAULT_BAKE_S
    if strategy == "staged":
        bake_s = st.number_input(
            "Seconds the first gateway runs it alone",
            min_value=0.0,
            max_value=86_400.0,
            value=DEFAULT_BAKE_S,
            step=5.0,
            key="review_bake",
        )
    note = st.text_area(
        "Reason (kept with the revision)",
        key="review_note",
        max_chars=2_000,
        height=80,
        persist_state="page",
    )
    with st.expander("The same by command line"):
        st.code(vm.command_text(draft.parent, note or ""), language="bash")
    is_ready = found.problem is None and bool(found.changes)
    if st.button("Publish", type="primary", key="publish", disabled=not is_ready, shortcut="Alt+P"):
        _publish(draft, note or "", strategy, bake_s)


def _publish(draft: Draft, note: str, strategy: str, bake_s: float) -> None:
    try:
        published = actions.publish(
            draft.document,
            parent=draft.parent,
            note=note,
            strategy="staged" if strategy == "staged" else "all_at_once",
            bake_s=bake_s,
            key=state.opened(_KEY, lambda: str(uuid4())),
        )
    except OvertakenEdit as exc:
        components.failure(exc, title="Somebody else was first; your draft is kept")
        components.table(vm.others_rows(exc.changes), tables.DIFFERENCES, key="review_others")
        if exc.head is not None:
            st.button(
                f"Make my changes on revision {exc.head.number}",
                on_click=policy_editor.move_to,
                args=(exc.head,),
                key="review_move",
            )
        return
    except FleetError as exc:
        components.failure(exc, title="Nothing was published")
        return
    state.close(_KEY, policy_editor.KEPT, "review_note")
    state.flash(
        f"Revision {published.number} is published. The controller brings it to the gateways: see Rollout.",
    )
    st.rerun()


def open_rollback() -> None:
    """Begin a roll back: it is done once."""
    st.session_state[_BACK_KEY] = str(uuid4())


@dialog("Roll back", width="large")
def rollback_dialog(number: int, head: Revision) -> None:
    """Show the dialog."""
    rollback_body(number, head)


def rollback_body(number: int, head: Revision) -> None:
    """The dialog's content: what would change, and one click with a reason written already."""
    old = data.revision(number)
    if old.value is None:
        st.error("This revision cannot be read now.")
        return
    changes = policy_editor.drafts.review(head.document, old.value.document, head.document).changes
    st.markdown(
        f"The content of revision **{number}** becomes revision **{head.number + 1}** and goes to every "
        "gateway at once."
    )
    components.table(vm.difference_rows(changes), tables.DIFFERENCES, key="rollback_differences")
    note = st.text_input("Reason", value=f"Roll back to revision {number}", key="rollback_note")
    if not st.button("Roll back", type="primary", key="rollback"):
        return
    try:
        done = actions.roll_back(number, note=note, key=state.opened(_BACK_KEY, lambda: str(uuid4())))
    except FleetError as exc:
        components.failure(exc, title="Nothing was rolled back")
        return
    state.close(_BACK_KEY)
    state.flash(
        f"Revision {done.number} restores revision {number}. Gateways take it within seconds: see Rollout.",
    )
    st.rerun()
