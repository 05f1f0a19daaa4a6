"""`rhodeck estimate run`: what one strategy costs and refuses over a month of one traffic.

The columns of the JSON are those of the published comparison table. Prevents: a cost printed without
whose traffic it was and what was refused.
"""

from __future__ import annotations

import json
import math
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from control.cli_session import transaction
from control.estimate_scenarios import MAX_BYTES, Scenario, read_scenario_text
from control.finite import FiniteRange
from control.rate_profile_files import recorded_rates
from fleet.clock import SystemClock
from fleet.errors import InvalidInput
from fleet.month_result import MonthResult, as_columns
from fleet.rate_profiles import RateProfile


@click.command("run")
@click.argument("scenario", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True))
@click.option("--json", "as_json", is_flag=True, help="Print JSON with the comparison table's columns.")
@click.option("--days", type=FiniteRange(0.01, 62), default=7, show_default=True, help="Of `recorded`.")
def run(scenario: Path, as_json: bool, days: float) -> None:
    """Simulate 720 hours of SCENARIO.json (or -): one strategy on one traffic.

    {"profile": "A", "params": {"n": 5, "D": 1.5}} is five nodes that refuse what would wait over 1.5 s.
    """
    ready = read_scenario_file(scenario, days)
    result = ready.run()
    if as_json:
        shown: dict[str, Any] = {name: _finite(value) for name, value in as_columns(result).items()}
        shown["traffic"] = {"source": ready.profile.source, "notes": ready.profile.notes()}
        click.echo(json.dumps(shown, indent=1, allow_nan=False))
    else:
        click.echo(as_text(ready, result))


def read_scenario_file(path: Path, recorded_days: float) -> Scenario:
    """Return the scenario in a file, or on standard input for "-"."""
    return read_scenario_text(*read_input(path), lambda: recorded(recorded_days))


def read_input(scenario: Path, most: int = MAX_BYTES) -> tuple[str, Path]:
    """Return the text of a file, or of standard input for "-", and the folder its names stand for.

    Of a text longer than `most` characters one more is returned, for the reader to refuse.
    """
    if str(scenario) == "-":
        return sys.stdin.read(most + 1), Path()
    try:
        with scenario.open(encoding="utf-8") as handle:
            return handle.read(most + 1), scenario.parent
    except OSError as exc:
        raise InvalidInput(f"{scenario} cannot be read: {exc.strerror}", field="SCENARIO") from exc
    except UnicodeDecodeError as exc:
        raise InvalidInput(f"{scenario} is not UTF-8 text", field="SCENARIO") from exc


def recorded(days: float) -> RateProfile:
    """Return the arrivals at the fleet's gateways in the last `days`."""
    until = SystemClock().now().astimezone(UTC)
    with transaction() as session:
        return recorded_rates(session, until - timedelta(days=days), _to_bin(until))


def _to_bin(at: datetime) -> datetime:
    return at.replace(second=at.second - at.second % 10, microsecond=0)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def as_text(scenario: Scenario, result: MonthResult) -> str:
    """Return the result as lines for people."""
    node, r = scenario.node, result
    lines = [
        f"Traffic   {scenario.profile.source}; mean {scenario.profile.mean_rps:.4g} requests/s",
        *(f"          {note}" for note in scenario.profile.notes()),
        f"Node      {node.service_rate:g} requests/s of {node.tokens_in:g} + {node.tokens_out:g} tokens, "
        f"{node.usd_per_hour} USD/h",
        "",
        f"Cost      {r.cost_usd:>12,.0f} USD in 720 h"
        f"   {_usd(r.usd_per_million_tokens)} USD per million tokens served,"
        f" {_usd(r.usd_per_million_output_tokens)} of output",
        f"Nodes     {r.mean_nodes:>12.2f} on average   at most {r.max_nodes}"
        f"   {r.node_hours:,.0f} h on demand, {r.burst_hours:,.0f} h spot",
        f"Refused   {r.refused_share:>12.2%} of {r.offered:,.0f} requests"
        f"   lost in flight {r.lost_in_flight:,.0f}",
        f"Wait      p50 {r.wait_p50_s:.2f} s   p95 {r.wait_p95_s:.2f} s   p99 {r.wait_p99_s:.2f} s"
        f"   p99.9 {r.wait_p999_s:.2f} s   at most {r.wait_max_s:.2f} s",
        f"SLO       {r.slo_attainment:>12.2%} of offered requests waited at most {scenario.slo_wait_s:g} s",
        f"rho       {r.utilization:>12.2f} served over what the billed nodes could serve",
        "",
        "Fluid method: refusals within about 0.5 points on smooth traffic, up to 4 on bursty small pools.",
    ]
    return "\n".join(lines)


def _usd(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
