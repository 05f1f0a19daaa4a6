"""The closed form on the Estimates page: inputs, each with where its default comes from, and answer.

Prevents: an answer from numbers nobody can see.
"""

from __future__ import annotations

from decimal import Decimal

import streamlit as st

from dashboard import components, tables
from dashboard import viewmodels_estimates as vm
from fleet.cost import ClosedFormInputs, closed_form
from fleet.errors import InvalidInput

_START = ClosedFormInputs()


def closed_form_panel() -> None:
    """Draw the closed form to the dollar, and beside it what it hides."""
    st.caption("A sum from the numbers below, to the dollar: no traffic, no waiting, no refusals in it.")
    try:
        found = closed_form(estimate_inputs())
    except InvalidInput as exc:
        components.failure(exc, title="These inputs have no answer")
        return
    components.cards(vm.cards(found))
    wrong, others = vm.wrong_answer(found)
    for line in wrong:
        st.error(line)
    components.table(vm.option_rows(found), tables.OPTIONS, key="options")
    left, right = components.two()
    with left:
        st.subheader("What this hides")
        components.lines(vm.hidden(found))
    with right:
        st.subheader("Mind")
        components.lines(others)
    left, right = components.two()
    with left:
        st.subheader("At other spot prices")
        components.table(vm.spot_rows(found), tables.SPOT, key="spot")
    with right:
        st.subheader("In calendar months")
        components.table(vm.calendar_rows(found), tables.CALENDAR, key="calendar")


def estimate_inputs() -> ClosedFormInputs:
    """Draw the inputs and return them. Raises InvalidInput for what cannot be."""
    left, middle, right = st.columns(3)
    with left.container(border=True):
        st.markdown("**Traffic**", help=vm.source("traffic"))
        peak = _real("Peak, requests/s", "peak_rps", _START.peak_rps, 1.0)
        mean = _real("Mean, requests/s", "mean_rps", _START.mean_rps, 1.0)
        prompt = _real("Prompt tokens a request", "tokens_in", _START.tokens_in, 50.0)
        output = _real("Output tokens a request", "tokens_out", _START.tokens_out, 50.0)
        refusal = st.checkbox("A refused request is acceptable", value=True, key="estimate_refusal")
    with middle.container(border=True):
        st.markdown("**Nodes**", help=vm.source("tokens_per_s"))
        speed = _real("Tokens/s a node (prompt + output)", "tokens_per_s", _START.tokens_per_s, 100.0)
        nodes = _whole("Nodes with admission", "admission_nodes", _START.admission_nodes, 1)
        burst = _whole("Spot nodes in the burst pool", "burst_nodes", _START.burst_nodes, 0)
        hours = _real("Hours a month", "hours", float(_START.hours), 24.0)
    with right.container(border=True):
        st.markdown("**Prices**", help=vm.source("price"))
        price = _real("USD a node-hour, on demand", "price", float(_START.price), 1.0)
        spot = _real("USD a node-hour, spot", "spot_price", float(_START.spot_price), 1.0)
        realistic = _real(
            "Burst pool, realistic USD a month", "burst_usd", float(_START.burst_realistic_usd), 500.0
        )
        st.caption(f"Spot: {vm.source('spot_price')}. Realistic: {vm.source('burst_realistic_usd')}.")
    return ClosedFormInputs(
        peak_rps=peak,
        mean_rps=mean,
        tokens_in=prompt,
        tokens_out=output,
        tokens_per_s=speed,
        price=Decimal(str(price)),
        hours=Decimal(str(hours)),
        admission_nodes=nodes,
        burst_nodes=burst,
        spot_price=Decimal(str(spot)),
        burst_realistic_usd=Decimal(str(realistic)),
        refusal_acceptable=refusal,
    )


def _real(label: str, name: str, value: float, step: float) -> float:
    found = st.number_input(
        label,
        min_value=0.0,
        max_value=1e9,
        value=value,
        step=step,
        key=f"estimate_{name}",
        persist_state="session",
    )
    return float(found or 0.0)


def _whole(label: str, name: str, value: int, low: int) -> int:
    found = st.number_input(
        label,
        min_value=low,
        max_value=100_000,
        value=value,
        step=1,
        key=f"estimate_{name}",
        persist_state="session",
    )
    return int(found or 0)
