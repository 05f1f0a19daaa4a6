"""The part of the node page about what the node is read from: its pages, and its GPUs.

Prevents: a node whose GPU exporter died looking like one without GPUs.
"""

from __future__ import annotations

from datetime import datetime

import streamlit as st

from dashboard import components, data_nodes, tables_nodes, words
from dashboard import viewmodels_gpus as vm
from dashboard.times import Zone
from dashboard.viewmodels_nodes import page_rows


def hardware_panel(name: str, span_s: int, at: datetime, zone: Zone) -> None:
    """Draw a node's pages, its GPUs with their last errors, and what they did in the chosen range."""
    found = data_nodes.hardware(name, span_s)
    st.subheader("GPUs")
    if components.problem(found, at, zone) or found.value is None:
        return
    gpus = found.value.gpus
    st.markdown(vm.summary(gpus, at))
    wrong = vm.errors(gpus, zone)
    if wrong:
        components.verdict("act", "  \n".join(words.with_code(line) for line in wrong))
    if gpus:
        components.table(vm.rows(gpus, at, zone), tables_nodes.GPUS, key="gpus")
    figures = vm.figures(gpus, found.value.history, zone)
    if figures:
        places = components.places(len(figures), min_px=380)
        for number, (place, figure) in enumerate(zip(places, figures, strict=True)):
            with place:
                components.plot(figure, key=f"node_gpu_{number}")
    st.subheader("Pages it is read from")
    components.table(page_rows(found.value.pages, at, zone), tables_nodes.PAGES, key="pages")
