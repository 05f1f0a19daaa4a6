"""Which numbers must not be trusted now, and why?"""

from __future__ import annotations

import streamlit as st

from dashboard import components, data, data_quality, state, tables
from dashboard import viewmodels_quality as vm

st.title("Data quality")
chosen = state.filters()
known = data.node_names()
everything = data_quality.quality(chosen.span_s)
options = vm.sources(everything.value or (), known.value or ())
state.recall("source", options)
source = st.selectbox("Source", options, key="source", bind="query-params", width=320)
state.remember("source", source)


def live() -> None:
    """Draw everything that moves."""
    at = data.now()
    found, pulse = data_quality.quality(chosen.span_s), data.pulse().value
    if components.problem(found, at, chosen.zone) or found.value is None:
        return
    views = vm.chosen(found.value, source)
    if found.problem is None:
        components.verdict(*vm.summary(views, pulse, at))
    is_judged = pulse is not None and pulse.at is not None
    components.cards(vm.cards(views, is_judged=is_judged), is_last_known=found.problem is not None)
    standing = [view for view in views if view.is_open]
    ended = [view for view in views if not view.is_open]
    st.subheader("Standing now")
    if standing:
        rows = vm.rows(standing, at, chosen.zone)
        components.table(rows, tables.QUALITY, key="standing", is_wrapped=True)
        st.markdown("**In full, and what to do**")
        components.lines(vm.what_to_do(standing))
    else:
        st.markdown("Nothing stands.")
    st.subheader("Ended in the chosen range")
    if ended:
        rows = vm.rows(ended, at, chosen.zone, has_ended=True)
        components.table(rows, tables.ENDED, key="ended")
    else:
        st.markdown("Nothing ended in this range.")
    st.caption(vm.cut_text(found.value))


components.live(live, chosen.tick_s())
