"""`rhodeck status`: is the fleet healthy? As text or JSON, and as an exit code for scripts.

Prevents: a monitoring check that takes "the database is away" for "all is well".
"""

from __future__ import annotations

import json
import sys

import click

from control.cli_session import transaction
from control.controller_page import Waiting, waiting_rounds
from control.gateway_groups import grouped, process_words
from control.settings import load_settings
from control.status_report import HEALTHY_MEANS, StatusReport, status_report
from fleet.clock import SystemClock
from fleet.errors import FleetError

UNREACHABLE = 2


@click.command(
    epilog=f"{HEALTHY_MEANS} Exit code 0: healthy, 1: not healthy, 2: the database cannot be asked."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(as_json: bool) -> None:
    """Say whether the fleet is healthy; exit code 0, 1 or 2."""
    try:
        with transaction() as session:
            report = status_report(session, SystemClock().now())
    except FleetError as problem:
        held = _held()
        if as_json:
            click.echo(
                json.dumps({"healthy": None, **problem.as_dict(), "controller": held and held.as_dict()})
            )
        click.echo(f"error: {problem.message}", err=True)
        if problem.hint:
            click.echo(f"hint:  {problem.hint}", err=True)
        said = (
            "none answers on this machine: whether rounds are kept is not known"
            if held is None
            else str(held)
        )
        click.echo(f"controller: {said}", err=True)
        sys.exit(UNREACHABLE)
    held = _held()
    if as_json:
        click.echo(json.dumps(report.as_dict() | {"controller": held and held.as_dict()}, indent=2))
    else:
        click.echo(as_text(report) + (f"\nwaiting   {held}" if held is not None and held.rounds else ""))
    sys.exit(0 if report.is_healthy else 1)


def _held() -> Waiting | None:
    """Return the rounds a controller on this machine holds back, None where none answers."""
    try:
        settings = load_settings()
    except FleetError:
        return None
    return waiting_rounds(settings.control_host, settings.control_port)


def as_text(report: StatusReport) -> str:
    """Return the report as lines for people."""
    counts = ", ".join(f"{count} {state}" for state, count in report.nodes.items())
    lines = ["healthy" if report.is_healthy else "NOT healthy", f"nodes     {counts}", _rho_line(report)]
    lines.append(f"revision  {'none' if report.revision is None else report.revision}")
    if report.rollout is not None and report.rollout.state not in ("live", "superseded"):
        why = " ".join(report.rollout.reason.split())
        said = f"revision {report.rollout.revision} is {report.rollout.state}"
        lines.append(f"rollout   {said}: {why}" if why else f"rollout   {said}")
    for group, gateways in grouped(report.gateways):
        if group is not None:
            lines.append(f"gateway   {group}: {process_words(gateways)}")
        for g in gateways:
            age = "never heard" if g.age_s is None else f"heard {g.age_s:.0f} s ago"
            generation = "-" if g.observed_generation is None else g.observed_generation
            indent = "" if group is None else "  "
            lines.append(f"gateway   {indent}{g.name}: {g.condition}, {age}, generation {generation}")
    lines += [
        f"over      {tenant}: over by {by.tokens:,} tokens and {by.requests:,} requests; nothing is stopped"
        for tenant, by in report.over.items()
    ]
    lines += [
        f"shadow    {name} would have refused {count:,} in the last hour"
        for name, count in (report.would_refuse or {}).items()
    ]
    lines += [f"alert     {a.id} {a.state} {a.severity}: {a.summary}" for a in report.alerts]
    lines += [f"problem   {problem}" for problem in report.problems]
    return "\n".join(lines)


def _rho_line(report: StatusReport) -> str:
    health = report.health
    if health is None or health.is_stale or health.rho is None:
        return "rho       unknown"
    interval = ""
    if health.rho_low is not None and health.rho_high is not None:
        interval = f" [{health.rho_low:.2f}, {health.rho_high:.2f}]"
    grade = f", grade {health.grade}" if health.grade else ""
    if health.method == "configured":
        grade = ", on a configured capacity"
    elif health.method == "mixed" and not health.grade:
        grade = ", on capacities not all measured"
    partial = f", partial: {', '.join(health.missing_nodes)} missing" if health.missing_nodes else ""
    silent: dict[str, float] = health.detail.get("silent_gateways", {})
    least: float | None = health.detail.get("rho_heard")
    if silent and least is not None:
        named = ", ".join(f"{name} silent for {age_s:.0f} s" for name, age_s in silent.items())
        told = f"{health.rho:.2f} with what was told last: {named}"
        return f"rho       at least {least:.2f}{grade}{partial}; {told}"
    return f"rho       {health.rho:.2f}{interval}{grade}{partial}"
