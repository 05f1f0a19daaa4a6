"""`python -m dashboard`: the one way to start the dashboard. Settings from the environment, two flags.

Refuses to listen beyond loopback unless people have to sign in. Prevents: a page that works under one
launcher and fails under another, and a control plane open to the network by accident.
"""

from __future__ import annotations

import os
import socket
import sys

import click

from control.database_url import resolve_dsn
from control.embedded_socket import free_tcp_port
from control.settings import is_loopback, load_settings
from dashboard.theme import server_settings
from fleet import logs
from fleet.errors import FleetError, InvalidInput


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--host", help="Address to listen on; other than loopback only with sign-in.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 picks a free one.")
def dashboard(host: str | None, port: int | None) -> None:
    """Serve the web dashboard."""
    if host is not None:
        os.environ["RHODECK_DASHBOARD_HOST"] = host
    if port is not None:
        os.environ["RHODECK_DASHBOARD_PORT"] = str(port)
    settings = load_settings()
    logs.configure("dashboard")
    os.environ.setdefault("STREAMLIT_LOGGER_LEVEL", "error")  # read when Streamlit is imported
    host, port = settings.dashboard_host, settings.dashboard_port or free_tcp_port()
    refuse_taken(host, port)
    resolve_dsn(settings)  # better said here than in the first visitor's browser
    from dashboard import server_logs  # takes seconds, as the next; flags and settings are checked before

    server_logs.adopt()
    from dashboard.app import build_app

    build_app().run(config=server_settings(host, port, is_loopback=is_loopback(host)))


def refuse_taken(host: str, port: int) -> None:
    """Raise InvalidInput if nothing can listen at `host` and `port`."""
    try:
        with socket.create_server((host, port)):
            return
    except OSError as exc:
        raise InvalidInput(
            f"nothing can listen on {host} port {port}: {exc.strerror or exc}",
            hint="Choose another with --port, or 0 for a free one",
            field="--port",
        ) from exc


def main() -> None:
    """Run; exit with 1 and a readable error for settings that are not usable."""
    try:
        dashboard.main(prog_name="rhodeck dashboard")
    except FleetError as exc:
        click.echo(f"error: {exc.message}", err=True)
        if exc.hint:
            click.echo(f"hint:  {exc.hint}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
