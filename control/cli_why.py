"""`rhodeck why`: why a rho reads as it does, each formula with its values, for any scope.

Prevents: a number that has to be believed.
"""

from __future__ import annotations

import json

import click

from control.cli_session import transaction
from control.queries_fleet import HealthView
from control.queries_rho import SCOPES, as_dict, scope_named, verdicts
from fleet.clock import SystemClock
from fleet.errors import NotFound


@click.command()
@click.argument("scope", type=click.Choice(SCOPES), default="fleet")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object a subject.")
def why(scope: str, name: str | None, as_json: bool) -> None:
    """Say why rho of a SCOPE (and NAME) reads as it does, step by step."""
    with transaction() as session:
        found = verdicts(session, SystemClock().now(), (scope_named(scope),), name=name)
    if as_json:
        click.echo(json.dumps([as_dict(view) for view in found], indent=1))
        return
    if not found:
        raise NotFound(f"there is no verdict about any {scope} yet", hint="Is `rhodeck control` running?")
    click.echo("\n\n".join(_text(view) for view in found))


def _text(view: HealthView) -> str:
    subject = f"{view.scope} {view.name}".strip()
    old = f", {view.age_s:.0f} s old" if view.is_stale else ""
    lines = [str(line) for line in view.detail.get("explanation", ())]
    return "\n  ".join([f"{subject}{old}", *(lines or ["the verdict came without an explanation"])])
