"""The line above a policy that is not, or not yet, in force at every gateway.

Prevents: a revision read as what the fleet does while its rollout stands still or a gateway is away.
"""

from __future__ import annotations

import streamlit as st

from dashboard import data, words
from dashboard import viewmodels_rollout as vm
from dashboard.viewmodels import ROLLOUT_PAGE


def rollout_notice() -> None:
    """Draw the line with the way to the rollout; nothing where every gateway confirmed the revision."""
    found = data.rollout()
    said = vm.not_everywhere(found.value) if found.problem is None and found.value is not None else None
    if said is not None:
        st.warning(words.plain(said), title="Not in force everywhere")
        st.page_link(ROLLOUT_PAGE, label="Rollout")
