"""While a dialog is open nothing draws the whole page anew, which would close it; closing it does."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

from tests.unit.dashboard.test_page_recovery import runs, script


def page() -> None:
    import streamlit as st

    from dashboard import dialogs

    dialogs.forget()

    @dialogs.dialog("Why?")
    def ask(label: str) -> None:
        st.text_input(label, key="reason")

    if st.button("Ask"):
        ask("Reason")
    st.markdown("open" if dialogs.is_open() else "closed")


def test_a_dialog_is_open_until_the_whole_page_is_drawn_again() -> None:
    at = AppTest.from_function(page, default_timeout=60).run()
    assert [m.value for m in at.markdown] == ["closed"]
    at.button[0].click().run()
    assert "open" in [m.value for m in at.markdown]
    assert at.text_input(key="reason").label == "Reason"
    at.run()  # closing it orders this run
    assert [m.value for m in at.markdown] == ["closed"]


def test_a_page_that_lacks_something_waits_for_the_open_dialog() -> None:
    at = AppTest.from_function(script, default_timeout=60)
    at.session_state["dialog_is_open"] = True
    assert runs(at, 1_000.0, lacks=True, is_away=False) == 1
    at.session_state["dialog_is_open"] = False
    assert runs(at, 1_001.0, lacks=True, is_away=False) == 2
