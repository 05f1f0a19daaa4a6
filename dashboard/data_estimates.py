"""What the estimates pages compute and read: comparisons by their content, cached.

Prevents: a page that simulates the same months at each click, and a traffic looked up by a file name that
somebody put into an address.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import streamlit as st

from control.comparison_documents import Comparable, canonical, read_comparison
from control.database import session_scope
from control.estimate_inputs import Measured, Unmeasured, measured_inputs
from control.estimate_runs import Precision, RunView, newest_by_hash, run_spec, spec_hash
from control.estimate_silence import silent_s
from control.estimate_traces import TraceView, stored_traffic, traces
from control.rate_profile_files import BUNDLED
from dashboard.data import QUESTIONS, Reading, ask
from dashboard.deps import Deps, deps
from fleet.comparison import Comparison
from fleet.comparison_sensitivity import Base, Sensitivity, sensitivities
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
    """Return a bundled traffic or a kept one. Never a file. One that was removed is gone here too."""
    if name in BUNDLED:
        return _traffic(name)
    kept = kept_traffic().value
    if kept is not None and name not in {one.name for one in kept}:
        _traffic.clear(name)  # removed, or kept this very moment: the database says which
    return deps().patience.ask(lambda: _traffic(name))


@st.cache_resource(show_spinner=False, max_entries=12)
def _traffic(name: str) -> RateProfile:
    """What a name stands for never changes while it is kept: bundled, or named by its content."""
    with session_scope(deps().reader) as session:
        return stored_traffic(session, name)


def _traces(session: Any, _of: Deps, _now: datetime) -> list[TraceView]:
    return traces(session)


def _runs(session: Any, _of: Deps, _now: datetime, hashes: tuple[str, ...]) -> dict[str, RunView]:
    return newest_by_hash(session, list(hashes))


def _silence(session: Any, _of: Deps, now: datetime) -> float | None:
    return silent_s(session, now)


def _measured(session: Any, _of: Deps, now: datetime) -> list[Measured | Unmeasured]:
    return measured_inputs(session, now)


QUESTIONS["estimate_inputs"] = _measured
QUESTIONS["estimate_traces"] = _traces
QUESTIONS["estimate_runs"] = _runs
QUESTIONS["estimate_silence"] = _silence


def measured() -> Reading[list[Measured | Unmeasured]]:
    """Inputs as the fleet measured them."""
    return ask("estimate_inputs")


def kept_traffic() -> Reading[list[TraceView]]:
    """Kept traffic, newest first."""
    return ask("estimate_traces", is_brief=True)


def run_hashes(found: Comparable, precision: Precision) -> dict[str, str]:
    """Return the name of each strategy's simulation, by the strategy's name."""
    return {one.name: spec_hash(run_spec(found, one, precision)) for one in found.candidates}


def simulations(found: Comparable, precision: Precision) -> Reading[dict[str, RunView]]:
    """Return the newest simulation of each strategy, by its hash."""
    return ask("estimate_runs", tuple(run_hashes(found, precision).values()), is_brief=True)


def silence() -> Reading[float | None]:
    """For how many seconds nobody simulated although something waits."""
    return ask("estimate_silence", is_brief=True)


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
