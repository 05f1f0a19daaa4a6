"""What the estimates pages change: simulations asked for and cancelled, traffic kept.

Prevents: a page with other bounds than the command line's.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from control import estimate_runs, estimate_traces
from control.comparison_documents import Comparable
from control.estimate_runs import Precision
from control.rate_profile_files import recorded_rates
from control.roles import Actor
from dashboard.actions import change
from fleet.rate_profiles import RateProfile


def simulate_all(found: Comparable, precision: Precision) -> int:
    """Ask for every strategy's simulation; return how many were asked for. What is there is not redone."""

    def work(session: Any, actor: Actor, now: datetime) -> int:
        for one in found.candidates:
            estimate_runs.enqueue(session, found, one.name, precision, actor=actor, now=now)
        return len(found.candidates)

    return change(work)


def cancel(run: int) -> None:
    """End a simulation."""
    change(lambda session, actor, now: estimate_runs.cancel(session, run, actor=actor, now=now))


def keep(profile: RateProfile) -> str:
    """Keep a traffic; return what documents call it by."""
    return change(
        lambda session, actor, now: estimate_traces.keep_trace(session, profile, actor=actor, now=now)
    )


def keep_recorded(days: float) -> str:
    """Keep the arrivals at the gateways of the last days."""
    return change(
        lambda session, actor, now: estimate_traces.keep_trace(
            session,
            recorded_rates(session, now - timedelta(days=days), now.replace(microsecond=0)),
            actor=actor,
            now=now,
        )
    )
