"""Prices of node-hours: the list, and a form to add one. The past keeps its price.

Prevents: a price without a source.
"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from control.prices import PRICE_CLASSES, Price
from dashboard import access, actions, components, state, tables
from dashboard import viewmodels_spend as vm
from dashboard.times import Zone
from fleet.errors import FleetError


def prices_panel(prices: Sequence[Price], zone: Zone) -> None:
    """Draw the list and the form."""
    why_not = access.may_not(access.PRICES)
    if prices:
        components.table(vm.price_rows(prices, zone), tables.PRICES, key="prices", height="auto")
    else:
        st.markdown("No price is set: node-hours are counted and cost nothing yet.")
    with st.form("new_price", border=True):
        st.markdown("**New price, from now on**")
        first, second, third, fourth = st.columns([1, 1, 1, 2])
        price_class = first.selectbox(
            "Price class", PRICE_CLASSES, disabled=why_not is not None, key="price_class"
        )
        amount = second.text_input("USD a node-hour", disabled=why_not is not None, key="price_amount")
        pool = third.text_input("Pool (empty: all)", disabled=why_not is not None, key="price_pool")
        source = fourth.text_input(
            "Source: contract or page, and its date", disabled=why_not is not None, key="price_source"
        )
        if not st.form_submit_button("Add price", disabled=why_not is not None, help=why_not):
            return
    try:
        actions.set_price(
            price_class,
            amount or "",
            pool=(pool or "").strip() or None,
            effective_from=None,
            source=source or "",
        )
    except FleetError as exc:
        components.failure(exc)
        return
    state.flash(
        "The price is set and holds from the next quarter-hour on; what was spent before keeps its price."
    )
    st.rerun()
