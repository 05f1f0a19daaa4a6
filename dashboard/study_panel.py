"""A study on a page: asked for, how far it is, cancelled, its answer. The page never waits for it.

Who changes the inputs leaves the study of the old ones; it ends unless somebody else watches it. Prevents:
a spinner of two minutes, and a queue of simulations that nobody looks at any more.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import streamlit as st

from control.study_process import State, Study
from dashboard import components, data_studies
from dashboard import viewmodels_studies as vm
from fleet.errors import Unavailable

TICK_S = 1.0
_WHO = "study_watcher"


def _who() -> str:
    return str(st.session_state.setdefault(_WHO, str(uuid4())))


def answer(study: Study, place: str, *, title: str) -> dict[str, Any] | None:
    """Return a study's answer; until it is there, draw how far it is and return None.

    `place` names the place on the page: another study there takes the first one's place.
    """
    slot = f"study_{place}"
    before: Study | None = st.session_state.get(slot)
    if before is not None and before != study:
        data_studies.desk().leave(before, _who())
    st.session_state[slot] = study
    try:
        view = data_studies.desk().ask(study, _who())
    except Unavailable as exc:
        components.failure(exc, title=title)
        st.button("Try again", key=f"{slot}_try")
        return None
    if view.is_open:
        components.live(lambda: _progress(study, slot), TICK_S)
        return None
    if view.error is not None or view.state is State.CANCELLED:
        if view.error is not None:
            components.failure(view.error, title=title)
        else:
            st.info("Cancelled.")
        if st.button("Simulate again", key=f"{slot}_again", icon=":material/replay:"):
            data_studies.desk().forget(study)
            st.rerun()
        return None
    return view.answer


def _progress(study: Study, slot: str) -> None:
    """Draw one tick; the page runs again when the study has ended."""
    view = data_studies.desk().peek(study)
    if view is None or not view.is_open:
        st.rerun()
    with st.container(horizontal=True, vertical_alignment="center"):
        st.progress(vm.part(view), vm.progress_text(view))
        if st.button("Cancel", key=f"{slot}_cancel", icon=":material/stop:"):
            data_studies.desk().cancel(study)
            st.rerun()
