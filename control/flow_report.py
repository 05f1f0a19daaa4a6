"""The balance of queues as JSON: one form for the command line and the API.

Ages are seconds. Prevents: two places that word the same state differently, and an old state read as new.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

from control.flow_store import FlowNow, FlowPoint


def state_age_s(state: FlowNow, now: datetime) -> float:
    """Return how old a state is, seconds."""
    return (now - state.at).total_seconds()


def as_dict(state: FlowNow, now: datetime, stale_s: float) -> dict[str, object]:
    """Return one state as JSON; `is_stale` says that it is not the present."""
    age_s = state_age_s(state, now)
    return {
        "scope": state.scope,
        "name": state.name,
        "at": state.at.isoformat(),
        "age_s": round(age_s, 1),
        "is_stale": age_s > stale_s,
        "balance": state.balance,
        "is_left": state.is_left,
        "p99_doubling_min": state.p99_doubling_min,
        "minutes": state.minutes,
        "detail": dict(state.detail),
    }


def point_as_dict(point: FlowPoint) -> dict[str, object]:
    """Return one bucket of minutes as JSON; null where nothing was counted."""
    return {**asdict(point), "at": point.at.isoformat()}
