"""`rhodeck nodes` and `rhodeck pools`: add, list, drain and remove what is watched.

Results go to stdout, one line a thing, or JSON with `--json`. Prevents: a fleet that can only be changed
by whoever knows the tables.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime

import click

from control import commands_discovery, commands_fleet
from control.cli_session import me, transaction
from control.finite import FiniteRange
from control.queries_discovery import GpuView, PageView, node_gpus, node_pages
from control.queries_nodes import NodeRowView, node_table
from control.queries_pools import PoolView, pool_table
from fleet.clock import SystemClock
from fleet.errors import NotFound
from fleet.messages import PRICE_CLASSES, ROLES


@click.group()
def nodes() -> None:
    """Add, list, drain and remove vLLM nodes."""


@nodes.command("add")
@click.argument("name")
@click.argument("url")
@click.option("--pool", required=True, help="Pool it belongs to; see `rhodeck pools`.")
@click.option(
    "--price-class",
    type=click.Choice(PRICE_CLASSES),
    default="on_demand",
    show_default=True,
    help="What its hours cost.",
)
@click.option("--metrics-path", default="/metrics", show_default=True, help="Where its metrics are.")
def add_node(name: str, url: str, pool: str, price_class: str, metrics_path: str) -> None:
    """Register the node NAME at URL (http://host:port); the next round asks it for its metrics."""
    with transaction() as session:
        commands_fleet.add_node(
            session,
            me(),
            name=name,
            url=url,
            pool=pool,
            price_class=price_class,
            metrics_path=metrics_path,
            now=SystemClock().now(),
        )
    click.echo(f"node {name} added to pool {pool}")


@nodes.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object a node.")
def list_nodes(as_json: bool) -> None:
    """List nodes with their state, the age of their last sample and their utilization."""
    with transaction() as session:
        rows = node_table(session, SystemClock().now())
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], default=str, indent=2))
        return
    for row in rows:
        click.echo(node_line(row))
    if not rows:
        click.echo("no nodes; add one with `rhodeck nodes add NAME URL --pool POOL`")


def node_line(row: NodeRowView) -> str:
    """Return one node as a line of text."""
    age = "never seen" if row.age_s is None else f"seen {row.age_s:.0f} s ago"
    rho = "rho unknown" if row.rho is None else f"rho {row.rho:.2f}"
    parts = [row.name, row.pool, row.base_url, row.price_class, row.state, row.freshness.value, age, rho]
    if row.last_failure_reason is not None and row.freshness.value != "fresh":
        parts.append(row.last_failure_reason)
    if row.source != "direct":
        parts.append(f"read from {row.source}")
    return "  ".join([*parts, *row.flags])


@nodes.command("drain")
@click.argument("name")
@click.option("--note", default="", help="Why; kept in the audit trail.")
def drain(name: str, note: str) -> None:
    """Send no new work to the node NAME; what runs there finishes."""
    with transaction() as session:
        commands_fleet.drain_node(session, me(), name=name, note=note, now=SystemClock().now())
    click.echo(f"node {name} is draining")


@nodes.command("rest")
@click.argument("name")
@click.option("--note", default="", help="Why; kept in the audit trail.")
def rest(name: str, note: str) -> None:
    """Put the node NAME into maintenance: no new work, no alerts."""
    with transaction() as session:
        commands_fleet.rest_node(session, me(), name=name, note=note, now=SystemClock().now())
    click.echo(f"node {name} is in maintenance")


@nodes.command("resume")
@click.argument("name")
@click.option("--note", default="", help="Why; kept in the audit trail.")
def resume(name: str, note: str) -> None:
    """Let the node NAME take work again."""
    with transaction() as session:
        commands_fleet.resume_node(session, me(), name=name, note=note, now=SystemClock().now())
    click.echo(f"node {name} takes work again")


@nodes.command("remove")
@click.argument("name")
@click.option("--note", default="", help="Why; kept in the audit trail.")
def remove(name: str, note: str) -> None:
    """Take the node NAME out of the fleet. Its history stays."""
    with transaction() as session:
        commands_fleet.remove_node(session, me(), name=name, note=note, now=SystemClock().now())
    click.echo(f"node {name} removed; its history stays")


@nodes.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def show(name: str, as_json: bool) -> None:
    """Print the pages of the node NAME, what each was when last asked, and its GPUs."""
    with transaction() as session:
        pages, gpus = node_pages(session, name), node_gpus(session, name)
    if not pages:
        raise NotFound(f"no node is called {name!r}", hint="See `rhodeck nodes list`", field="name")
    if as_json:
        found = {"pages": [asdict(page) for page in pages], "gpus": [asdict(gpu) for gpu in gpus]}
        click.echo(json.dumps(found, default=str, indent=2))
        return
    now = SystemClock().now()
    for line in (*map(page_line, pages), *(gpu_line(gpu, now) for gpu in gpus)):
        click.echo(line)


