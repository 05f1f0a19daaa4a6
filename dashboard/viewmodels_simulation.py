"""Simulated months beside the fluid ones, in words: how far, how sure, why they differ. Pure.

Money is US dollars a month, waits seconds, shares are of offered requests. Prevents: one simulated month
taken for certainty, and a difference between two methods left unexplained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from control.estimate_runs import Precision, RunView
from dashboard import times, words
from dashboard.viewmodels_comparison import usd
from fleet.comparison import Comparison, Outcome
from fleet.replications import Spread, spread

STATES = {
    "queued": "waits",
    "running": "runs",
    "done": "done",
    "cancelled": "cancelled",
    "failed": "failed",
}
#: How far refusals of the fluid method are off: on smooth traffic, and on bursty small pools.
SMOOTH, BURSTY = 0.005, 0.04


def rows(
    compared: Comparison, hashes: Mapping[str, str], found: Mapping[str, RunView], now: datetime
) -> dict[str, list[Any]]:
    """Return the two methods side by side by column, one row a strategy."""
    columns: dict[str, list[Any]] = {
        name: []
        for name in ("strategy", "state", "progress", "usd", "usd events", "refused", "refused events",
                     "p99", "p99 events", "slo", "slo events", "difference")
    }  # fmt: skip
    for one in compared.outcomes:
        run = found.get(hashes[one.name])
        months = [] if run is None else list(run.months.values())
        values = (
            one.name,
            "not asked for" if run is None else state_and_left(run, now),
            None if run is None else run.days_done / run.days,
            usd(one.cost_usd),
            _shown(_spread(months, "cost_usd"), usd),
            words.percent(one.month.refused_share, 2),
            _shown(_spread(months, "refused_share"), _percent),
            words.seconds(one.month.wait_p99_s),
            _shown(_spread(months, "wait_p99_s"), words.seconds),
            words.percent(one.month.slo_attainment, 2),
            _shown(_spread(months, "slo_attainment"), _percent),
            difference(one, months),
        )
        for name, value in zip(columns, values, strict=True):
            columns[name].append(value)
    return columns


def state(run: RunView) -> str:
    """Return where a run stands."""
    said = STATES[run.state]
    if run.state == "running" and run.cancel_requested:
        said = "ends in a moment"
    return f"{said}: {run.error}" if run.error else said


def state_and_left(run: RunView, now: datetime) -> str:
    """Return where a run stands and about how long it still takes."""
    left_s = run.left_s(now)
    if left_s is None:
        return state(run)
    return f"{state(run)}, about {words.plural(max(1, round(left_s / 60)), 'minute')} left"


def _percent(value: float) -> str:
    return words.percent(value, 2)


def _spread(months: Sequence[Mapping[str, Any]], name: str) -> Spread | None:
    return spread([month[name] for month in months]) if months else None


def _shown(found: Spread | None, form: Any) -> str:
    if found is None:
        return words.UNKNOWN
    if found.low is None or found.high is None:
        return str(form(found.mean))
    return f"{form(found.mean)} ({form(max(0.0, found.low))} to {form(found.high)})"


def difference(fluid: Outcome, months: Sequence[Mapping[str, Any]]) -> str:
    """Return how the methods differ for a strategy, and why."""
    refused, cost = _spread(months, "refused_share"), _spread(months, "cost_usd")
    if refused is None or cost is None:
        return words.UNKNOWN
    points = refused.mean - fluid.month.refused_share
    said = f"{100 * points:+.2f} points refused, {cost.mean - fluid.cost_usd:+,.0f} USD: "
    low, high = refused.low, refused.high
    if low is not None and high is not None and low <= fluid.month.refused_share <= high:
        return said + "no difference beyond chance"
    if abs(points) <= SMOOTH and abs(cost.mean / max(fluid.cost_usd, 1e-9) - 1) <= 0.02:
        return said + "as expected: chance fills a fleet that is full on average"
    scaler = fluid.candidate.strategy.autoscaler
    if scaler is not None and cost.mean > fluid.cost_usd:
        return said + "it counts arrivals and follows their noise upwards: more nodes"
    if abs(points) <= BURSTY:
        return said + "few slots: chance refuses more than a fluid does"
    return said + "trust the events: the fluid method is not made for so small or bursty a pool"


def summary(hashes: Mapping[str, str], found: Mapping[str, RunView], precision: Precision) -> str:
    """Return how the simulation is done and how far it is, in one sentence."""
    runs = [found[key] for key in set(hashes.values()) if key in found]
    done, of = sum(run.days_done for run in runs), sum(run.days for run in runs)
    how = (
        f"Every request with its slot and its wait: {words.plural(precision.replications, 'month')} a "
        f"strategy, seeds from {precision.seed}, {precision.node_slots()} slots a node, service times of "
        f"squared variation {precision.squared_cv:g}. In brackets: 95 % interval of the mean."
    )
    return f"{how} {done:,} of {of:,} days are done." if runs else f"{how} Nobody asked for it yet."


def silence_line(silent_s: float) -> str:
    """Return what to do about simulations that nobody goes on with."""
    return (
        f"Nobody has simulated for {times.age(silent_s)}, though something waits: is `rhodeck control` "
        "running? It goes on from where it stood; until then no day is added here."
    )


def open_runs(found: Mapping[str, RunView]) -> list[RunView]:
    """Return the simulations that wait or run, oldest first."""
    return sorted((run for run in found.values() if run.is_open), key=lambda run: run.id)
