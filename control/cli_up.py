"""`rhodeck up` and `rhodeck demo`: everything on one machine, with nothing but Python.

One line a part, then a summary with addresses; Ctrl-C or SIGTERM stops all of it. Prevents: a person who
needs six terminals to see the first number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from zoneinfo import ZoneInfo

import click

from control import launch
from control import up as plan
from control.database import upgrade
from control.embedded import EmbeddedPostgres
from control.embedded_folder import make_folder, owner_of
from control.embedded_process import choose_account
from control.finite import FiniteRange
from control.launch import Asked
from control.ports import PortClaims
from control.settings import load_settings
from fleet.engine_profile import PROFILES, profile_named
from fleet.errors import Conflict

DEMO_MARK = "demo"


def _options(command: Callable[..., None]) -> Callable[..., None]:
    count, port = click.IntRange(1, 16), click.IntRange(1, 65535)
    for option in (
        click.option("--state-dir", type=click.Path(path_type=Path), help="Default: RHODECK_STATE_DIR."),
        click.option("--gateways", type=count, default=2, show_default=True, help="How many."),
        click.option("--dashboard-port", type=port, help="Default: 8501, or a free one."),
    ):
        command = option(command)
    return command


@click.command()
@_options
def up(state_dir: Path | None, gateways: int, dashboard_port: int | None) -> None:
    """Run Postgres, controller, API, gateways and dashboard on this machine, until Ctrl-C."""
    _run(state_dir, Asked(gateways, dashboard_port))


@click.command()
@_options
@click.option("--nodes", type=click.IntRange(1, 64), default=12, show_default=True, help="Simulated nodes.")
@click.option(
    "--profile", default="h100-70b-fp8", show_default=True, help=f"One of: {', '.join(PROFILES)}."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of traffic and answers.")
@click.option(
    "--rate",
    type=FiniteRange(0.1, 500),
    default=plan.DEMO_RATE,
    show_default=True,
    help="Requests/s over the trace.",
)
def demo(
    state_dir: Path | None,
    gateways: int,
    dashboard_port: int | None,
    nodes: int,
    profile: str,
    seed: int,
    rate: float,
) -> None:
    """Run everything with a simulated fleet and replayed public traffic, until Ctrl-C."""
    simulation = launch.Simulation(nodes, profile_named(profile), seed, rate)
    _run(state_dir, Asked(gateways, dashboard_port, simulation))


def _run(state_dir: Path | None, asked: Asked) -> None:
    settings = load_settings()
    if settings.database_url is not None:
        raise Conflict(
            "DATABASE_URL names another database than the embedded one",
            hint="Unset it, or start the parts one by one (docs/operations.md)",
            field="DATABASE_URL",
        )
    with PortClaims() as claims:  # better now than after the database was made
        plan.choose_ports(claims, asked.gateways, asked.dashboard_port)
    folders = plan.Folders((state_dir or settings.state_dir).absolute())
    mark, data = folders.state / DEMO_MARK, folders.state / "data"
    if data.exists() and mark.exists() != asked.is_demo:
        held = "a demonstration" if mark.exists() else "a real fleet's data"
        hint = "Give another folder with --state-dir"
        raise Conflict(f"{folders.state} holds {held}", hint=hint, field="--state-dir")
    if asked.is_demo:  # before the database is made: a start may be interrupted
        make_folder(folders.state, choose_account(settings.pg_user, owner_of(data)))
        mark.touch()
    with EmbeddedPostgres(folders.state, progress=_say, pg_user=settings.pg_user) as server:
        if not asked.is_demo:
            mark.unlink(missing_ok=True)  # of a demonstration that never got its database
        _say(f"schema at revision {upgrade(server.dsn)}")
        machine = launch.Machine(server, folders, asked, ZoneInfo(settings.finance_timezone), _say)
        asyncio.run(machine.run())
    _say("stopped")


def _say(line: str) -> None:
    click.echo(line, err=True)
