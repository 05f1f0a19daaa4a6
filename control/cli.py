"""The `rhodeck` command: one name for every part. Loads a subcommand's module only when it is used.

Errors people can act on (`FleetError`) print message and hint and end with exit code 1; a traceback is
a bug. Prevents: a command line that takes seconds to print its help, and errors nobody can read.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fleet.errors import FleetError

#: Subcommand -> (module:attribute, one line for the help).
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("control.cli_up:demo", "Run everything here with a simulated fleet and replayed traffic."),
    "up": ("control.cli_up:up", "Run Postgres, controller, API, gateways and dashboard on this machine."),
    "status": ("control.cli_status:status", "Say whether the fleet is healthy; exit code 0, 1 or 2."),
    "why": ("control.cli_why:why", "Say why a rho reads as it does, each formula with its values."),
    "flow": ("control.cli_flow:flow", "Say whether queues are in balance; exit code 0, 1 or 2."),
    "quality": ("control.cli_quality:quality", "List what is wrong with the data, since when."),
    "diagnose": ("control.cli_diagnose:diagnose", "Capacity or scheduling? Name causes and knobs."),
    "control": ("control.cli_control:control", "Run the controller: scrape, assess, reconcile, ledger."),
    "api": ("control.cli_api:api", "Serve queries, commands and exports over HTTP."),
    "db": ("control.cli_db:db", "Start, migrate, back up and restore the database."),
    "nodes": ("control.cli_nodes:nodes", "Add, list, drain and remove vLLM nodes."),
    "discovery": ("control.cli_discovery:discovery", "Look nodes up in files, DNS, HTTP and Kubernetes."),
    "pools": ("control.cli_nodes:pools", "Add and list pools of nodes."),
    "prom": ("control.cli_prom:prom", "Read samples from Prometheus-compatible servers."),
    "gateways": ("control.cli_gateways:gateways", "Add, list and remove admission gateways."),
    "policy": ("control.cli_policy:policy", "Show, compare, publish and roll back the policy."),
    "tenants": ("control.cli_tenants:tenants", "Create and revoke tenants' API keys."),
    "alerts": ("control.cli_alerts:alerts", "See, acknowledge and silence alerts; change their rules."),
    "webhooks": ("control.cli_alerts:webhooks", "Say where notices about alerts go."),
    "audit": ("control.cli_audit:audit", "List and verify the audit trail."),
    "metrics": ("control.cli_metrics:metrics", "Read metrics pages and windows between them."),
    "capacity": ("control.cli_capacity:capacity", "Fit an engine's capacity to its scrapes."),
    "estimate": ("control.cli_estimate:estimate", "Estimate what autoscaling and admission cost."),
    "sizing": ("control.cli_sizing:sizing", "Say whether a model fits GPUs, how, with which flags."),
    "calc": ("control.cli_calc:calc", "Evaluate one queueing model by hand."),
    "spend": ("control.cli_spend:spend", "Show and export a month's spend."),
    "months": ("control.cli_months:months", "Close months and verify them; correct; divide cost."),
    "invoices": ("control.cli_invoices:invoices", "Import providers' invoices; see where they differ."),
    "budgets": ("control.cli_budgets:budgets", "Say who will run over its budget, when, and what then."),
    "exports": ("control.cli_exports:exports", "Drop months' files into folders and buckets."),
    "prices": ("control.cli_spend:prices", "List and add node-hour prices."),
    "users": ("control.cli_users:users", "Create accounts, set passwords and roles."),
    "tokens": ("control.cli_users:tokens", "Create and revoke scoped API tokens."),
}
#: What `rhodeck PROCESS WORD` does itself instead of starting the process.
WORDS: dict[tuple[str, str], str] = {("gateway", "explain"): "control.cli_explain:explain"}
#: Other packages' processes: never imported, only started.
PROCESSES: dict[str, tuple[str, str]] = {
    "gateway": (
        "admission",
        "Run one admission gateway; `gateway explain ID`: why a request went as it did.",
    ),
    "simfleet": ("simfleet", "Run simulated vLLM nodes and traffic."),
    "dashboard": ("dashboard", "Run the web dashboard."),
}


def _load(place: str) -> Any:
    module, attribute = place.split(":")
    return getattr(importlib.import_module(module), attribute)


def _process(name: str) -> click.Command:
    module, summary = PROCESSES[name]

    @click.command(
        name, help=summary, context_settings={"ignore_unknown_options": True}, add_help_option=False
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def start(arguments: tuple[str, ...]) -> None:
        word = WORDS.get((name, arguments[0])) if arguments else None
        if word is not None:
            _load(word).main(args=list(arguments[1:]), prog_name=f"rhodeck {name} {arguments[0]}")
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])  # noqa: S606 # no shell

    return start


def _say_whole(command: click.Command) -> None:
    """Let a group's help list each of its commands with its whole first sentence, not a part of it."""
    for part in command.commands.values() if isinstance(command, click.Group) else ():
        part.short_help = part.short_help or " ".join((part.help or "").split("\n\n")[0].split())
        _say_whole(part)


class LazyGroup(click.Group):
    """A group that imports a subcommand's module when it is called or its help is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *PROCESSES]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in PROCESSES:
            return _process(cmd_name)
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = _load(COMMANDS[cmd_name][0])
        _say_whole(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, summary) for name, (_, summary) in (COMMANDS | PROCESSES).items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rhodeck")
def rhodeck() -> None:
    """Operate a fleet of vLLM nodes: see its health, turn its policy, know its cost."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exit with 0, the command's code, or 1 and a readable error."""
    try:
        rhodeck.main(args=None if arguments is None else list(arguments), prog_name="rhodeck")
    except FleetError as exc:
        click.echo(f"error: {exc.message}", err=True)
        if exc.hint:
            click.echo(f"hint:  {exc.hint}", err=True)
        sys.exit(1)
    except OSError as exc:  # a full disk under the output, a folder that may not be written, no memory
        where = f"{exc.filename}: " if exc.filename else ""
        click.echo(f"error: {where}{exc.strerror or exc}", err=True)
        click.echo("hint:  Look at the room and the permissions where files and output go", err=True)
        # What could not be written would be flushed again at exit, and that failure ends with code 120.
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 # until the process ends
        sys.exit(1)


if __name__ == "__main__":
    main()
