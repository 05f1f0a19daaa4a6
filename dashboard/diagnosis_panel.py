"""Draws one finding: what, how sure, the numbers, a small chart, the knob and where it is turned.

Prevents: a finding drawn without its evidence beside it.
"""

from __future__ import annotations

import streamlit as st

from dashboard import components, tables, words
from dashboard.viewmodels_diagnosis import FindingView


def finding(view: FindingView) -> None:
    """Draw a finding in a box of its own."""
    colour, icon = words.LOOKS[view.tone]
    with st.container(border=True, key=view.key):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.subheader(words.plain(view.title), width="content")
            st.badge(view.word, icon=icon, color=colour)  # pyright: ignore[reportArgumentType]
        st.markdown(words.with_code(view.why))
        left, right = components.two()
        with left:
            components.table(view.numbers, tables.EVIDENCE, key=f"{view.key}_numbers")
        with right:
            for number, figure in enumerate(view.figures):
                components.plot(figure, key=f"{view.key}_plot_{number}")
        st.markdown(f"**Do:** {words.with_code(view.knob)}.  \n**Expect:** {words.with_code(view.expect)}")
        if view.page:
            st.page_link(
                view.page, label=view.link, icon=":material/tune:", query_params=view.query or None
            )
        if view.url:
            st.page_link(view.url, label="Flags of vLLM", icon=":material/open_in_new:")
        if view.surer_with:
            st.caption(f"Surer with: {words.plain(view.surer_with)}")
