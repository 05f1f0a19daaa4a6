"""Widgets for the policy's switches and knobs: limits, and routing.

Nothing here writes to the database. Prevents: a limit that can only be taken out of force by editing JSON
while it turns customers away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from dashboard import components, policy_knobs
from dashboard.policy_knobs import Knob, Path

Key = Callable[[str], str]


def limiter_values(
    document: Mapping[str, Any], key: Key, why_not: str | None, shadow: Mapping[str, int] | None
) -> dict[Path, Any]:
    """Draw a switch for each limit with what it would have refused lately; return what changed."""
    knobs = policy_knobs.limiter_knobs()
    values: dict[Path, Any] = {}
    for place, knob in zip(components.places(len(knobs), min_px=190), knobs, strict=True):
        values[knob.path] = _draw(place, knob, document, key, why_not)
        if values[knob.path] == "shadow":
            count = None if shadow is None else shadow.get(knob.path[-1], 0)
            place.caption(policy_knobs.shadow_text(count))
    st.caption(policy_knobs.LIMITERS_HELP)
    return policy_knobs.changed(document, knobs, values)


def routing_values(document: Mapping[str, Any], key: Key, why_not: str | None) -> dict[Path, Any]:
    """Draw the knobs of routing; return what changed."""
    knobs = policy_knobs.routing_knobs()
    values = {
        knob.path: _draw(place, knob, document, key, why_not)
        for place, knob in zip(components.places(len(knobs), min_px=230), knobs, strict=True)
    }
    return policy_knobs.changed(document, knobs, values)


def _draw(place: Any, knob: Knob, document: Mapping[str, Any], key: Key, why_not: str | None) -> Any:
    kept = knob.value_in(document)
    shared: dict[str, Any] = {
        "key": key("_".join(knob.path)),
        "disabled": why_not is not None,
        "help": knob.help,
    }
    label = knob.label.capitalize()
    if knob.kind == "choice":
        options = list(knob.options)
        return place.selectbox(
            label, options, index=options.index(kept) if kept in options else None, **shared
        )
    if knob.kind == "choices":
        return place.multiselect(label, list(knob.options), default=list(kept), **shared)
    if knob.kind == "flag":
        return place.toggle(label, value=bool(kept), **shared)
    of = int if knob.kind == "whole" else float
    return place.number_input(
        label,
        value=of(kept),
        min_value=None if knob.low is None else of(knob.low),
        max_value=None if knob.high is None else of(knob.high),
        step=1 if knob.kind == "whole" else 0.1,
        format="%d" if knob.kind == "whole" else "%g",
        **shared,
    )
