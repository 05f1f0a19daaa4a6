"""`rhodeck diagnose`: capacity or scheduling? What is wrong, why, and which knob to turn.

Exit code 0: healthy, 1: a cause was found, 2: the database cannot be asked, 3: cannot say. Prevents: a
script that takes "cannot say" for "all is well".
"""

from __future__ import annotations

import json
import sys

import click

from control.cli_session import transaction
from control.diagnose import checked_span, diagnosis, span_of
from control.diagnosis_report import EXIT_CODES, as_json, as_text
from fleet.clock import SystemClock
from fleet.errors import Unavailable

UNREACHABLE = 2


@click.command(
    epilog="Exit code 0: healthy, 1: a cause was found, 2: the database cannot be asked, 3: cannot say."
)
@click.option("--since", default="15m", show_default=True, help="How far back: 3m to 6h.")
@click.option("--json", "as_json_", is_flag=True, help="Print one JSON object.")
def diagnose(since: str, as_json_: bool) -> None:
    """Say what is wrong with the fleet, and whether more hardware would help."""
    span = checked_span(span_of(since))
    try:
        with transaction() as session:
            verdict = diagnosis(session, SystemClock().now(), span)
    except Unavailable as problem:
        if as_json_:
            click.echo(json.dumps({"verdict": None, **problem.as_dict()}))
        click.echo(f"error: {problem.message}", err=True)
        if problem.hint:
            click.echo(f"hint:  {problem.hint}", err=True)
        sys.exit(UNREACHABLE)
    click.echo(json.dumps(as_json(verdict), indent=2, allow_nan=False) if as_json_ else as_text(verdict))
    sys.exit(EXIT_CODES[verdict.kind])
