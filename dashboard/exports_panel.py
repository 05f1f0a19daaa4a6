"""A month's files to download, and those that are dropped into folders and buckets by themselves.

Prevents: an export that failed in the night and that finance finds missing at the end of the quarter.
"""

from __future__ import annotations

import streamlit as st

from dashboard import access, components, data, data_exports, tables_exports, words
from dashboard import viewmodels_exports as vm
from dashboard.times import Zone
from dashboard.viewmodels_spend import export_text


def exports_panel(month: str, zone: Zone) -> None:
    """Draw the links, what the canonical file says of itself, and the dropped files if there are any."""
    st.subheader("Export")
    why_not = access.may_not(access.EXPORT)
    export = data.export(month)
    if export.value is not None and export.value.refused is not None:
        components.failure(export.value.refused, title="No export")
    elif export.value is not None and export.value.export is not None:
        if why_not:
            st.caption(words.plain(why_not))
        with st.container(horizontal=True):
            for label, path, what in vm.export_links(month):
                st.link_button(label, path, disabled=why_not is not None, help=why_not or what)
        st.caption(export_text(export.value.export, zone))
    _drops(zone)


def _drops(zone: Zone) -> None:
    drops = data_exports.drops()
    if drops.value is None or not (drops.value.destinations or drops.value.deliveries):
        return
    st.markdown("**Dropped by themselves**")
    problem = vm.failing_text(drops.value.deliveries)
    if problem:
        st.warning(words.plain(problem))
    if drops.value.deliveries:
        components.table(vm.drop_rows(drops.value.deliveries, zone), tables_exports.DROPS, key="drops")
    else:
        names = ", ".join(drops.value.destinations)
        st.caption(words.plain(f"Nothing yet into {names}: files come when a month closes."))
