"""`rhodeck estimate confirm --gate`: a scenario's days through the real gate, beside fluid and events.

All three have the same traffic, the last two the same requests on the same nodes, so that their difference
is the gate's doing. Progress, pace and time left go to standard error; Ctrl-C ends at the days done.
Prevents: a plan whose refusals are those of a queue that no gateway has.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import click

from control.estimate_scenarios import Scenario
from fleet.clock import SystemClock
from fleet.errors import InvalidInput
from fleet.fluid import BIN_S, DAY_BINS, simulate
from fleet.gate_month import GateRules, GateRun, explained
from fleet.month_result import MonthResult, as_columns, as_dict
from fleet.simulate import EventRun, ServiceModel, run_events

MOST_DAYS = 30
_SHOWN = {
    "cost_usd": ("cost, USD", ",.0f"),
    "mean_nodes": ("nodes, mean", ".2f"),
    "refused_share": ("refused", ".3%"),
    "wait_p50_s": ("wait p50, s", ".2f"),
    "wait_p95_s": ("wait p95, s", ".2f"),
    "wait_p99_s": ("wait p99, s", ".2f"),
    "wait_max_s": ("longest wait, s", ".2f"),
    "slo_attainment": ("in time", ".3%"),
    "utilization": ("rho", ".3f"),
}


def whole_days(days: float | None) -> int:
    """Return how many days go through the gate: 1 to 30. Raises InvalidInput for parts of days."""
    if days is None:
        return MOST_DAYS
    if days != int(days) or not 1 <= days <= MOST_DAYS:
        raise InvalidInput(f"--days is {days:g}", field="days", hint=f"Whole days, 1 to {MOST_DAYS}")
    return int(days)


def confirm_with_gate(
    scenario: Scenario, service: ServiceModel, seed: int, days: int, kv_tokens: int | None, as_json: bool
) -> None:
    """Simulate and print."""
    rates = scenario.profile.month()[: days * DAY_BINS]
    node, slo_s = scenario.node, scenario.slo_wait_s
    run = GateRun(
        EventRun(rates, scenario.strategy, node, service, seed, slo_s, keeps_waits=False),
        GateRules(scenario.tiers, kv_tokens=kv_tokens),
    )
    pace = _advance(run, float(rates.sum()) * BIN_S)
    if run.days_done == 0:
        raise click.Abort
    done = rates[: run.days_done * DAY_BINS]
    fluid = simulate(done, scenario.strategy, node, slo_wait_s=slo_s)
    if run.is_done:
        events = run.events.result()
    else:  # those of the gate's run are a day ahead
        events = run_events(
            EventRun(done, scenario.strategy, node, service, seed, slo_s, keeps_waits=False)
        )
    months = {"fluid": fluid, "events": events, "gate": run.result()}
    if as_json:
        document: dict[str, Any] = {name: as_columns(month) for name, month in months.items()}
        document |= {
            "days": run.days_done,
            "tiers": {one.tier.value: one.as_dict() for one in run.tiers()},
            "difference": explained(run, events),
            "requests_per_s": pace,
        }
        click.echo(json.dumps(document, indent=1, allow_nan=False))
    else:
        click.echo(_as_text(scenario, run, months, pace))


def _advance(run: GateRun, requests: float) -> float:
    """Run to the end or an interruption; return requests a second."""
    clock = SystemClock()
    begun_s, shown = clock.monotonic_s(), 0
    try:
        with click.progressbar(
            length=max(1, round(requests)), label="requests through the gate", file=sys.stderr
        ) as bar:
            while not run.is_done:
                run.advance()
                bar.update(run.requests_done - shown)
                shown = run.requests_done
    except KeyboardInterrupt:
        click.echo(f"stopped after {run.days_done} whole days", err=True)
    return run.requests_done / max(clock.monotonic_s() - begun_s, 1e-9)


def _as_text(scenario: Scenario, run: GateRun, months: Mapping[str, MonthResult], pace: float) -> str:
    rows = {name: as_dict(month) for name, month in months.items()}
    lines = [
        f"Traffic  {scenario.profile.source}",
        f"{run.days_done} days, {run.requests_done:,} requests through the gate, {pace:,.0f} a second",
        f"{'':16}" + "".join(f"{name:>12}" for name in rows),
    ]
    lines += [
        f"{words:16}" + "".join(f"{format(row[name], form):>12}" for row in rows.values())
        for name, (words, form) in _SHOWN.items()
    ]
    lines += ["", f"{'tier':16}" + "".join(f"{n:>12}" for n in ("offered", "refused", "p95 s", "p99 s"))]
    lines += [
        f"{one.tier.value:16}{one.offered:>12,}{one.refused_share:>12.3%}{one.wait_p95_s:>12.2f}"
        f"{one.wait_p99_s:>12.2f}"
        for one in run.tiers()
    ]
    return "\n".join([*lines, "", *explained(run, months["events"])])