def page_line(page: PageView) -> str:
    """Return one page of a node as a line of text."""
    if page.tried_at is None:
        state = "not asked yet"
    else:
        state = "read" if page.reason is None else f"{page.reason}: {page.detail}"
    missing = f"not exported: {', '.join(page.not_exported)}" if page.not_exported else ""
    return "  ".join(part for part in (page.kind, page.url, page.dialect or "", state, missing) if part)


def gpu_line(gpu: GpuView, now: datetime) -> str:
    """Return one GPU as a line of text, with the age of its values."""
    use = "use unknown" if gpu.used_ratio is None else f"use {100 * gpu.used_ratio:.0f} %"
    power = "power unknown" if gpu.power_w is None else f"{gpu.power_w:.0f} W"
    age_s = (now - gpu.seen_at).total_seconds()
    parts = ["GPU", gpu.label or gpu.uuid, gpu.model, use, power, f"seen {age_s:.0f} s ago"]
    if gpu.xid_words is not None:
        parts.append(f"Xid {gpu.xid}: {gpu.xid_words[0]}; to do: {gpu.xid_words[1]}")
    return "  ".join(part for part in parts if part)


@nodes.command("add-page")
@click.argument("name")
@click.argument("url")
@click.option("--kind", type=click.Choice(["engine", "gpu"]), required=True, help="Whose page it is.")
@click.option("--host", help="gpu: the host, of an exporter that speaks for several.")
@click.option(
    "--gpu", "gpus", multiple=True, help="gpu: the UUID of one of this node's GPUs; repeat for more."
)
def add_page(name: str, url: str, kind: str, host: str | None, gpus: tuple[str, ...]) -> None:
    """Read one more page of the node NAME, at URL: a further engine's, or its GPU exporter's."""
    with transaction() as session:
        commands_discovery.add_page(
            session, me(), node=name, url=url, kind=kind, host=host, gpus=gpus, now=SystemClock().now()
        )
    click.echo(f"node {name} is read at {url} too")


@nodes.command("remove-page")
@click.argument("name")
@click.argument("url")
def remove_page(name: str, url: str) -> None:
    """Read the further page URL of the node NAME no more."""
    with transaction() as session:
        commands_discovery.remove_page(
            session, me(), node=name, url=commands_discovery.checked_page(url), now=SystemClock().now()
        )
    click.echo(f"node {name} is read at {url} no more")


@click.group()
def pools() -> None:
    """Add and list pools of nodes."""


@pools.command("add")
@click.argument("name")
@click.option("--model", "models", multiple=True, required=True, help="A model it serves; repeat for more.")
@click.option("--max-num-seqs", type=click.IntRange(1), help="As vLLM was started; not in its metrics.")
@click.option("--max-num-batched-tokens", type=click.IntRange(1), help="As vLLM was started.")
@click.option("--scheduling-policy", type=click.Choice(["fcfs", "priority"]), help="As vLLM was started.")
@click.option("--chunked-prefill/--no-chunked-prefill", default=None, help="As vLLM was started.")
@click.option("--role", type=click.Choice(ROLES), help="The one phase it serves; without it, both.")
@click.option("--service-rate", type=FiniteRange(0, min_open=True), help="Requests/s a node can finish.")
@click.option("--service-rate-source", help="Where that figure comes from.")
def add_pool(
    name: str,
    models: tuple[str, ...],
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    scheduling_policy: str | None,
    chunked_prefill: bool | None,
    role: str | None,
    service_rate: float | None,
    service_rate_source: str | None,
) -> None:
    """Register the pool NAME: nodes that serve the same models, started the same way."""
    with transaction() as session:
        commands_fleet.add_pool(
            session,
            me(),
            name=name,
            models=models,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            scheduling_policy=scheduling_policy,
            chunked_prefill=chunked_prefill,
            role=role,
            configured_service_rate=service_rate,
            configured_source=service_rate_source,
            now=SystemClock().now(),
        )
    click.echo(f"pool {name} added")


@pools.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object a pool.")
def list_pools(as_json: bool) -> None:
    """List pools with their models, launch arguments and how many nodes they have."""
    with transaction() as session:
        rows = pool_table(session)
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], default=str, indent=2))
        return
    for row in rows:
        click.echo(pool_line(row))
    if not rows:
        click.echo("no pools; add one with `rhodeck pools add NAME --model MODEL`")


def pool_line(row: PoolView) -> str:
    """Return one pool as a line of text."""
    slots = "max-num-seqs unknown" if row.max_num_seqs is None else f"max-num-seqs {row.max_num_seqs}"
    phase = "" if row.role is None else f"  {row.role} only"
    return f"{row.name}  {', '.join(row.models)}  {row.nodes} nodes  {slots}{phase}"


@pools.command("remove")
@click.argument("name")
def remove_pool(name: str) -> None:
    """Take out the pool NAME if no node ever belonged to it."""
    with transaction() as session:
        commands_fleet.remove_pool(session, me(), name=name, now=SystemClock().now())
    click.echo(f"pool {name} removed")
