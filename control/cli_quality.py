"""`rhodeck quality`: what is wrong with the data, since when, and which numbers suffer.

Prevents: a script that has to guess from missing values why they are missing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta

import click

from control.cli_session import transaction
from control.queries_quality import FindingView, findings
from fleet.clock import SystemClock


@click.command()
@click.option("--source", help="Only this node or gateway; '' for the controller itself.")
@click.option(
    "--hours",
    type=click.IntRange(0, 720),
    default=0,
    show_default=True,
    help="Also findings that ended in these last hours.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def quality(source: str | None, hours: int, as_json: bool) -> None:
    """List what is wrong with the data: worst first, with since when and what suffers."""
    now = SystemClock().now()
    with transaction() as session:
        found = findings(session, now, window=timedelta(hours=hours), source=source)
    if as_json:
        click.echo(json.dumps({"findings": [each.as_dict() for each in found]}, indent=2))
    else:
        click.echo(as_text(found))


def as_text(found: Sequence[FindingView]) -> str:
    """Return findings as lines for people."""
    if not found:
        return "nothing is wrong with the data"
    lines: list[str] = []
    for each in found:
        ended = "" if each.until is None else f" until {each.until:%Y-%m-%d %H:%M:%S}"
        engine = f" engine {each.engine}" if each.engine else ""
        metric = f" {each.metric}" if each.metric else ""
        lines.append(
            f"{each.severity:<8}{each.scope} {each.source or '-'}{engine}: {each.title.lower()}{metric}, "
            f"since {each.since:%Y-%m-%d %H:%M:%S} UTC{ended}"
        )
        if each.detail:
            lines.append(f"        {' '.join(each.detail.split())}")
        if each.affects:
            lines.append(f"        affects {', '.join(each.affects)}")
        if each.until is None and each.do:
            lines.append(f"        to do: {each.do}")
    return "\n".join(lines)
