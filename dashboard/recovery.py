"""A page that was opened without its data tries again by itself, less and less often.

Owns what is remembered of it in the browser's session. Seconds. Prevents: a link opened while the database
is away that shows an error until somebody thinks of reloading, and a page that reloads in circles because
one question always fails.
"""

from __future__ import annotations

from datetime import datetime

import streamlit as st

from dashboard import dialogs

FIRST_S, LONGEST_S = 5.0, 60.0
_RUNS, _LACKS, _TRIES, _NEXT = "recovery_runs", "recovery_lacks", "recovery_tries", "recovery_next_s"


def begin() -> None:
    """Say that the whole page is being drawn: what it lacks is noted anew."""
    st.session_state[_RUNS] = True
    st.session_state[_LACKS] = False


def end() -> None:
    """Say that it is drawn; live parts, which try again themselves, note nothing."""
    st.session_state[_RUNS] = False


def note() -> None:
    """Say that something could not be shown at all."""
    if st.session_state.get(_RUNS):
        st.session_state[_LACKS] = True


def again_if_due(now: datetime, *, is_away: bool) -> None:
    """Draw the whole page again if it lacks something, the database answers and it is time."""
    if not st.session_state.get(_LACKS):
        st.session_state[_TRIES] = 0
        return
    if is_away or dialogs.is_open() or now.timestamp() < st.session_state.get(_NEXT, 0.0):
        return
    tries: int = st.session_state.get(_TRIES, 0)
    st.session_state[_TRIES] = tries + 1
    st.session_state[_NEXT] = now.timestamp() + pause_s(tries)
    st.rerun()


def pause_s(tries: int) -> float:
    """Return how long to wait after so many tries in vain."""
    return min(LONGEST_S, FIRST_S * 2.0 ** min(tries, 10))
