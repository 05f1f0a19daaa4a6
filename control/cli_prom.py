"""`rhodeck prom`: Prometheus-compatible servers as the source of samples instead of the nodes themselves.

Results go to stdout, one line a thing, or JSON with `--json`. Prevents: a fleet moved to a source that
does not know its nodes, found out only when they turn silent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import click
from sqlalchemy import Engine

from control import commands_fleet, commands_promsource
from control.cli_session import me, transaction
from control.database import make_engine, require_head, session_scope
from control.database_url import resolve_dsn
from control.fetch import open_session
from control.finite import FiniteRange
from control.fleet_facts import load_fleet
from control.promsource import PromClient, SourceSettings
from control.promsource_backfill import Backfiller, begin
from control.promsource_check import Report, TargetView, check_source, list_targets
from control.queries_promsource import Backfill, backfills, node_sources, source_named, sources
from control.settings import Settings, load_settings
from fleet.clock import SystemClock
from fleet.errors import NotFound
from fleet.percentages import percent

T = TypeVar("T")
_TIME = click.DateTime(["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"])
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def prom() -> None:
    """Read samples from Prometheus, VictoriaMetrics, Thanos or Mimir."""


@prom.command("add")
@click.argument("name")
@click.argument("url")
@click.option("--match", "matchers", default="", help='PromQL matchers for every query: job="vllm".')
@click.option(
    "--instance-label", default="instance", show_default=True, help="Label that tells nodes apart."
)
@click.option("--token-file", type=_FILE, help="File with a bearer token; read at each call.")
@click.option("--basic-file", type=_FILE, help="File with user:password; read at each call.")
@click.option("--ca-file", type=_FILE, help="PEM file with the certificates to trust instead.")
@click.option("--tenant", help="X-Scope-OrgID, for Mimir.")
def add(
    name: str,
    url: str,
    matchers: str,
    instance_label: str,
    token_file: Path | None,
    basic_file: Path | None,
    ca_file: Path | None,
    tenant: str | None,
) -> None:
    """Register the server NAME at URL (http://host:port[/path], what comes before /api/v1)."""
    with transaction() as session:
        commands_promsource.add_source(
            session,
            me(),
            name=name,
            url=url,
            matchers=matchers,
            instance_label=instance_label,
            token_file=_whole(token_file),
            basic_file=_whole(basic_file),
            ca_file=_whole(ca_file),
            tenant=tenant,
            now=SystemClock().now(),
        )
    click.echo(f"source {name} added; see `rhodeck prom check {name}`")


def _whole(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()


@prom.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object a source.")
def list_sources(as_json: bool) -> None:
    """List sources with how many nodes are read from each, and back-fills that are not finished."""
    with transaction() as session:
        known = sources(session)
        unfinished = [job for job in backfills(session) if job.done_until < job.until]
        read = [found.source for found in node_sources(session).values()]
    rows = [
        {"name": s.name, "url": s.url, "matchers": ",".join(s.matchers), "nodes": read.count(s.name)}
        for s in known
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        click.echo("  ".join(str(part) for part in row.values() if part != "") + " nodes")
    for job in unfinished:
        click.echo(
            f"back-fill {job.id} of {job.source}: {percent(job.done_ratio)} of {job.since:%Y-%m-%dT%H:%M} "
            f"to {job.until:%Y-%m-%dT%H:%M}; run it again to go on"
        )
    if not rows:
        click.echo("no sources: every node is scraped directly; add one with `rhodeck prom add NAME URL`")


@prom.command("remove")
@click.argument("name")
def remove(name: str) -> None:
    """Take out the source NAME if no node is read from it."""
    with transaction() as session:
        commands_promsource.remove_source(session, me(), name=name, now=SystemClock().now())
    click.echo(f"source {name} removed")


@prom.command("use")
@click.argument("name")
@click.argument("nodes", nargs=-1, required=True)
@click.option("--instance", help="What the source calls the node, if not its host:port. One node only.")
def use(name: str, nodes: tuple[str, ...], instance: str | None) -> None:
    """Read the samples of NODES from the source NAME from the next round on."""
    if instance is not None and len(nodes) > 1:
        raise click.UsageError("--instance is for one node")
    with transaction() as session:
        for node in nodes:
            known_as = commands_promsource.read_from(
                session, me(), node=node, source=name, instance=instance, now=SystemClock().now()
            )
            click.echo(f"node {node} is read from {name} as {known_as}")


@prom.command("direct")
@click.argument("nodes", nargs=-1, required=True)
def direct(nodes: tuple[str, ...]) -> None:
    """Scrape NODES themselves again."""
    with transaction() as session:
        for node in nodes:
            commands_promsource.read_directly(session, me(), node=node, now=SystemClock().now())
            click.echo(f"node {node} is scraped directly")


@prom.command("check")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(name: str, as_json: bool) -> None:
    """Ask the source NAME what it knows of its nodes. Exit code 1 if one would be unknown."""
    with transaction() as session:
        settings = source_named(session, name)
        wanted = [found for found in node_sources(session).values() if found.source == name]
    period_s = load_settings().scrape_period_s
    report = _ask(settings, lambda client: check_source(client, wanted, SystemClock(), period_s))
    click.echo(json.dumps(report.as_dict(), indent=2) if as_json else _report_text(report))
    if report.problems:
        raise SystemExit(1)


def _report_text(report: Report) -> str:
    lines = [f"{report.source}: {len(report.targets)} targets with engine series or up"]
    lines += [target.line() for target in report.targets]
    lines += [f"problem: {problem}" for problem in report.problems]
    return "\n".join(lines)


@prom.command("targets")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object a target.")
@click.option("--add", "pool", help="Register targets that are no nodes yet, in this pool.")
@click.option("--name-label", help="Label the name of a node comes from (default: the instance).")
def targets(name: str, as_json: bool, pool: str | None, name_label: str | None) -> None:
    """List what the source NAME scrapes and which nodes that is; register the others with --add."""
    with transaction() as session:
        settings = source_named(session, name)
        wanted = node_sources(session)
    found = _ask(settings, lambda client: list_targets(client, wanted, name_label=name_label))
    if pool is not None:
        found = _registered(name, found, pool)
    click.echo(
        json.dumps([target.as_dict() for target in found], indent=2)
        if as_json
        else "\n".join(target.line() for target in found) or "no targets"
    )


def _registered(source: str, found: list[TargetView], pool: str) -> list[TargetView]:
    """Register every target that is no node yet, all or none."""
    now = SystemClock().now()
    with transaction() as session:
        for target in found:
            if target.node is not None:
                continue
            commands_fleet.add_node(
                session,
                me(),
                name=target.proposed,
                url=target.origin,
                metrics_path=target.path,
                pool=pool,
                now=now,
            )
            commands_promsource.read_from(
                session, me(), node=target.proposed, source=source, instance=target.instance, now=now
            )
    return [t if t.node is not None else t.named(t.proposed) for t in found]


@prom.command("backfill")
@click.argument("name")
@click.option("--from", "since", required=True, type=_TIME, help="Beginning, UTC: 2026-03-01T00:00.")
@click.option("--to", "until", required=True, type=_TIME, help="End, UTC; at least two minutes ago.")
@click.option("--period", type=FiniteRange(1, 300), help="Seconds a round (default: as set).")
def backfill(name: str, since: datetime, until: datetime, period: float | None) -> None:
    """Read history of the nodes of source NAME. A run that was ended goes on where it stopped.

    Samples that are there already stay as they are; the same range twice writes nothing.
    """
    configured = load_settings()
    engine = make_engine(resolve_dsn(configured))
    try:
        require_head(engine)
        done = _backfill(engine, configured, name, since, until, period or configured.scrape_period_s)
    finally:
        engine.dispose()
    click.echo(f"done: {done.samples} samples since {done.since:%Y-%m-%d %H:%M}; charts follow in minutes")


def _backfill(
    engine: Engine, configured: Settings, name: str, since: datetime, until: datetime, period_s: float
) -> Backfill:
    clock = SystemClock()
    with session_scope(engine) as session:
        settings = source_named(session, name)
        facts = load_fleet(session)
        nodes = [found for found in node_sources(session).values() if found.source == name]
        if not nodes:
            raise NotFound(
                f"no node is read from source {name}", hint="`rhodeck prom use NAME NODE`", field="name"
            )
        job = begin(
            session,
            name,
            since=since.replace(tzinfo=UTC),
            until=until.replace(tzinfo=UTC),
            period_s=period_s,
            keep_days=configured.retention_hour_days,
            now=clock.now(),
        )
    pools = {node.name: node.pool for node in facts.nodes}
    return _ask(
        settings,
        lambda client: Backfiller(engine, client, clock, nodes, pools).run(job, _progress),
    )


def _progress(job: Backfill) -> None:
    click.echo(
        f"{percent(job.done_ratio)}  until {job.done_until:%Y-%m-%d %H:%M}  {job.samples} samples", err=True
    )


def _ask(settings: SourceSettings, work: Callable[[PromClient], Awaitable[T]]) -> T:
    async def run() -> T:
        async with open_session() as http:
            return await work(PromClient(http, SystemClock(), settings))

    return asyncio.run(run())
