"""Whom the policy being drafted would have refused on the last hour's requests, against the one in force.

The replay runs in a process of its own and is bounded; the page and the review only show how far it is.
Prevents: a policy published and its refusals met in production.
"""

from __future__ import annotations

import streamlit as st

from control.comparison_documents import canonical
from control.study_process import State, Study
from dashboard import components, data_studies, study_panel, tables_studies
from dashboard import viewmodels_studies as vm
from dashboard.drafts import Review
from dashboard.policy_editor import Draft

MINUTES = 60
_ASKED = "replay_asked"


def study_of(draft: Draft) -> Study:
    """Return the replay of a draft as it stands: another document is another study."""
    return Study(("replay", "-", "--minutes", str(MINUTES)), canonical(draft.document))


def draw(draft: Draft, review: Review) -> None:
    """Draw the button, the progress or the answer under the editor."""
    st.subheader("On the last hour's requests")
    study = study_of(draft)
    if st.session_state.get(_ASKED) != study:
        is_ready = review.problem is None and bool(review.changes)
        st.button(
            "Whom would this draft have refused?",
            key="replay_draft",
            icon=":material/replay:",
            disabled=not is_ready,
            help="Replays the gateways' last hour through the draft and the policy in force"
            if is_ready
            else "Change the policy first; what is changed must be valid",
            on_click=_ask,
            args=(study,),
        )
        return
    found = study_panel.answer(study, "replay", title="The last hour cannot be replayed")
    if found is None:
        return
    components.verdict(*vm.replay_verdict(found))
    components.table(vm.replay_rows(found), tables_studies.REFUSALS, key="replay_rows")
    st.caption(vm.replay_notes(found))
    st.button("Replay anew", key="replay_again", icon=":material/replay:", on_click=_again, args=(study,))


def _ask(study: Study) -> None:
    st.session_state[_ASKED] = study


def _again(study: Study) -> None:
    data_studies.desk().forget(study)


def in_review(draft: Draft) -> None:
    """Draw what a replay of the draft found in the review, or that there was none."""
    view = data_studies.desk().peek(study_of(draft))
    if view is None or view.state is not State.DONE or view.answer is None:
        st.caption(
            "Whom this would have refused in the last hour is not known: "
            + (
                "its replay is still running."
                if view is not None and view.is_open
                else "it was not replayed."
            )
        )
        return
    components.verdict(*vm.replay_verdict(view.answer))
    components.table(vm.replay_rows(view.answer), tables_studies.REFUSALS, key="review_replay")
    st.caption(vm.replay_notes(view.answer))
