"""The inputs of a comparison: drawn, kept while the browser is open, and written into the address.

The address holds the whole document (`e`), so that who opens it sees the same result. Prevents: an answer
from numbers nobody can see, and a link that opens something else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from control.comparison_documents import DEFAULTS, Comparable, as_link, from_link
from control.estimate_inputs import Measured
from control.estimate_traces import TraceView
from control.rate_profile_files import BUNDLED
from dashboard import components, data_estimates, flow_inputs
from fleet.errors import InvalidInput

LINK = "e"
_KEPT, _WRITTEN, _REFILL = "comparison_document", "comparison_link", "comparison_refill"
_FIELDS = ("mean_rps", *(name for name in DEFAULTS if name not in ("tiers", "weights", "tenants")))
_TIERS = ("interactive", "batch", "best_effort")


def document() -> dict[str, Any]:
    """Return the document as it stands; a link in the address comes first. Raises InvalidInput for it."""
    kept: dict[str, Any] | None = st.session_state.get(_KEPT)
    link = st.query_params.get(LINK)
    if link and link != st.session_state.get(_WRITTEN):
        st.session_state[_WRITTEN] = link  # a damaged one is refused once, then left alone
        kept = data_estimates.ready(from_link(link)).document
        keep(kept)
        _fill(kept)
    if kept is None:
        kept = {"traffic": "A"}
    if st.session_state.pop(_REFILL, False):
        _fill(kept)
    return kept


def keep(changed: dict[str, Any]) -> None:
    """Keep a document for the next run."""
    st.session_state[_KEPT] = changed


def written(found: Comparable) -> Comparable:
    """Keep what was compared, and write it into the address."""
    keep(found.document)
    link = as_link(found.document)
    st.session_state[_WRITTEN] = link
    if st.query_params.get(LINK) != link:
        st.query_params[LINK] = link
    return found


def take(found: Sequence[Measured]) -> None:
    """Let measured values stand in place of what was there, with their sources."""
    whole = data_estimates.ready(document()).document
    sized = {key: value for key, value in whole.items() if key not in ("strategies", "baseline")}
    chosen = whole if st.session_state.get("comparison_chosen") else sized
    changed = chosen | {one.name: one.value for one in found}
    sources = whole["sources"] | {one.name: one.source for one in found}
    _restart(data_estimates.ready(changed | {"sources": sources}).document)


def take_traffic(name: str) -> None:
    """Compare on a kept traffic from now on; strategies are sized anew."""
    whole = data_estimates.ready(document()).document
    changed = {key: value for key, value in whole.items() if key not in ("strategies", "baseline")}
    st.session_state["comparison_chosen"] = False
    _restart(data_estimates.ready(changed | {"traffic": name, "mean_rps": None}).document)


def _restart(whole: dict[str, Any]) -> None:
    """Show a document from the next run on: the fields take their values before they are drawn."""
    keep(whole)
    st.session_state[_REFILL] = True


def _fill(whole: dict[str, Any]) -> None:
    """Let the fields show what a link brought."""
    for name in _FIELDS:
        if name == "refusal_usd":
            st.session_state["compare_refusal_cents"] = 100 * whole[name]
        else:
            st.session_state[f"compare_{name}"] = whole[name]
    for tier in _TIERS:
        st.session_state[f"compare_{tier}"] = 100 * whole["tiers"].get(tier, 0.0)
    flow_inputs.fill(whole)
    st.session_state["compare_traffic"] = whole["traffic"]
    st.session_state["compare_acceptable"] = whole["refusal_acceptable"]


def asked(before: dict[str, Any]) -> Comparable:
    """Draw the inputs and return the comparison. Raises InvalidInput for what cannot be."""
    left, middle, right = components.places(3, min_px=250)
    found: dict[str, Any] = {}
    with left.container(border=True, height="stretch"):
        st.markdown("**Traffic**")
        found["traffic"] = _traffic(before)
        found["mean_rps"] = st.number_input(
            "Scaled to a mean of, requests/s",
            1e-6,
            1e6,
            before.get("mean_rps"),
            1.0,
            key="compare_mean_rps",
            placeholder="as it is",
            persist_state="session",
        )
        found["tiers"] = _tiers(before.get("tiers", DEFAULTS["tiers"].value))
        found |= flow_inputs.asked(before)
    with middle.container(border=True, height="stretch"):
        st.markdown("**Nodes**")
        found["mu"] = _real("Requests/s a node serves (mu)", "mu", before, 0.5)
        found["tokens_in"] = _real("Prompt tokens a request", "tokens_in", before, 50.0)
        found["tokens_out"] = _real("Output tokens a request", "tokens_out", before, 50.0)
        found["cold_start_s"] = _real("Cold start, seconds", "cold_start_s", before, 30.0)
        found["burst_s"] = st.number_input(
            "A burst lasts, seconds",
            1.0,
            2_592_000.0,
            before.get("burst_s"),
            30.0,
            key="compare_burst_s",
            placeholder="the traffic's own",
            help="What a cold start is compared with; empty: how long this traffic stays above the nodes",
            persist_state="session",
        )
        found["slo_wait_s"] = _real("Objective: wait at most, seconds", "slo_wait_s", before, 0.5)
    with right.container(border=True, height="stretch"):
        st.markdown("**Prices**")
        found["price"] = _real("USD a node-hour, on demand", "price", before, 1.0)
        found["reserved_price"] = _real("USD a node-hour, reserved", "reserved_price", before, 1.0)
        found["spot_price"] = _real("USD a node-hour, spot", "spot_price", before, 1.0)
        found["refusal_usd"] = _refusal(before)
        found["refusal_acceptable"] = st.checkbox(
            "A refused request is acceptable",
            before.get("refusal_acceptable", True),
            key="compare_acceptable",
            persist_state="session",
        )
    return written(data_estimates.ready(_with_strategies(found, before)))


def _with_strategies(found: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Strategies somebody chose stay; sized ones are sized anew when what they are sized from changes."""
    sized_from = ("traffic", "mean_rps", "mu", "spot_price", "cold_start_s")
    found["sources"] = {
        name: said
        for name, said in before.get("sources", {}).items()
        if found.get(name) == before.get(name)
    }
    is_same = all(found[name] == before.get(name) for name in sized_from)
    if "strategies" in before and (is_same or st.session_state.get("comparison_chosen")):
        found |= {"strategies": before["strategies"], "baseline": before["baseline"]}
    return found


