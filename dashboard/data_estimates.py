"""What the estimates pages compute and read: comparisons by their content, cached.

Prevents: a page that simulates the same months at each click, and a traffic looked up by a file name that
somebody put into an address.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import streamlit as st

from control.comparison_documents import Comparable, canonical, read_comparison
from control.rate_profile_files import BUNDLED, bundled_profile
from fleet.comparison import Comparison
from fleet.comparison_sensitivity import Base, Sensitivity, sensitivities
from fleet.errors import InvalidInput
from fleet.rate_profiles import RateProfile
from fleet.reserve import Reserve, reserve

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A comparison with all that a page shows of it."""

    compared: Comparison
    axes: list[Sensitivity]
    reserve: Reserve


def ready(document: dict[str, Any]) -> Comparable:
    """Return the comparison of a document, its defaults written out. Raises InvalidInput."""
    return read_comparison(document, traffic)


def traffic(name: str) -> RateProfile:
    """Return a bundled traffic or a stored one. Never a file."""
    if name in BUNDLED:
        return _bundled(name)
    raise InvalidInput(
        f"there is no traffic {name[:60]!r}", field="/traffic", hint="Choose one from the list"
    )


@st.cache_resource(show_spinner=False, max_entries=8)
def _bundled(name: str) -> RateProfile:
    return bundled_profile(name)


def answer(found: Comparable) -> Answer:
    """Return the comparison, what flips it, and the reserve; kept by content."""
    return _answer(canonical(found.document).decode())


@st.cache_data(ttl=DAY_S, max_entries=60, show_spinner="Simulating a month for each strategy")
def _answer(document: str) -> Answer:
    found = ready(json.loads(document))
    compared, month = found.run(), found.profile.month()
    base = Base(month, compared, found.node, found.prices, found.refusal_usd)
    return Answer(
        compared,
        sensitivities(base),
        reserve(
            month,
            found.node.service_rate,
            max(float(found.node.usd_per_hour), 1e-9),
            found.prices.reserved_usd_per_hour,
        ),
    )
