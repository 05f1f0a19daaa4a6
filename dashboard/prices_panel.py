"""Prices of node-hours: the list, and a form to add one. The past keeps its price.

Prevents: a price without a source.
"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from control.prices import PRICE_CLASSES, Price
from dashboard import access, actions, components, state, tables, words
from dashboard import viewmodels_spend as vm
from dashboard.times import Zone
from fleet.errors import FleetError


def prices_panel(prices: Sequence[Price], zone: Zone) -> None:
    """Draw the list and the form."""
    why_not = access.may_not(access.PRICES)
    if prices:
        components.table(vm.price_rows(prices, zone), tables.PRICES, key="prices", is_wrapped=True)
    else:
        st.markdown("No price is set: node-hours are counted and cost nothing yet.")
    with st.form("new_price", border=True):
        st.markdown("**New price**")
        if why_not:
            st.caption(words.plain(why_not))
        off = why_not is not None
        first, second, third, fourth = components.places(4, min_px=200)
        price_class = first.selectbox("Price class", PRICE_CLASSES, disabled=off, key="price_class")
        amount = second.text_input("USD a node-hour", disabled=off, key="price_amount")
        pool = third.text_input("Pool (empty: all)", disabled=off, key="price_pool")
        day = fourth.date_input(
            "From 00:00 UTC of (empty: now)",
            value=None,
            disabled=off,
            key="price_day",
            help="Only the first price of a class may lie in the past.",
        )
        source = st.text_input("Source: contract or page, and its date", disabled=off, key="price_source")
        if not st.form_submit_button("Add price", disabled=off, help=why_not):
            return
    try:
        actions.set_price(
            price_class,
            amount or "",
            pool=(pool or "").strip() or None,
            effective_from=vm.start_of(day),
            source=source or "",
        )
    except FleetError as exc:
        components.failure(exc)
        return
    state.flash("The price is set; quarter-hours before it keep theirs.")
    st.rerun()
