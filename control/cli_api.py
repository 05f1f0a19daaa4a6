"""`rhodeck api`: serves the HTTP API. Listens on loopback unless told otherwise; every call needs a token.

Prevents: proxy headers believed from anybody, and an access log with tokens in it.
"""

from __future__ import annotations

from zoneinfo import ZoneInfo

import click
import uvicorn

from control.api import ApiDeps, build_app
from control.database import make_engine, require_head
from control.database_url import resolve_dsn
from control.export_month import issuer_of
from control.settings import load_settings
from fleet import logs
from fleet.clock import SystemClock


@click.command()
@click.option("--host", help="Address to listen on; default: RHODECK_API_HOST.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port; default: RHODECK_API_PORT.")
def api(host: str | None, port: int | None) -> None:
    """Serve queries, commands and exports over HTTP."""
    settings = load_settings()
    logs.configure("api")
    engine = make_engine(resolve_dsn(settings))
    try:
        require_head(engine)
        zone = ZoneInfo(settings.finance_timezone)
        app = build_app(ApiDeps(engine, SystemClock(), zone, issuer_of(settings), settings.finance_key))
        uvicorn.run(
            app,
            host=host or settings.api_host,
            port=settings.api_port if port is None else port,
            access_log=False,
            log_config=None,
            proxy_headers=False,
            server_header=False,
            http="httptools",
        )
    finally:
        engine.dispose()
