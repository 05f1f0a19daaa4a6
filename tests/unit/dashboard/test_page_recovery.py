"""A page that lacks something is drawn again when the database answers, and never in circles."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

from dashboard import recovery


def script() -> None:
    from datetime import UTC, datetime

    import streamlit as st

    from dashboard import recovery

    recovery.begin()
    st.session_state["runs"] += 1
    if st.session_state["lacks"]:
        recovery.note()
    recovery.end()
    recovery.note()  # a live part, later: it tries again itself
    at = datetime.fromtimestamp(st.session_state["now_s"], UTC)
    recovery.again_if_due(at, is_away=st.session_state["is_away"])


def runs(at: AppTest, now_s: float, *, lacks: bool, is_away: bool) -> int:
    """Return how often the page was drawn for one look at `now_s`."""
    at.session_state["runs"] = 0
    at.session_state["now_s"], at.session_state["lacks"] = now_s, lacks
    at.session_state["is_away"] = is_away
    at.run()
    return int(at.session_state["runs"])


def test_it_waits_while_the_database_is_away_then_tries_less_and_less_often() -> None:
    at = AppTest.from_function(script, default_timeout=60)
    assert runs(at, 1_000.0, lacks=False, is_away=False) == 1
    assert runs(at, 1_000.0, lacks=True, is_away=True) == 1
    assert runs(at, 1_001.0, lacks=True, is_away=False) == 2  # it answers: once again at once
    assert runs(at, 1_002.0, lacks=True, is_away=False) == 1  # still lacking: not in circles
    assert runs(at, 1_001.0 + recovery.FIRST_S, lacks=True, is_away=False) == 2
    assert runs(at, 1_001.0 + 2 * recovery.FIRST_S, lacks=True, is_away=False) == 1  # now twice as long
    assert runs(at, 2_000.0, lacks=False, is_away=False) == 1
    assert runs(at, 3_000.0, lacks=True, is_away=False) == 2  # whole meanwhile: at once again


def test_pauses_double_to_a_minute() -> None:
    assert [recovery.pause_s(tries) for tries in range(6)] == [5, 10, 20, 40, 60, 60]
