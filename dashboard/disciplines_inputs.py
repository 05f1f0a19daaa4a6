"""The inputs of the Disciplines page, kept in the address: nodes, made traffic, aging, objective.

Prevents: a comparison that cannot be shared, and one so large that nobody sees its end.
"""

from __future__ import annotations

import streamlit as st

from dashboard import components
from fleet.discipline_study import COMPARISONS
from fleet.errors import InvalidInput

#: Requests a page may ask for: some seconds of a core for each comparison.
MOST_REQUESTS = 40_000


def asked() -> tuple[str, ...]:
    """Draw the inputs; return the command's arguments. Raises InvalidInput for too much traffic."""
    chosen = st.segmented_control(
        "Compare",
        list(COMPARISONS),
        default="order",
        required=True,
        key="disciplines_compare",
        bind="query-params",
    )
    first, second, third, fourth = components.places(4, min_px=190)
    with first:
        nodes = _whole("Nodes", "nodes", 2, 1, 8)
        rate = _real("Requests/s a node", "rate", 13.5, 0.1, 1000.0)
    with second:
        seconds = _whole("Seconds of traffic", "seconds", 240, 30, 3600)
        burst = _real("Bursts, times the base rate", "burst", 2.5, 1.0, 20.0)
    with third:
        aging = _real("Aging, tokens a second of waiting", "aging", 500.0, 0.0, 1e6)
        ttft = _whole("Objective: first token, ms", "ttft_ms", 500, 1, 3_600_000)
    with fourth:
        seed = _whole("Seed of the traffic", "seed", 1, 0, 1_000_000)
    requests = rate * nodes * seconds
    if requests > MOST_REQUESTS:
        raise InvalidInput(
            f"{requests:,.0f} requests are more than the {MOST_REQUESTS:,} a page simulates",
            hint="Ask for fewer seconds, or use `rhodeck estimate disciplines`",
        )
    flags = {
        "--compare": chosen,
        "--nodes": nodes,
        "--rate": rate * nodes,
        "--seconds": seconds,
        "--burst-factor": burst,
        "--aging-rate": aging,
        "--ttft-ms": ttft,
        "--seed": seed,
    }
    return ("disciplines", *(str(part) for flag in flags.items() for part in flag))


def _whole(label: str, name: str, value: int, low: int, high: int) -> int:
    found = st.number_input(label, low, high, value, 1, key=f"disciplines_{name}", bind="query-params")
    return int(found or 0)


def _real(label: str, name: str, value: float, low: float, high: float) -> float:
    found = st.number_input(
        label, low, high, value, key=f"disciplines_{name}", bind="query-params", format="%g"
    )
    return float(found or 0.0)
