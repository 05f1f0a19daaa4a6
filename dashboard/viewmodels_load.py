"""The fleet's load over time: rho, arrivals, capacity and completions, and what their ratio says. Pure.

Prevents: arrivals over completions read as utilization.
"""

from __future__ import annotations

from collections.abc import Sequence

from control.queries_fleet import HealthPoint, HealthView
from dashboard import charts, theme
from dashboard.charts import Figure, Line
from dashboard.times import Zone
from fleet.health_reading import TARGET_RHO

BALANCE_HELP = (
    "Flow balance is arrivals / completions. It reads 1.0 for every stable fleet, idle ones included, so "
    "it never drives an alarm; away from 1 it says that queues grow or drain."
)


def balance(health: HealthView | None) -> str:
    """Return the flow balance as a sentence beside rho."""
    if health is None or health.is_stale or health.flow_balance is None:
        return "Flow balance (arrivals / completions): not known."
    return (
        f"Flow balance (arrivals / completions): **{health.flow_balance:.2f}**. It reads 1.0 for any "
        "stable fleet, idle ones included, so it never drives an alarm. Arrivals: what reached engines."
    )


def rho_figure(points: Sequence[HealthPoint], zone: Zone) -> Figure:
    """Return rho over time with its interval and the 0.85 line."""
    starts = [p.at for p in points]
    values = [p.rho for p in points]
    known = [v for v in values if v is not None]
    summary = (
        f"rho of the fleet over time, between {min(known):.2f} and {max(known):.2f}"
        if known
        else "rho of the fleet over time: nothing known"
    )
    return charts.timeline(
        starts,
        [Line("rho", values, theme.BLUE)],
        zone,
        title="Fleet rho",
        unit="ratio",
        summary=summary,
        limit=(TARGET_RHO, f"{TARGET_RHO:g}, alert after 2 min"),
        band=([p.rho_low for p in points], [p.rho_high for p in points]),
    )


def flow_figure(points: Sequence[HealthPoint], zone: Zone) -> Figure:
    """Return arrivals, capacity and completions over time."""
    return charts.timeline(
        [p.at for p in points],
        [
            Line("capacity mu", [p.service_rate for p in points], theme.ORANGE, "dash"),
            Line("arrivals lambda", [p.arrival_rate for p in points], theme.BLUE),
            Line("finished X", [p.throughput for p in points], theme.GREEN, "dot"),
        ],
        zone,
        title="Arrivals, capacity, completions",
        unit="req/s",
        summary="arrival rate, service capacity and throughput of the fleet over time",
    )
