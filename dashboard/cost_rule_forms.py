"""How cost is divided and what is paid whether used or not: what holds, and forms to declare more.

Prevents: a rule entered on a command line that finance never sees, and one without its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from control.allocation_rules import BASES, SHARES
from dashboard import access, actions_months, components, state, tables_months, words
from dashboard import viewmodels_months as vm
from dashboard.data_months import CostRules
from dashboard.times import Zone
from fleet.errors import FleetError


def cost_rules(found: CostRules, zone: Zone) -> None:
    """Draw the rules, the commitments and their forms."""
    why_not = access.may_not(access.PRICES)
    st.subheader("How cost is divided")
    if found.rules:
        rows = vm.rule_rows(found.rules)
        components.table(rows, tables_months.RULES, key="cost_rules", is_wrapped=True)
    else:
        st.markdown(words.plain(vm.NO_RULE))
    with st.expander("Declare a rule"):
        _rule_form(why_not)
    st.subheader("Commitments")
    if found.commitments:
        rows = vm.commitment_rows(found.commitments, zone)
        components.table(rows, tables_months.COMMITMENTS, key="commitments", is_wrapped=True)
    else:
        st.markdown("Nothing is committed: node time costs its price, and nothing while no node runs.")
    with st.expander("Enter a commitment"):
        _commitment_form(found.pools, why_not)


def _rule_form(why_not: str | None) -> None:
    off = why_not is not None
    with st.form("cost_rule"):
        if why_not:
            st.caption(words.plain(why_not))
        places = components.places(4, min_px=180)
        month = places[0].text_input("From month, as 2026-12", disabled=off, key="rule_month")
        basis = places[1].selectbox(
            "By", BASES, disabled=off, key="rule_basis", format_func=vm.in_words, help=vm.BASIS_HELP
        )
        share = places[2].selectbox(
            "Unused parts", SHARES, disabled=off, key="rule_share", format_func=vm.in_words
        )
        weight = places[3].text_input(
            "An output token counts",
            value="12",
            disabled=off,
            key="rule_weight",
            help="A prompt token is 1",
        )
        reason = st.text_input("Who decided it, and when", max_chars=300, disabled=off, key="rule_reason")
        wants = st.form_submit_button("Declare the rule", disabled=off)
    if wants:
        _do(
            lambda: actions_months.set_rule(
                (month or "").strip(),
                basis=basis,
                share=share,
                output_weight=weight or "",
                reason=reason or "",
            ),
            f"From {month} on cost is divided by this rule.",
        )


def _commitment_form(pools: Sequence[str], why_not: str | None) -> None:
    off = why_not is not None
    with st.form("commitment"):
        if why_not:
            st.caption(words.plain(why_not))
        places = components.places(3, min_px=200)
        of = places[0].selectbox("Of", [vm.PLATFORM, *pools], disabled=off, key="commit_pool")
        nodes = places[1].number_input("Nodes", 1, 100_000, 1, disabled=off, key="commit_nodes")
        hourly = places[2].text_input("USD an hour, of each", disabled=off, key="commit_hourly")
        upfront = places[0].text_input("USD upfront, of all", value="0", disabled=off, key="commit_upfront")
        first = places[1].date_input("From 00:00 UTC of", value=None, disabled=off, key="commit_from")
        last = places[2].date_input("Until 00:00 UTC of", value=None, disabled=off, key="commit_to")
        source = st.text_input("Contract, and its date", max_chars=300, disabled=off, key="commit_source")
        wants = st.form_submit_button("Enter the commitment", disabled=off)
    if wants:
        _do(
            lambda: actions_months.add_commitment(
                None if of == vm.PLATFORM else of,
                nodes=int(nodes),
                usd_per_hour=hourly or "",
                upfront_usd=upfront or "",
                first=first,
                last=last,
                source=source or "",
            ),
            "The commitment is entered.",
        )


def _do(work: Callable[[], object], said: str) -> None:
    try:
        work()
    except FleetError as exc:
        components.failure(exc, title="Nothing was changed")
        return
    state.flash(said)
    st.rerun()
