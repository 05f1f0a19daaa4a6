"""`rhodeck control`: the controller process. Reads settings, opens the database, runs the loop until told.

Serves its own `/metrics` and `/healthz`, on loopback unless told otherwise. Exit code 0 after SIGTERM or
Ctrl-C, not 0 after a bug, so that a supervisor starts it again. Prevents: a controller that starts on the
wrong schema, and one that is alive but does nothing without anybody being able to ask.
"""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from zoneinfo import ZoneInfo

import click
import uvloop
from aiohttp import ClientSession, web
from sqlalchemy import Engine

from control import export_delivery, ledger, usage
from control.alert_delivery import Courier
from control.bake_verdict import verdict
from control.closed_months import require_zone
from control.database import make_engine, require_head, session_scope
from control.database_url import resolve_dsn
from control.deps import Deps, Leadership
from control.discovery import TICK_S, Discovery
from control.estimate_runner import EstimateRunner
from control.export_month import issuer_of
from control.fetch import open_session
from control.gateways import new_session
from control.jobs import Controller, Loop, Step
from control.observer import Observer
from control.own_metrics import ControlMetrics
from control.partitions import Retention
from control.quota_leases import QuotaLeases
from control.scrape import Scraper
from control.settings import Settings, load_settings
from control.spend_to_date import SpendToDate
from fleet import logs
from fleet.clock import Clock, SystemClock
from fleet.errors import InvalidInput
from fleet.quota_leases import AGAIN_S

#: A controller whose lease step has not succeeded for this long is not well, whoever leads.
UNWELL_AFTER_S = 60.0
_SCRAPE_CONNECTIONS = 512
#: Threads for calls to the database, parsing and fitting. More than a hanging database can hold at once
#: (each connection of the pool, and each step waiting for one), or scraping would stop with it.
WORKERS = 32


@click.command()
@click.option("--verbose", is_flag=True, help="Log every step, also when nothing changed.")
def control(verbose: bool) -> None:
    """Run the controller: scrape, assess, reconcile, pull usage, keep the ledger.

    Of several controllers on one database one works; the others stand by and take over when it stops.
    """
    settings = load_settings()
    logs.configure("control", level="DEBUG" if verbose else "INFO")
    engine = make_engine(resolve_dsn(settings))
    try:
        require_head(engine)
        with session_scope(engine) as session:
            require_zone(session, ZoneInfo(settings.finance_timezone))
        uvloop.run(_run(settings, engine, SystemClock()))
    finally:
        engine.dispose()


async def _run(settings: Settings, engine: Engine, clock: Clock) -> None:
    workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="step")
    asyncio.get_running_loop().set_default_executor(workers)
    metrics = ControlMetrics()
    pages, admin = open_session(connections=_SCRAPE_CONNECTIONS), new_session()
    try:
        controller = _controller(settings, engine, clock, metrics, pages, admin)
        loop = controller.loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, loop.stop)
        server = await serve_own_pages(metrics, loop, settings.control_host, settings.control_port)
        gc.collect()
        gc.freeze()  # what was loaded at the start stays: looking through it would hold up every push
        try:
            await loop.run()
        finally:
            await controller.give_up()
            await server.cleanup()
    finally:
        await pages.close()
        await admin.close()


def _controller(
    settings: Settings,
    engine: Engine,
    clock: Clock,
    metrics: ControlMetrics,
    pages: ClientSession,
    admin: ClientSession,
) -> Controller:
    token = settings.read_admin_token()
    if token is None:
        raise InvalidInput(
            "no token for the gateways is set",
            hint="Set RHODECK_ADMIN_TOKEN_FILE to the file the gateways use too",
            field="RHODECK_ADMIN_TOKEN_FILE",
        )
    deps = Deps(
        engine=engine,
        clock=clock,
        leadership=Leadership(owner=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"),
        http=lambda: admin,
        admin_token=token.get_secret_value(),
        spend=SpendToDate(ZoneInfo(settings.finance_timezone)),
        verdict=verdict,
        lease_ttl_s=settings.lease_ttl_s,
        lease_margin_s=min(2.0, settings.lease_ttl_s / 4),
        call_deadline_s=settings.push_timeout_s,
    )
    scraper = Scraper(
        pages,
        clock,
        metrics,
        period_s=settings.scrape_period_s,
        deadline_s=settings.scrape_deadline_s,
        connections=_SCRAPE_CONNECTIONS,
    )
    keep = Retention(settings.retention_days, settings.retention_minute_days, settings.retention_hour_days)
    observer = Observer(deps, scraper, metrics, keep=keep, max_bytes=settings.buffer_mb * 1024 * 1024)
    discovery = Discovery(deps, pages)
    estimates = EstimateRunner(deps)
    extra = (
        Step("notices", 1.0, 60.0, _courier(settings, deps, metrics, pages).tick),
        Step("discovery", TICK_S, 60.0, discovery.tick),
        Step("usage", 5.0, 60.0, lambda: usage.tick(deps)),
        Step("quotas", AGAIN_S, 20.0, QuotaLeases(deps).tick),
        Step("ledger", 60.0, 60.0, lambda: ledger.tick(deps)),
        Step(
            "exports",
            export_delivery.TICK_S,
            export_delivery.CLAIM_S,
            _dropper(settings, deps, metrics).tick,
        ),
        Step("estimates", 2.0, 20.0, estimates.tick),
    )
    return Controller(
        deps, observer, metrics, settings.scrape_period_s, extra, (discovery.close, estimates.close)
    )


def _courier(settings: Settings, deps: Deps, metrics: ControlMetrics, http: ClientSession) -> Courier:
    return Courier(deps, http, metrics, settings.webhook_secrets, settings.public_url)


def _dropper(settings: Settings, deps: Deps, metrics: ControlMetrics) -> export_delivery.Dropper:
    zone = ZoneInfo(settings.finance_timezone)
    return export_delivery.Dropper(deps, zone, issuer_of(settings), metrics)


async def serve_own_pages(metrics: ControlMetrics, loop: Loop, host: str, port: int) -> web.AppRunner:
    """Serve /metrics and /healthz; return the runner to clean up.

    /healthz is 200 while the loop ticks and the lease step gets answers, as leader or standby; else 503.
    Raises InvalidInput if `host` and `port` cannot be listened on.
    """

    async def page(_request: web.Request) -> web.Response:
        return web.Response(body=metrics.page(), content_type="text/plain", charset="utf-8")

    async def health(_request: web.Request) -> web.Response:
        problem = loop.problem(UNWELL_AFTER_S)
        return web.Response(text=problem or "ok", status=503 if problem else 200)

    app = web.Application()
    app.add_routes([web.get("/metrics", page), web.get("/healthz", health)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as problem:
        await runner.cleanup()
        raise InvalidInput(
            f"port {port} on {host} cannot be listened on: {problem.strerror or problem}",
            hint="Set RHODECK_CONTROL_PORT to a free one or 0, RHODECK_CONTROL_HOST to an address of ours",
            field="RHODECK_CONTROL_PORT",
        ) from problem
    return runner
