"""`rhodeck estimate runs|start|cancel|work|traces`: months simulated in the background, and kept traffic.

Prevents: a month that can only be started from a page, and a queue nobody can look into.
"""

from __future__ import annotations

import gc
import json
import os
import secrets
import signal
import socket
import threading
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from types import FrameType

import click

from control.cli_estimate_run import read_input, recorded
from control.cli_session import me, transaction
from control.comparison_documents import Comparable, from_link, read_comparison
from control.database import make_engine, require_head
from control.database_url import resolve_dsn
from control.estimate_runs import Precision, RunView, cancel, enqueue, run_of, runs
from control.estimate_scenarios import json_object
from control.estimate_traces import keep_trace, remove_trace, stored_traffic, traces
from control.estimate_worker import Worker
from control.finite import FiniteRange
from control.gate_crew import usual_processes
from control.rate_profile_files import RECORDED, file_profile
from control.settings import load_settings
from fleet import logs
from fleet.clock import SystemClock


@click.command("runs")
@click.argument("number", type=int, required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_runs(number: int | None, as_json: bool) -> None:
    """List simulations, newest first, or show the one with NUMBER."""
    with transaction() as session:
        found = runs(session) if number is None else [run_of(session, number)]
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found], indent=1, default=str))
        return
    for one in found:
        click.echo(_line(one, SystemClock().now()))
    if not found:
        click.echo("no simulation was asked for yet")


def _line(run: RunView, now: datetime) -> str:
    done = f"{run.days_done} of {run.days} days"
    how = "gate" if "gate" in run.spec else "events"
    left_s = run.left_s(now)
    left = "" if left_s is None else f"about {left_s / 60:.0f} min left"
    return f"{run.id:>6}  {run.state:10} {done:>18}  {how:6}  {run.strategy}  {run.error}{left}".rstrip()


@click.command("start")
@click.argument("document", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--strategy", "names", multiple=True, help="Its name; all of them unless said.")
@click.option("--replications", type=int, help="3 unless said; through the gate 1.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the first month.")
@click.option("--slots", type=int, help="A node's; 36 unless said, or the engine's.")
@click.option("--cv2", type=float, default=0.6, show_default=True, help="Of service times.")
@click.option("--gate-days", type=int, help="So many days through the real gate instead, 1 to 30.")
@click.option("--kv-tokens", type=int, help="KV cache of a node, with --gate-days; plenty unless said.")
@click.option("--engine", help="Engines of this profile behind the gate, with --gate-days.")
def start(
    document: Path,
    names: tuple[str, ...],
    replications: int | None,
    seed: int,
    slots: int | None,
    cv2: float,
    gate_days: int | None,
    kv_tokens: int | None,
    engine: str | None,
) -> None:
    """Ask for months of DOCUMENT's strategies, simulated request by request.

    DOCUMENT is a comparison as JSON; its traffic is a bundled one or one of `estimate traces`.
    """
    text, _ = read_input(document)
    months = replications if replications is not None else (3 if gate_days is None else 1)
    precision = Precision(months, seed, slots, cv2, gate_days, kv_tokens, engine)
    clock = SystemClock()
    with transaction() as session:
        ready: Comparable = read_comparison(
            json_object(text, "the comparison"), lambda name: stored_traffic(session, name)
        )
        for name in names or tuple(one.name for one in ready.candidates):
            run = enqueue(session, ready, name, precision, actor=me(), now=clock.now())
            click.echo(f"run {run}: {name}")


@click.command("cancel")
@click.argument("number", type=int)
def cancel_run(number: int) -> None:
    """End the simulation with NUMBER."""
    with transaction() as session:
        cancel(session, number, actor=me(), now=SystemClock().now())
    click.echo(f"run {number} is cancelled, or will be within seconds")


@click.command("work")
def work() -> None:
    """Simulate what waits, then end. The controller starts this by itself."""
    settings = load_settings()
    logs.configure("estimates", level="INFO")
    stop = threading.Event()

    def stopped(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stopped)
    os.nice(10)  # a page or a scrape round goes first
    engine = make_engine(resolve_dsn(settings), pool_size=1)
    name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
    gc.collect()
    gc.freeze()  # what was loaded stays: the collector need not look at it millions of times
    try:
        require_head(engine)
        worker = Worker(engine, SystemClock(), name, stop.is_set, processes=usual_processes())
        ended = worker.work()
    finally:
        engine.dispose()
    click.echo(f"{ended} simulations ended")


@click.group("traces")
def trace_group() -> None:
    """Keep traffic for estimates in the database."""


@trace_group.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_traces(as_json: bool) -> None:
    """List kept traffic, newest first."""
    with transaction() as session:
        found = traces(session)
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found], indent=1, default=str))
        return
    for one in found:
        click.echo(f"{one.name}  {one.hours:8.1f} h  {one.title}: {one.source}")
    if not found:
        click.echo("no traffic is kept; A, B, C and D come with Rhodeck")


@trace_group.command("add")
@click.argument("what", metavar="FILE|recorded")
@click.option("--days", type=FiniteRange(0.01, 30), default=7, show_default=True, help="If recorded.")
def add_trace(what: str, days: float) -> None:
    """Keep the traffic of FILE (CSV, compressed or not, or Parquet), or of the gateways' last days."""
    profile = recorded(days) if what == RECORDED else file_profile(Path(what))
    with transaction() as session:
        name = keep_trace(session, profile, actor=me(), now=SystemClock().now())
    click.echo(name)


@trace_group.command("remove")
@click.argument("name")
def remove(name: str) -> None:
    """Remove the kept traffic called NAME (trace:…)."""
    with transaction() as session:
        remove_trace(session, name, actor=me(), now=SystemClock().now())
    click.echo(f"{name} is removed; links that use it say so")


@click.command("open-link")
@click.argument("link")
def open_link(link: str) -> None:
    """Print the comparison document in LINK, the part of a page's address after `e=`."""
    click.echo(json.dumps(from_link(link.rsplit("e=", 1)[-1]), indent=1))


COMMANDS = (list_runs, start, cancel_run, work, trace_group, open_link)
