"""What the flow page reads: the state of every queue, its minutes, and utilization curves.

Prevents: a page that judges balance in its own way.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from control.flow_store import FlowNow, FlowPoint, SloCount, flow_now, flow_timeline, slo_count
from control.freshness import stale_after_s
from control.queries_fleet import scrape_period_s
from control.queries_flow import utilization_curves
from dashboard.data import QUESTIONS, Reading, ask
from dashboard.deps import Deps
from fleet.utilization_curve import UtilizationCurve


@dataclass(frozen=True, slots=True)
class FlowReading:
    """The states of all subjects, and of the chosen one its minutes and its objective in the range."""

    states: tuple[FlowNow, ...]
    points: tuple[FlowPoint, ...]
    slo: SloCount | None
    curves: dict[str, UtilizationCurve]
    stale_s: float  # the age from which on a state is no longer the present


def _flow(session: Any, _of: Deps, now: datetime, scope: str, name: str, span_s: int) -> FlowReading:
    since = now - timedelta(seconds=span_s)
    return FlowReading(
        tuple(flow_now(session)),
        tuple(flow_timeline(session, scope, name, since, now)),
        slo_count(session, scope, name, since, now),
        utilization_curves(session, since, now),
        stale_after_s(scrape_period_s(session)),
    )


def _subjects(session: Any, _of: Deps, _now: datetime) -> list[tuple[str, str]]:
    return [(state.scope, state.name) for state in flow_now(session)]


QUESTIONS["flow"] = _flow
QUESTIONS["flow_subjects"] = _subjects


def flow(scope: str, name: str, span_s: int) -> Reading[FlowReading]:
    """Return the balance of every queue; of the named one also the last `span_s` seconds."""
    return ask("flow", scope, name, span_s)


def subjects() -> Reading[list[tuple[str, str]]]:
    """Return what there is to choose: (scope, name), the fleet first."""
    return ask("flow_subjects")
