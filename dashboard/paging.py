"""Paging by the number of the last row shown: newer and older.

Prevents: pages that shift while rows are added in front of them.
"""

from __future__ import annotations

import streamlit as st


def before(name: str) -> int | None:
    """Return the number the page's rows lie below; None on the first page."""
    stack: list[int] = st.session_state.setdefault(f"{name}_pages", [])
    return stack[-1] if stack else None


def controls(name: str, older_than: int | None) -> None:
    """Draw the two buttons."""
    with st.container(horizontal=True):
        st.button(
            "Newest", key=f"{name}_newest", disabled=before(name) is None, on_click=_first, args=(name,)
        )
        st.button("Newer", key=f"{name}_newer", disabled=before(name) is None, on_click=_back, args=(name,))
        st.button(
            "Older",
            key=f"{name}_older",
            disabled=older_than is None,
            on_click=_forward,
            args=(name, older_than),
        )


def _first(name: str) -> None:
    st.session_state[f"{name}_pages"] = []


def _back(name: str) -> None:
    st.session_state[f"{name}_pages"] = st.session_state[f"{name}_pages"][:-1]


def _forward(name: str, older_than: int) -> None:
    st.session_state[f"{name}_pages"] = [*st.session_state[f"{name}_pages"], older_than]
