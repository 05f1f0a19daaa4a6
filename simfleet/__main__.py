"""Command line of the simulator: `nodes` (the default), `traffic`, `fault`.

Prevents: a half-started fleet. Every flag is checked and every port bound before the first line is out.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fleet.clock import SystemClock
from fleet.engine_profile import PROFILES, profile_named
from fleet.errors import FleetError, InvalidInput, Unavailable
from simfleet.faults import FaultKind
from simfleet.server import SimFleet
from simfleet.traffic import TrafficSettings, load_keys, replay


class _DefaultToNodes(click.Group):
    """`python -m simfleet --nodes 12` is `python -m simfleet nodes --nodes 12`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("--help", "-h")):
            args = ["nodes", *args]
        return super().parse_args(ctx, args)


def run_loop(main: Callable[[], Any]) -> Any:
    """Run a coroutine function on uvloop where it is there, else on asyncio."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def fail(error: FleetError) -> None:
    """Print an error people can act on and leave with status 1."""
    click.echo(f"Error: {error.message}" + (f"\n  {error.hint}" if error.hint else ""), err=True)
    sys.exit(1)


@click.group(cls=_DefaultToNodes, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Simulated vLLM nodes and replayed public traffic."""


@main.command()
@click.option("--nodes", default=12, show_default=True, type=click.IntRange(1, 256), help="How many.")
@click.option(
    "--profile", default="h100-70b-fp8", show_default=True, help=f"One of: {', '.join(PROFILES)}."
)
@click.option("--seed", default=1, show_default=True, help="Seed of answer lengths.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--base-port", default=0, show_default=True, help="First of consecutive ports; 0: free ones.")
@click.option(
    "--ports-file", type=click.Path(dir_okay=False, path_type=Path), help="Write names and URLs here."
)
@click.option("--speed", default=1.0, show_default=True, help="Simulated seconds to a second.")
def nodes(
    nodes: int, profile: str, seed: int, host: str, base_port: int, ports_file: Path | None, speed: float
) -> None:
    """Serve simulated nodes; one JSON line each, then `ready`. Stop with SIGTERM or Ctrl-C."""

    async def serve() -> None:
        fleet = SimFleet(
            profile_named(profile),
            SystemClock(),
            nodes=nodes,
            seed=seed,
            speed=speed,
            host=host,
            base_port=base_port,
        )
        await fleet.start()
        listing = [{"name": name, "base_url": server.base_url} for name, server in fleet.servers.items()]
        if ports_file is not None:
            write_beside(ports_file, json.dumps(listing, indent=1) + "\n")
        for row in listing:
            click.echo(json.dumps(row))
        click.echo("ready")
        sys.stdout.flush()
        await until_stopped()
        await fleet.stop()

    try:
        run_loop(serve)
    except FleetError as exc:
        fail(exc)


@main.command()
@click.option(
    "--gateway", "gateways", multiple=True, required=True, help="Base URL; give several to spread."
)
@click.option("--keys-file", type=click.Path(path_type=Path), help='JSON {"tenant": "api key"}.')
@click.option("--rate", default=25.0, show_default=True, help="Mean requests/s over the trace.")
@click.option("--seed", default=1, show_default=True, help="Seed of tenants and ages.")
@click.option(
    "--retry",
    type=click.Choice(["tenant", "honour", "ignore", "never"]),
    default="tenant",
    show_default=True,
    help="What clients do with a 429: as each tenant does, or all alike.",
)
@click.option("--max-in-flight", default=2000, show_default=True, help="Requests open at once, at most.")
@click.option("--model", default="llama-3.3-70b-fp8", show_default=True, help="Model name to ask for.")
@click.option("--duration", default=0.0, show_default=True, help="Seconds to run; 0: until stopped.")
@click.option("--report-every", default=10.0, show_default=True, help="Seconds between report lines.")
def traffic(gateways: tuple[str, ...], keys_file: Path | None, **options: Any) -> None:
    """Replay a public trace for six tenants in three tiers; one JSON line of outcomes each 10 s.

    Keys come from --keys-file or the environment variable RHODECK_TRAFFIC_KEYS (the same JSON).
    """
    try:
        keys = load_keys(keys_file, os.environ.get("RHODECK_TRAFFIC_KEYS"))
        settings = TrafficSettings(
            gateways=gateways,
            keys=keys,
            rate=options["rate"],
            seed=options["seed"],
            retry=options["retry"],
            max_in_flight=options["max_in_flight"],
            model=options["model"],
            duration_s=options["duration"],
            report_every_s=options["report_every"],
        )

        async def run() -> None:
            stop = asyncio.create_task(until_stopped())
            work = asyncio.create_task(replay(settings, SystemClock(), _print_report))
            await asyncio.wait({stop, work}, return_when=asyncio.FIRST_COMPLETED)
            for task in (stop, work):
                task.cancel()
            results = await asyncio.gather(stop, work, return_exceptions=True)
            if isinstance(results[1], FleetError):
                raise results[1]

        run_loop(run)
    except FleetError as exc:
        fail(exc)


def _print_report(report: dict[str, Any]) -> None:
    click.echo(json.dumps(report))
    sys.stdout.flush()


@main.command()
@click.option("--url", required=True, help="Base URL of any living node of the fleet.")
@click.option("--node", help="Name of the node meant; default: the one at the URL.")
@click.option("--kind", required=True, type=click.Choice([kind.value for kind in FaultKind]))
@click.option("--delay", type=float, help="slow_metrics: seconds; restart: seconds the port stays closed.")
@click.option("--ratio", type=float, help="kv_shortage: share of blocks taken away, 0..1.")
@click.option("--for", "for_s", type=float, help="Clear the fault after this many seconds.")
def fault(
    url: str, node: str | None, kind: str, delay: float | None, ratio: float | None, for_s: float | None
) -> None:
    """Give a node a fault, or clear it."""
    body = {"node": node, "kind": kind, "delay_s": delay, "ratio": ratio, "for_s": for_s}
    sent = json.dumps({name: value for name, value in body.items() if value is not None}).encode()
    try:
        if not url.startswith("http://"):
            raise InvalidInput(f"{url!r} is not a node's URL", field="--url", hint="Give http://HOST:PORT")
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked above
            url.rstrip("/") + "/sim/fault", data=sent, headers={"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            click.echo(answer.read().decode())
    except urllib.error.HTTPError as exc:
        fail(InvalidInput(f"the node answered {exc.code}: {exc.read(2000).decode(errors='replace')}"))
    except (OSError, http.client.HTTPException) as exc:
        fail(Unavailable(f"no node answers at {url}: {exc}", hint="Use the URL of a node that is alive"))
    except ValueError as exc:  # what urllib makes of an address that is none
        fail(InvalidInput(f"{url!r} is not a node's URL: {exc}", hint="Give http://HOST:PORT"))
    except FleetError as exc:
        fail(exc)


async def until_stopped() -> None:
    """Return at SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()


def write_beside(path: Path, text: str) -> None:
    """Write a file whole or not at all. Raises InvalidInput when the place cannot be written."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as beside:
            try:
                beside.write(text)
                beside.flush()
                os.replace(beside.name, path)
            except OSError:
                os.unlink(beside.name)
                raise
    except OSError as exc:
        raise InvalidInput(f"cannot write {path}: {exc.strerror}", field="--ports-file") from exc


if __name__ == "__main__":
    main(prog_name="rhodeck simfleet")
