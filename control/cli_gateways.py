"""`rhodeck gateways`: add, list and remove admission gateways.

Prevents: a gateway that admits on its own because nobody told the controller of it.
"""

from __future__ import annotations

import click

from control import gateway_registry, queries_policy
from control.cli_session import me, transaction
from fleet.clock import SystemClock


@click.group()
def gateways() -> None:
    """Add, list and remove admission gateways."""


@gateways.command()
@click.argument("name")
@click.argument("url")
def add(name: str, url: str) -> None:
    """Register the gateway NAME at URL (http://host:port); the controller sends it its assignment."""
    with transaction() as session:
        added = gateway_registry.add_gateway(
            session, name=name, url=url, actor=me(), now=SystemClock().now()
        )
    click.echo(f"gateway {added.name} added at {added.url}")


@gateways.command("list")
def list_gateways() -> None:
    """List gateways with their conditions and the age of their last word."""
    with transaction() as session:
        states = queries_policy.gateway_states(session, SystemClock().now())
    for state in states:
        age = "never heard" if state.age_s is None else f"heard {state.age_s:.0f} s ago"
        said = f": {state.message}" if state.message else ""
        click.echo(f"{state.name}  {state.url}  {state.condition}  {age}{said}")
    if not states:
        click.echo("no gateways; add one with `rhodeck gateways add NAME URL`")


@gateways.command()
@click.argument("name")
def remove(name: str) -> None:
    """Take the gateway NAME out; the others take over its shares. Stop the process yourself."""
    with transaction() as session:
        gateway_registry.remove_gateway(session, name=name, actor=me(), now=SystemClock().now())
    click.echo(f"gateway {name} removed; it admits within its last share until it is stopped")
