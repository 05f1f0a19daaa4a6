"""`rhodeck discovery`: places where nodes are looked up. Add, list, check, pause, resume, remove.

Results go to stdout, one line a thing, or JSON with `--json`. `check` asks a source and changes nothing.
Prevents: a source whose first answer is seen only when it has changed the fleet.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import click

from control import commands_discovery
from control.cli_session import me, transaction
from control.discovery import Lookups, Source
from control.discovery_apply import naming_of, present_nodes
from control.discovery_plan import Plan, plan
from control.discovery_settings import MODELS
from control.discovery_targets import Answer, Wanted, wanted_nodes
from control.fetch import open_session
from control.queries_discovery import SourceView, discovery_sources
from control.tables import DiscoverySourceRow
from fleet.clock import SystemClock
from fleet.errors import NotFound
from fleet.messages import PRICE_CLASSES


@click.group()
def discovery() -> None:
    """Look nodes up in files, DNS, HTTP service discovery, Kubernetes and Prometheus."""


@discovery.command("add")
@click.argument("name")
@click.argument("kind", type=click.Choice(list(MODELS)))
@click.option("--pool", required=True, help="Pool its nodes belong to.")
@click.option("--path", help="file: the file, with its whole path.")
@click.option("--url", help="http_sd: the address to ask; prometheus: what comes before /api/v1.")
@click.option("--match", help='prometheus: matchers of its targets, job="vllm".')
@click.option("--read-from", help="prometheus: read new nodes' samples from this source of `rhodeck prom`.")
@click.option("--instance-label", help="prometheus: the label that source tells nodes apart by.")
@click.option("--basic-file", help="prometheus: file with user:password, read at each use.")
@click.option("--service", help="dns_srv: the name, as _vllm._tcp.example.org.")
@click.option("--server", help="dns_srv: ADDRESS[:PORT] to ask in place of the system's resolvers.")
@click.option("--namespace", help="kubernetes: the namespace.")
@click.option("--selector", help="kubernetes: labels of EndpointSlices, kubernetes.io/service-name=vllm.")
@click.option("--port", help="kubernetes: name or number of the port.")
@click.option("--api-url", help="kubernetes: the API server, unless inside a pod.")
@click.option(
    "--token-file", help="http_sd, kubernetes, prometheus: file with a bearer token, read at each use."
)
@click.option("--ca-file", help="http_sd, kubernetes, prometheus: file with the certificates to trust.")
@click.option("--name-rule", help="Node names from {host}, {port}, {address}, {label_NAME}.")
@click.option(
    "--price-class",
    type=click.Choice(PRICE_CLASSES),
    default="on_demand",
    show_default=True,
    help="Of nodes it adds.",
)
@click.option(
    "--scheme",
    type=click.Choice(["http", "https"]),
    default="http",
    show_default=True,
    help="Of nodes it adds.",
)
@click.option("--metrics-path", default="/metrics", show_default=True, help="Of nodes it adds.")
@click.option("--gpu-port", type=click.IntRange(1, 65_535), help="Port of dcgm-exporter on each host.")
@click.option("--interval", "interval_s", type=float, default=30.0, show_default=True, help="Seconds.")
@click.option(
    "--grace",
    "grace_s",
    type=float,
    default=600.0,
    show_default=True,
    help="Seconds after which a node that is named no more is removed.",
)
def add(name: str, kind: str, pool: str, **options: Any) -> None:
    """Look up nodes of POOL at a source NAME of the given KIND."""
    fields = MODELS[kind].model_fields
    settings = {key: value for key, value in options.items() if key in fields and value is not None}
    foreign = [
        key
        for model in MODELS.values()
        for key in model.model_fields
        if key not in fields and options.get(key) is not None
    ]
    if foreign:
        raise click.UsageError(f"--{foreign[0].replace('_', '-')} does not belong to {kind}")
    kept = ("name_rule", "price_class", "scheme", "metrics_path", "gpu_port", "interval_s", "grace_s")
    with transaction() as session:
        commands_discovery.add_source(
            session,
            me(),
            name=name,
            kind=kind,
            settings=settings,
            pool=pool,
            now=SystemClock().now(),
            **{key: options[key] for key in kept},
        )
    click.echo(f"source {name} added; `rhodeck discovery check {name}` shows what it answers")


@discovery.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object a source.")
def list_sources(as_json: bool) -> None:
    """List sources with their nodes and how the newest look went."""
    with transaction() as session:
        sources = discovery_sources(session)
    if as_json:
        click.echo(json.dumps([asdict(source) for source in sources], default=str, indent=2))
        return
    for source in sources:
        click.echo(source_line(source))
    if not sources:
        click.echo("no sources; add one with `rhodeck discovery add NAME KIND --pool POOL`")


def source_line(source: SourceView) -> str:
    """Return one source as a line of text."""
    parts = [source.name, source.kind, source.pool, source.state, f"{source.nodes} nodes"]
    if source.missing:
        parts.append(f"{source.missing} missing")
    if source.tried_at is None:
        parts.append("not asked yet")
    elif source.answered_at is None:
        parts.append("never answered")
    else:
        age_s = (SystemClock().now() - source.answered_at).total_seconds()
        parts.append(f"answered {age_s:.0f} s ago")
    if source.problem:
        parts.append(f"FAILING: {source.problem}")
    return "  ".join([*parts, *source.remarks])


@discovery.command("check")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print the nodes as JSON.")
def check(name: str, as_json: bool) -> None:
    """Ask the source NAME now and print what it would change; change nothing."""
    now = SystemClock().now()
    with transaction() as session:
        row = session.get(DiscoverySourceRow, name)
        if row is None:
            raise NotFound(
                f"no source is called {name!r}", hint="See `rhodeck discovery list`", field="name"
            )
        source = Source(row.name, row.kind, dict(row.settings), row.interval_s)
        naming = naming_of(row)
    wanted, remarks = wanted_nodes(naming, asyncio.run(_look(source)))
    with transaction() as session:
        todo = plan(name, wanted, present_nodes(session), grace=timedelta(0), now=now)
    if as_json:
        click.echo(json.dumps(_as_json(wanted, todo, remarks), indent=2))
        return
    for node in wanted:
        further = f"  and {len(node.pages)} further engines" if node.pages else ""
        click.echo(f"{node.name}  {node.url}{node.metrics_path}{further}")
    for line in (*todo.remarks, *remarks):
        click.echo(f"left out: {line}")
    click.echo(_sentence(todo, len(wanted)))


async def _look(source: Source) -> Answer:
    async with open_session() as http:
        lookups = Lookups(http, SystemClock())
        try:
            return await lookups.look(source)
        finally:
            await lookups.close()


def _sentence(todo: Plan, found: int) -> str:
    if todo.problem:
        return todo.problem
    gone = len(todo.missing) + len(todo.remove)
    nodes = "1 node" if found == 1 else f"{found} nodes"
    return f"{nodes}: {len(todo.add)} new, {len(todo.move)} moved, {gone} of before named no more"


def _as_json(wanted: tuple[Wanted, ...], todo: Plan, remarks: tuple[str, ...]) -> dict[str, Any]:
    return {
        "nodes": [asdict(node) for node in wanted],
        "add": [node.name for node in todo.add],
        "move": [node.name for node in todo.move],
        "named_no_more": sorted((*todo.missing, *todo.remove)),
        "problem": todo.problem,
        "remarks": [*todo.remarks, *remarks],
    }


@discovery.command("pause")
@click.argument("name")
@click.option("--note", default="", help="Why; kept in the audit trail.")
def pause(name: str, note: str) -> None:
    """Look at the source NAME no more; its nodes stay as they are."""
    with transaction() as session:
        commands_discovery.pause_source(session, me(), name=name, note=note, now=SystemClock().now())
    click.echo(f"source {name} is paused")


@discovery.command("resume")
@click.argument("name")
@click.option("--note", default="", help="Why; kept in the audit trail.")
def resume(name: str, note: str) -> None:
    """Look at the source NAME again."""
    with transaction() as session:
        commands_discovery.resume_source(session, me(), name=name, note=note, now=SystemClock().now())
    click.echo(f"source {name} is looked at again")


@discovery.command("remove")
@click.argument("name")
@click.option("--with-nodes", is_flag=True, help="Remove its nodes too; without, they stay.")
def remove(name: str, with_nodes: bool) -> None:
    """Take out the source NAME."""
    with transaction() as session:
        nodes = commands_discovery.remove_source(
            session, me(), name=name, with_nodes=with_nodes, now=SystemClock().now()
        )
    rest = "removed with it" if with_nodes else "stay, as if added by hand"
    click.echo(f"source {name} removed; its {nodes} nodes {rest}")
