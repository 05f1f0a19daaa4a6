"""`python -m admission`: the gateway's command line.

Every setting is a flag or a RHODECK_GATEWAY_* variable; secrets come from files or variables, never from
flags. Prevents: a secret in the list of processes, and a half-started gateway after bad input.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import click
import uvloop

from admission.runtime import run
from admission.settings import ListenerLimits, Settings, read_secret
from fleet import logs
from fleet.clock import SystemClock
from fleet.errors import FleetError, InvalidInput

_DEFAULT = Settings(name="gw", state_dir=Path())
_LIMITS = ListenerLimits()
_SECONDS = click.FloatRange(min=0.05, max=86_400)
_COUNT = click.IntRange(min=1, max=1 << 40)


@click.command(context_settings={"auto_envvar_prefix": "RHODECK_GATEWAY", "show_default": True})
@click.option("--name", required=True, help="Name of this gateway, as the control plane knows it.")
@click.option("--host", default=_DEFAULT.host, help="Address to listen on.")
@click.option("--port", default=_DEFAULT.port, type=click.IntRange(0, 65_535), help="0 picks a free one.")
@click.option(
    "--state-dir",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the last good assignment and the usage spool.",
)
@click.option(
    "--admin-token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with the admin token (or the variable RHODECK_GATEWAY_ADMIN_TOKEN).",
)
@click.option(
    "--node-api-key-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with the key the nodes ask for (or the variable RHODECK_GATEWAY_NODE_API_KEY).",
)
@click.option(
    "--log-level",
    default="INFO",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]),
    help="Least severe log lines to write.",
)
@click.option("--body-bytes", default=_DEFAULT.body_bytes, type=_COUNT, help="Largest request body.")
@click.option(
    "--answer-bytes",
    default=_DEFAULT.answer_bytes,
    type=_COUNT,
    help="Largest answer that is not streamed.",
)
@click.option(
    "--drain-s",
    default=_DEFAULT.drain_s,
    type=click.FloatRange(0, 3_600),
    help="Seconds that running requests get after SIGTERM.",
)
@click.option(
    "--poll-interval-s",
    default=_DEFAULT.poll_interval_s,
    type=_SECONDS,
    help="Seconds between two looks at a node's metrics.",
)
@click.option(
    "--poll-timeout-s", default=_DEFAULT.poll_timeout_s, type=_SECONDS, help="Deadline of one look."
)
@click.option(
    "--connect-timeout-s",
    default=_DEFAULT.connect_timeout_s,
    type=_SECONDS,
    help="Deadline of a connection to a node.",
)
@click.option(
    "--first-byte-timeout-s",
    default=_DEFAULT.first_byte_timeout_s,
    type=_SECONDS,
    help="Seconds a node has to begin its answer.",
)
@click.option(
    "--idle-timeout-s",
    default=_DEFAULT.idle_timeout_s,
    type=_SECONDS,
    help="Longest silence inside a node's answer.",
)
@click.option(
    "--total-timeout-s",
    default=_DEFAULT.total_timeout_s,
    type=_SECONDS,
    help="Longest time one request may run.",
)
@click.option(
    "--retries",
    default=_DEFAULT.retries,
    type=click.IntRange(0, 10),
    help="Times a request may go to another node before its first byte.",
)
@click.option(
    "--spool-bytes",
    default=_DEFAULT.spool_bytes,
    type=_COUNT,
    help="Bound of the usage spool; records beyond it are lost and counted.",
)
@click.option("--header-bytes", default=_LIMITS.header_bytes, type=_COUNT, help="Largest request head.")
@click.option("--header-count", default=_LIMITS.header_count, type=_COUNT, help="Most request headers.")
@click.option(
    "--header-deadline-s",
    default=_LIMITS.header_deadline_s,
    type=_SECONDS,
    help="Seconds a client has for its request head.",
)
@click.option(
    "--body-idle-s",
    default=_LIMITS.body_idle_s,
    type=_SECONDS,
    help="Longest silence inside a request body.",
)
@click.option(
    "--body-deadline-s",
    default=_LIMITS.body_deadline_s,
    type=_SECONDS,
    help="Seconds a client has for its request body.",
)
@click.option(
    "--keep-alive-s",
    default=_LIMITS.keep_alive_s,
    type=click.IntRange(1, 3_600),
    help="Seconds an idle client connection is kept.",
)
@click.option(
    "--write-deadline-s",
    default=_LIMITS.write_deadline_s,
    type=_SECONDS,
    help="Seconds a client may leave an answer unread.",
)
@click.option("--connections", default=_LIMITS.connections, type=_COUNT, help="Most client connections.")
@click.option(
    "--connections-per-address",
    default=_LIMITS.connections_per_address,
    type=_COUNT,
    help="Most connections of one client address.",
)
def main(**given: object) -> None:
    """Run a gateway: admit, route and count OpenAI-style requests in front of vLLM nodes."""
    try:
        settings = _settings(dict(given))
        settings.check()
        listening = _bind(settings.host, settings.port)
    except FleetError as exc:
        where = f"{exc.field}: " if exc.field else ""
        click.echo(f"Error: {where}{exc.message}" + (f"\n{exc.hint}" if exc.hint else ""), err=True)
        sys.exit(2)
    logs.configure(settings.name, level=str(given["log_level"]))
    try:
        uvloop.run(run(settings, SystemClock(), listening))
    except InvalidInput as exc:
        click.echo(f"Error: {exc.message}\n{exc.hint}", err=True)
        sys.exit(2)
    finally:
        listening.close()


def _settings(given: dict[str, object]) -> Settings:
    """Return the settings from flags; secrets from their files. Raises InvalidInput."""
    given.pop("log_level")
    for secret in ("admin_token", "node_api_key"):
        path = given.pop(f"{secret}_file")
        if isinstance(path, Path):
            given[secret] = read_secret(path, f"--{secret.replace('_', '-')}-file")
        else:
            given[secret] = os.environ.get(f"RHODECK_GATEWAY_{secret.upper()}") or None
    limits = {name: given.pop(name) for name in ListenerLimits.__slots__}
    return Settings(**given, listener=ListenerLimits(**limits))  # pyright: ignore[reportArgumentType]


def _bind(host: str, port: int) -> socket.socket:
    """Return a bound socket. Raises InvalidInput when the address is taken or not ours."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as exc:
        raise InvalidInput(
            f"cannot listen on {host}:{port}: {exc.strerror or exc}",
            field="--port",
            hint="Is another gateway running there? --port 0 picks a free port",
        ) from exc
    return listening


if __name__ == "__main__":
    main()
