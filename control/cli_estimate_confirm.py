"""`rhodeck estimate confirm`: the same scenario by event simulation, beside what the fluid method says.

Runs one month per replication with progress on standard error; Ctrl-C stops and prints what is done.
Prevents: a fluid answer taken to a meeting without its error, and one run shown without its spread.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from control.cli_estimate_gate import GateAsked, confirm_with_gate, replicated_days, whole_days
from control.cli_estimate_goodput import fitted_model
from control.cli_estimate_run import read_scenario_file
from control.estimate_runs import USUAL_SLOTS
from control.estimate_scenarios import Scenario
from control.finite import FiniteRange
from control.gate_crew import usual_processes
from control.progress_lines import progress
from fleet.engine_profile import EngineProfile, profile_named
from fleet.errors import InvalidInput
from fleet.goodput_simulation import profile_of
from fleet.month_result import MonthResult, as_columns
from fleet.replications import Spread, spread
from fleet.simulate import EventRun, ServiceModel, run_events

#: What the two methods are compared by, with its words, unit and form.
_SHOWN = {
    "cost_month": ("cost, USD", ",.0f"),
    "avg_nodes": ("nodes, mean", ".2f"),
    "rej_frac": ("refused", ".3%"),
    "p50_wait": ("wait p50, s", ".2f"),
    "p99_wait": ("wait p99, s", ".2f"),
    "max_wait": ("longest, s", ".2f"),
    "slo_attain": ("in time", ".3%"),
    "util": ("rho", ".3f"),
}


@click.command("confirm")
@click.argument("scenario", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True))
@click.option(
    "--replications",
    type=click.IntRange(1, 100),
    help="Months, 3 unless said; with --gate other seeds on the first days.",
)
@click.option("--replications-days", help="With --gate: days each other seed simulates; 2, or all.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=1, show_default=True, help="Of the first.")
@click.option("--slots", type=click.IntRange(1, 100_000), help="A node's; 36 unless said, or the engine's.")
@click.option("--cv2", type=FiniteRange(0, 100), default=0.6, show_default=True, help="Of service.")
@click.option("--gate", "with_gate", is_flag=True, help="Through the gateway's own gate as well.")
@click.option("--kv-tokens", type=click.IntRange(1, 10**12), help="KV cache of a node; with --gate.")
@click.option("--engine", help="Engines of this profile behind the gate; with --gate.")
@click.option(
    "--fit", type=click.Path(dir_okay=False, path_type=Path), help="The same, from JSON of `capacity fit`."
)
@click.option("--processes", type=click.IntRange(1, 64), help="One a core, at most 4; with --gate.")
@click.option(
    "--days",
    type=FiniteRange(0.01, 62),
    help="Of `recorded` (7 unless said); with --gate the days to simulate (30 unless said).",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def confirm(
    scenario: Path,
    replications: int | None,
    replications_days: str | None,
    seed: int,
    slots: int | None,
    cv2: float,
    with_gate: bool,
    kv_tokens: int | None,
    engine: str | None,
    fit: Path | None,
    processes: int | None,
    days: float | None,
    as_json: bool,
) -> None:
    """Simulate every request of 720 hours of SCENARIO.json, several times.

    With --gate once, day by day on every core, also through the gate that admits in production.
    """
    ready = read_scenario_file(scenario, days or 7)
    profile = _profile(engine, fit, slots or USUAL_SLOTS, ready)
    service = ServiceModel(slots or (USUAL_SLOTS if profile is None else profile.max_num_seqs), cv2)
    if with_gate:
        cores, count = processes or usual_processes(), whole_days(days)
        again = replicated_days(replications_days, count)
        asked = GateAsked(service, seed, count, replications or 1, kv_tokens, profile, cores, again)
        confirm_with_gate(ready, asked, as_json)
        return
    if replications_days is not None:
        raise InvalidInput(
            "without --gate every replication is a whole month",
            field="--replications-days",
            hint="Add --gate",
        )
    if profile is not None:
        raise InvalidInput("engines serve only behind the gate", field="--engine", hint="Add --gate")
    fluid = ready.run()
    found = _replicate(ready, service, range(seed, seed + (replications or 3)))
    if not found:
        raise click.Abort
    months = len(found)
    events = {name: spread([as_columns(result)[name] for result in found]) for name in as_columns(fluid)}
    if as_json:
        shown = {name: None if s is None else [s.mean, s.low, s.high] for name, s in events.items()}
        document = {"replications": months, "fluid": as_columns(fluid), "events": shown}
        click.echo(json.dumps(document, indent=1, allow_nan=False))
    else:
        click.echo(_as_text(ready, fluid, events, months))


def _profile(engine: str | None, fit: Path | None, slots: int, scenario: Scenario) -> EngineProfile | None:
    """Return the engine that serves behind the gate: a named one, or one as fitted; None: neither."""
    if fit is None:
        return None if engine is None else profile_named(engine)
    if engine is not None:
        raise InvalidInput("both an engine and a fit are given", field="--fit", hint="Give one of them")
    node = scenario.node
    return profile_of(fitted_model(fit, node.tokens_in, node.tokens_out), slots)


def _replicate(scenario: Scenario, service: ServiceModel, seeds: range) -> list[MonthResult]:
    """Return the whole months that were simulated before an interruption."""
    found: list[MonthResult] = []
    rates = scenario.profile.month()
    try:
        for seed in seeds:
            run = EventRun(rates, scenario.strategy, scenario.node, service, seed, scenario.slo_wait_s)
            with progress(run.days, f"month {len(found) + 1} of {len(seeds)}") as told:
                found.append(run_events(run, told))
    except KeyboardInterrupt:
        click.echo(f"stopped after {len(found)} whole months", err=True)
    return found


def _as_text(scenario: Scenario, fluid: MonthResult, events: dict[str, Spread | None], months: int) -> str:
    columns = as_columns(fluid)
    lines = [
        f"Traffic  {scenario.profile.source}",
        f"{'':12} {'fluid':>12} {'events':>12}   95 % interval of the mean over {months} months",
    ]
    for name, (words, form) in _SHOWN.items():
        value, found = columns[name], events[name]
        shown = "-" if value is None else format(value, form)
        if found is None:
            lines.append(f"{words:12} {shown:>12} {'-':>12}")
            continue
        interval = (
            ""
            if found.low is None or found.high is None
            else (f"   {format(found.low, form)} to {format(found.high, form)}")
        )
        lines.append(f"{words:12} {shown:>12} {format(found.mean, form):>12}{interval}")
    lines += [
        "",
        "Events refuse more where chance fills a fleet that is full on average. An autoscaler that counts",
        "arrivals holds more nodes than one that knows the rate: it follows the noise upwards.",
    ]
    return "\n".join(lines)
