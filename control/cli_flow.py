"""`rhodeck flow`: is the queue in balance, of the fleet, every pool and tier.

Exit code 0 when every fresh state is known and in balance, 1 when a queue has left equilibrium, 2 when
nothing fresh is known. Prevents: a script that reads an old balance as the present one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from control.cli_session import transaction
from control.flow_report import as_dict, state_age_s
from control.flow_store import FlowNow, flow_now
from control.freshness import stale_after_s
from control.queries_fleet import scrape_period_s
from fleet.clock import SystemClock

BALANCED, LEFT, UNKNOWN = 0, 1, 2


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON with signals, stages and tails.")
def flow(as_json: bool) -> None:
    """Say whether queues are in balance; exit code 0, 1 or 2."""
    now = SystemClock().now()
    with transaction() as session:
        states, stale_s = flow_now(session), stale_after_s(scrape_period_s(session))
    if as_json:
        click.echo(json.dumps({"queues": [as_dict(state, now, stale_s) for state in states]}, indent=2))
    else:
        click.echo(as_text(states, now, stale_s))
    raise SystemExit(exit_code(states, now, stale_s))


def exit_code(states: Sequence[FlowNow], now: datetime, stale_s: float) -> int:
    """Return 1 if a fresh state has left equilibrium, 2 if none is known, else 0."""
    known = [s.is_left for s in states if state_age_s(s, now) <= stale_s and s.is_left is not None]
    return UNKNOWN if not known else LEFT if any(known) else BALANCED


def as_text(states: Sequence[FlowNow], now: datetime, stale_s: float) -> str:
    """Return states as lines for people, the signals that are raised below each."""
    if not states:
        return "no round has been judged yet"
    lines: list[str] = []
    for state in states:
        who = "fleet" if state.scope == "fleet" else f"{state.scope} {state.name}"
        age_s = state_age_s(state, now)
        balance = state.balance or "unknown"
        old = f" (last known, {age_s:.0f} s old)" if age_s > stale_s else ""
        lines.append(f"{who:<28}{balance}{old}, from {state.minutes} minutes")
        signals: list[dict[str, Any]] = state.detail.get("signals") or []
        lines += [f"    {s['name']}: {s['evidence']}" for s in signals if s["is_raised"]]
    return "\n".join(lines)
