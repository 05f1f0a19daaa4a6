"""`rhodeck estimate confirm --gate`: a scenario's days through the real gate, beside fluid and events.

All three have the same traffic, the last two the same requests on the same nodes, so that their difference
is the gate's doing. Progress, pace and time left go to standard error; Ctrl-C ends at the days done.
Prevents: a plan whose refusals are those of a queue that no gateway has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from control.estimate_scenarios import Scenario
from control.gate_crew import Crew
from control.progress_lines import progress
from fleet.clock import SystemClock
from fleet.engine_profile import EngineProfile
from fleet.errors import InvalidInput
from fleet.fluid import BIN_S, DAY_BINS, simulate
from fleet.gate_month import GateRun
from fleet.gate_rules import GateRules
from fleet.gate_words import explained
from fleet.month_result import MonthResult, as_columns, as_dict
from fleet.replications import spread
from fleet.simulate import EventRun, ServiceModel, run_events

MOST_DAYS = 30
#: So many days are simulated again with other seeds unless more are asked for: bearable, but only some.
REPLICATED_DAYS = 2
_REPLICATED = ("refused_share", "wait_p95_s", "wait_p99_s", "slo_attainment")
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


def replicated_days(text: str | None, days: int) -> int:
    """Return how many of `days` each other seed simulates: "all", or 1 to `days`; 2 unless said.

    Raises InvalidInput.
    """
    if text is None:
        return min(days, REPLICATED_DAYS)
    if text == "all":
        return days
    if text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= days:
        return int(text)
    raise InvalidInput(
        f"--replications-days is {text[:20]!r}",
        field="--replications-days",
        hint=f"Whole days, 1 to {days}, or all",
    )


@dataclass(frozen=True, slots=True)
class GateAsked:
    """How days go through the gate: the first `days`, from `seed`, on so many processes."""

    service: ServiceModel
    seed: int
    days: int
    replications: int = 1
    kv_tokens: int | None = None
    engine: EngineProfile | None = None
    processes: int = 1
    replicated_days: int = REPLICATED_DAYS


def confirm_with_gate(scenario: Scenario, asked: GateAsked, as_json: bool) -> None:
    """Simulate and print."""
    run = _gate_run(scenario, asked, asked.seed, asked.days)
    rates = run.events.rates_rps
    requests = float(rates.sum()) * BIN_S
    pace = _advance(run, asked.processes, requests, "requests through the gate")
    if run.days_done == 0:
        raise click.Abort
    done = rates[: run.days_done * DAY_BINS]
    fluid = simulate(done, scenario.strategy, scenario.node, slo_wait_s=scenario.slo_wait_s)
    if run.is_done:
        events = run.events.result()
    else:  # those of the gate's run are ahead
        events = run_events(_event_run(scenario, asked.service, asked.seed, done))
    months = {"fluid": fluid, "events": events, "gate": run.result()}
    others = _other_seeds(scenario, asked, run)
    if as_json:
        document: dict[str, Any] = {name: as_columns(month) for name, month in months.items()}
        document |= {
            "days": run.days_done,
            "tiers": {one.tier.value: one.as_dict() for one in run.tiers()},
            "tenants": [one.as_dict() for one in run.tenants()],
            "preemptions": run.preemptions,
            "difference": explained(run, events),
            "requests_per_s": pace,
            "replications": others,
        }
        click.echo(json.dumps(document, indent=1, allow_nan=False))
    else:
        click.echo(_as_text(scenario, run, months, pace, others))


def _gate_run(scenario: Scenario, asked: GateAsked, seed: int, days: int) -> GateRun:
    rates = scenario.profile.month()[: days * DAY_BINS]
    rules = GateRules(scenario.whose.flows, scenario.whose.weights, asked.kv_tokens, asked.engine)
    return GateRun(_event_run(scenario, asked.service, seed, rates), rules)


def _event_run(
    scenario: Scenario, service: ServiceModel, seed: int, rates: NDArray[np.float64]
) -> EventRun:
    slo_s = scenario.slo_wait_s
    return EventRun(rates, scenario.strategy, scenario.node, service, seed, slo_s, keeps_waits=False)


def _advance(run: GateRun, processes: int, requests: float, label: str) -> float:
    """Run to the end or an interruption; return requests a second."""
    clock = SystemClock()
    begun_s, length = clock.monotonic_s(), max(1, round(requests))
    with Crew(run, processes) as crew:
        try:
            with progress(length, label) as told:
                while not crew.is_done:
                    crew.advance()
                    told(min(crew.requests_done, length - 1), length)
                told(length, length)  # as many as were expected, more or fewer
        except KeyboardInterrupt:
            click.echo(f"stopped after {run.days_done} whole days", err=True)
    return run.requests_done / max(clock.monotonic_s() - begun_s, 1e-9)


def _other_seeds(scenario: Scenario, asked: GateAsked, run: GateRun) -> dict[str, Any] | None:
    """Return how far chance moves refusals and waits: other seeds on the first days; None for one seed."""
    if asked.replications < 2 or not run.is_done:
        return None
    days = min(asked.days, asked.replicated_days)
    found: list[dict[str, Any]] = []
    for seed in range(asked.seed + 1, asked.seed + 1 + asked.replications):
        other = _gate_run(scenario, asked, seed, days)
        requests = float(other.events.rates_rps.sum()) * BIN_S
        _advance(other, asked.processes, requests, f"seed {seed}, {days} days")
        if not other.is_done:
            return None
        found.append(as_dict(other.result()))
    spreads = {name: spread([one[name] for one in found]) for name in _REPLICATED}
    shown = {name: None if s is None else [s.mean, s.low, s.high] for name, s in spreads.items()}
    return {"seeds": asked.replications, "days": days, "of_days": asked.days, **shown}


def _as_text(
    scenario: Scenario,
    run: GateRun,
    months: Mapping[str, MonthResult],
    pace: float,
    others: Mapping[str, Any] | None,
) -> str:
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
    heads = ("offered", "refused", "p95 s", "p99 s", "first p95", "end p95")
    lines += ["", f"{'tier':16}" + "".join(f"{head:>12}" for head in heads)]
    lines += [
        f"{one.tier.value:16}{one.offered:>12,}{one.refused_share:>12.3%}{one.wait_p95_s:>12.2f}"
        f"{one.wait_p99_s:>12.2f}{_seconds(one.first_p95_s):>12}{_seconds(one.e2e_p95_s):>12}"
        for one in run.tiers()
    ]
    if run.tenants():
        lines += ["", f"{'tenant':28}{'tier':16}" + "".join(f"{h:>12}" for h in ("offered", "refused"))]
        lines += [
            f"{one.tenant[:26]:28}{one.tier.value:16}{one.offered:>12,}{one.refused_share:>12.3%}"
            for one in run.tenants()
        ]
    lines += ["", *explained(run, months["events"])]
    return "\n".join(lines if others is None else [*lines, *_spread_lines(others)])


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _spread_lines(others: Mapping[str, Any]) -> list[str]:
    some, whole = others["days"], others["of_days"]
    days = "day" if some == 1 else f"{some} days"
    which = f"all {days}" if 1 < some == whole else f"the first {days}"
    which += f" of {whole}" if some < whole else ""
    lines = ["", f"{others['seeds']} other seeds on {which}, 95 % interval of their mean:"]
    for name in _REPLICATED:
        if others[name] is not None:
            words, form = _SHOWN[name]
            low, high = (format(value, form) for value in others[name][1:])
            lines.append(f"  {words}: {low} to {high}")
    if some < whole:
        lines += [
            f"That is chance within those days alone, not in the {whole} above: other days differ.",
            "--replications-days all simulates every day again.",
        ]
    return lines
