"""What gateways hold against one node: that they send it nothing, why, and until when.

Prevents: a node's page that is all green while every request to it fails.
"""

from __future__ import annotations

from datetime import datetime

import streamlit as st

from dashboard import data
from dashboard import viewmodels_ejected as vm
from dashboard.times import Zone


def ejected_panel(node: str, at: datetime, zone: Zone) -> None:
    """Draw a warning where a gateway ejected the node or has it on trial; nothing else."""
    found = data.rollout().value
    for said in vm.of_node(node, found.gateways if found else (), at, zone):
        st.warning(said)