def _traffic(before: dict[str, Any]) -> str:
    kept = {one.name: one for one in data_estimates.kept_traffic().value or []}
    names = [*BUNDLED, *kept]
    chosen = before["traffic"]
    return str(
        st.selectbox(
            "Traffic",
            names if chosen in names else [*names, chosen],
            index=names.index(chosen) if chosen in names else len(names),
            key="compare_traffic",
            format_func=lambda name: _title(name, kept),
            persist_state="session",
        )
    )


def _title(name: str, kept: Mapping[str, TraceView]) -> str:
    if name in BUNDLED:
        return f"{name}: {BUNDLED[name]}"
    return f"{kept[name].title}: {kept[name].source}" if name in kept else name[:20]


def _tiers(before: dict[str, float]) -> dict[str, float]:
    """Shares of requests by tier. Best effort is the rest."""
    places = st.columns(2)
    shares: dict[str, float] = {}
    for place, tier in zip(places, _TIERS[:2], strict=True):
        value = place.number_input(
            f"{tier.capitalize()}, %",
            0.0,
            100.0,
            round(100 * before.get(tier, 0.0), 6),
            5.0,
            key=f"compare_{tier}",
            persist_state="session",
        )
        shares[tier] = float(value or 0.0) / 100
    rest = 1 - sum(shares.values())
    if rest < -1e-9:
        raise InvalidInput(
            f"interactive and batch add up to {100 * (1 - rest):g} %", hint="At most 100 %", field="tiers"
        )
    found = {**shares, _TIERS[2]: max(0.0, round(rest, 9))}
    is_same = all(math.isclose(found[tier], before.get(tier, 0.0), abs_tol=1e-6) for tier in _TIERS)
    return dict(before) if is_same else found  # what was measured stays as it was, digits and all


def _refusal(before: dict[str, Any]) -> float:
    default = DEFAULTS["refusal_usd"]
    cents = st.number_input(
        "What a refused request costs you, cents",
        0.0,
        1e8,
        round(100 * before.get("refusal_usd", default.value), 9),
        0.5,
        key="compare_refusal_cents",
        help=f"{default.source} ({default.date})",
        persist_state="session",
    )
    return float(cents or 0.0) / 100


def _real(label: str, name: str, before: dict[str, Any], step: float) -> float:
    default = DEFAULTS[name]
    found = st.number_input(
        label,
        0.0,
        1e8,
        float(before.get(name, default.value)),
        step,
        key=f"compare_{name}",
        help=f"Default {default.value:g}: {default.source} ({default.date})",
        persist_state="session",
    )
    return float(found or 0.0)


def share(found: Comparable) -> None:
    """Draw the content's name and the files of the comparison."""
    st.caption(
        f"This page's address holds every input: whoever opens it sees this result. {found.sha256[:12]}"
    )
    link = as_link(found.document)
    left, right = components.two()
    left.link_button("CSV", f"/exports/estimate.csv?{LINK}={link}", icon=":material/table:")
    right.link_button(
        "Report to print or save as PDF", f"/exports/estimate.html?{LINK}={link}", icon=":material/print:"
    )
