"""`rhodeck gateways`: add, list and remove admission gateways.

Prevents: a gateway that admits on its own because nobody told the controller of it.
"""

from __future__ import annotations

import click

from control import gateway_registry, queries_policy
from control.cli_session import me, transaction
from control.gateway_groups import grouped, process_words
from fleet.clock import SystemClock


@click.group()
def gateways() -> None:
    """Add, list and remove admission gateways."""


@gateways.command()
@click.argument("name")
@click.argument("url")
@click.option(
    "--processes", type=int, help="As the gateway was started; URL is then the first one's admin address."
)
def add(name: str, url: str, processes: int | None) -> None:
    """Register the gateway NAME at URL (http://host:port); the controller sends it its assignment."""
    now = SystemClock().now()
    with transaction() as session:
        if processes is None or processes == 1:
            added = [gateway_registry.add_gateway(session, name=name, url=url, actor=me(), now=now)]
        else:
            added = gateway_registry.add_processes(
                session, name=name, url=url, processes=processes, actor=me(), now=now
            )
    for one in added:
        click.echo(f"gateway {one.name} added at {one.url}")


@gateways.command("list")
def list_gateways() -> None:
    """List gateways with their conditions and the age of their last word."""
    with transaction() as session:
        states = queries_policy.gateway_states(session, SystemClock().now())
    for group, kept in grouped(states):
        if group is not None:
            click.echo(f"{group}  {process_words(kept)}")
        for state in kept:
            age = "never heard" if state.age_s is None else f"heard {state.age_s:.0f} s ago"
            said = f": {state.message}" if state.message else ""
            indent = "" if group is None else "  "
            click.echo(f"{indent}{state.name}  {state.url}  {state.condition}  {age}{said}")
            if state.unsupported:
                click.echo(f"{indent}  does not enforce {', '.join(state.unsupported)}")
    if not states:
        click.echo("no gateways; add one with `rhodeck gateways add NAME URL`")


@gateways.command()
@click.argument("name")
def remove(name: str) -> None:
    """Take the gateway NAME out, all its processes; the others take over its shares. Stop it yourself."""
    now = SystemClock().now()
    with transaction() as session:
        if name in {one.name for one in gateway_registry.gateways(session)}:
            gateway_registry.remove_gateway(session, name=name, actor=me(), now=now)
            names = [name]
        else:
            names = gateway_registry.remove_processes(session, name=name, actor=me(), now=now)
    for one in names:
        click.echo(f"gateway {one} removed; it admits within its last share until it is stopped")
