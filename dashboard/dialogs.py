"""Dialogs that stay open, with what was typed, while the page behind them moves on.

Owns the mark that one is open in this browser's session. A run of the whole page closes every dialog, so
live parts ask `is_open` before they order one. Prevents: a reason typed at 3 a.m. that is gone because a
rollout reached its next stage.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Literal, ParamSpec

import streamlit as st

P = ParamSpec("P")
_OPEN = "dialog_is_open"


def forget() -> None:
    """Say that the whole page is being drawn: no dialog is open until one is opened."""
    st.session_state[_OPEN] = False


def is_open() -> bool:
    """Say whether a dialog is open in this browser."""
    return bool(st.session_state.get(_OPEN))


def dialog(
    title: str, *, width: Literal["small", "large"] = "small"
) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Make a function the content of a dialog. Closing it draws the page again, as it is by then."""

    def made(content: Callable[P, None]) -> Callable[P, None]:
        @wraps(content)
        def marked(*args: P.args, **kwargs: P.kwargs) -> None:
            st.session_state[_OPEN] = True
            content(*args, **kwargs)

        return st.dialog(title, width=width, on_dismiss="rerun")(marked)

    return made
