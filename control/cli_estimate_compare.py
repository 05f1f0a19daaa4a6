"""`rhodeck estimate compare`: up to six strategies on one traffic, with break-even and who is refused.

Prevents: a comparison that leaves the autoscaler out because it has to be typed in by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from control.cli_estimate_run import read_input, recorded
from control.comparison_documents import Comparable, read_comparison
from control.comparison_report import as_csv, as_json, as_text
from control.estimate_scenarios import json_object, profile_named
from control.finite import FiniteRange
from control.rate_profile_files import BUNDLED


@click.command("compare")
@click.argument("what", metavar="FILE|NAME")
@click.option("--json", "shown", flag_value="json", help="Print JSON.")
@click.option("--csv", "shown", flag_value="csv", help="Print CSV.")
@click.option("--days", type=FiniteRange(0.01, 62), default=7, show_default=True, help="Of `recorded`.")
def compare(what: str, shown: str | None, days: float) -> None:
    """Compare strategies on the traffic of a comparison document, a traffic file or a bundled profile.

    A file that ends in .json is a document, as {"traffic": "C", "mu": 3, "price": 28}; - reads one from
    standard input. Anything else is a traffic: six strategies are sized from it.
    """
    ready = _ready(what, days)
    compared = ready.run()
    if shown == "json":
        click.echo(json.dumps(as_json(ready, compared), indent=1, allow_nan=False))
    elif shown == "csv":
        click.echo(as_csv(ready, compared), nl=False)
    else:
        click.echo(as_text(ready, compared))


def _ready(what: str, days: float) -> Comparable:
    document: dict[str, Any] = {"traffic": what}
    folder = Path()
    if what == "-" or (what.endswith(".json") and what not in BUNDLED):
        text, folder = read_input(Path(what))
        document = json_object(text, "the comparison")
    return read_comparison(document, lambda name: profile_named(name, folder, lambda: recorded(days)))
