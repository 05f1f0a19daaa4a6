"""One gateway process: put together, run, drained, closed, in this order.

Times are seconds. Prevents: an exit that drops running requests, usage records not on disk at exit, and
a listener that opens before the last good assignment is in force.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import signal
import socket
from collections.abc import Generator

import uvicorn

from admission import lastgood
from admission.admin import Admin
from admission.app import App, LoopLag
from admission.decision_log import DecisionLog
from admission.durable import lock_folder
from admission.engine_link import EngineLink
from admission.exact_quota import ExactQuotas
from admission.levels import LevelKeeper
from admission.listener import listener_options
from admission.metrics import GatewayMetrics
from admission.nodes import NodeBook
from admission.passthrough import Passthrough
from admission.proxy import Proxy
from admission.quota_lease import QuotaLeases
from admission.quota_wire import address_of
from admission.running_journal import RunningJournal, settle
from admission.settings import Settings
from admission.state import GatewayState
from admission.upstream import Upstream
from admission.usage import UsageFlusher
from admission.usage_spool import UsageSpool
from admission.waiting import WaitingRoom
from fleet.clock import Clock
from fleet.errors import InvalidInput
from fleet.gate import Gate
from fleet.offers import NodeState

log = logging.getLogger(__name__)

_CUT_OFF_S = 2  # time for cut-off requests to end after the drain deadline


class _Server(uvicorn.Server):
    """uvicorn without its signal handling: ours drains first, and the exit code stays ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def open_state(settings: Settings, clock: Clock) -> GatewayState:
    """Return the state of a gateway that starts now: spool recovered, nothing assigned yet.

    Raises InvalidInput when the state folder cannot be used.
    """
    try:
        settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if lock_folder(settings.state_dir) is None:
            raise InvalidInput(
                f"another gateway runs in {settings.state_dir}",
                field="--state-dir",
                hint="Give each gateway a folder of its own",
            )
        usage_dir = settings.state_dir / "usage"
        spool = UsageSpool(usage_dir, max_bytes=settings.spool_bytes)
        settle(usage_dir, spool, clock)
        journal = RunningJournal(usage_dir)
    except OSError as exc:
        raise InvalidInput(
            f"{settings.state_dir} cannot be used: {exc.strerror}",
            field="--state-dir",
            hint="Give a folder this user may write to",
        ) from exc
    gate = Gate(random.Random())
    started_at_s = clock.now().timestamp()
    boot_id = secrets.token_hex(8)
    return GatewayState(
        settings=settings,
        clock=clock,
        gate=gate,
        room=WaitingRoom(gate, clock),
        metrics=GatewayMetrics(started_at_s),
        spool=spool,
        journal=journal,
        boot_id=boot_id,
        started_at_s=started_at_s,
        decisions=DecisionLog(settings.decisions),
        quotas=QuotaLeases(settings.name, boot_id, settings.state_dir, gate.accounts, clock),
    )


async def run(settings: Settings, clock: Clock, listening: socket.socket) -> None:
    """Serve on a bound socket until SIGTERM or SIGINT, then drain and close."""
    state = open_state(settings, clock)
    flusher, lag = UsageFlusher(state.spool), LoopLag()
    levels = LevelKeeper(settings.state_dir, state.gate.accounts, clock)
    state.on_change.append(levels.restore)
    exact = _exact_quotas(state)

    def observe(node: NodeState) -> None:
        state.gate.observe((node,), clock.monotonic_s())
        state.room.pump()

    async with Upstream(settings) as upstream:
        nodes = NodeBook(settings, clock, upstream, observe)
        state.on_change.append(nodes.retarget)
        passed = Passthrough(state, nodes, upstream)
        proxy = Proxy(state, EngineLink(state, nodes, upstream), passed)
        app = App(state, nodes, proxy, Admin(state, nodes, flusher), flusher, lag)
        _load_last_good(state)
        async with asyncio.TaskGroup() as group:
            helpers = [
                group.create_task(helper.run()) for helper in (flusher, levels, lag, state.quotas, *exact)
            ]
            await _serve(app, state, listening)
            for helper in helpers:
                helper.cancel()
        await nodes.close()
        state.room.close()
    levels.save()
    state.spool.close()
    state.journal.close()
    log.info("gateway stopped")


def _exact_quotas(state: GatewayState) -> list[ExactQuotas]:
    """Return what counts exact quotas, where a store is configured."""
    url = state.settings.quota_store_url
    if url is None:
        return []
    address = address_of(url.get_secret_value())
    made = ExactQuotas(
        address,
        state.settings.quota_store_prefix,
        state.gate,
        state.quotas,
        state.clock,
        random.Random(),
        budget_s=state.settings.quota_store_budget_s,
    )
    state.room.exact = made
    state.on_change.append(made.take_in)
    return [made]


def _load_last_good(state: GatewayState) -> None:
    """Put the assignment on disk in force; a damaged one leaves the gateway not ready."""
    try:
        found = lastgood.load(state.settings.state_dir, state.settings.name)
    except lastgood.DamagedLastGood as exc:
        log.error("last good assignment is damaged", extra={"reason": exc.message, "hint": exc.hint})
        return
    if found is None:
        log.info("no assignment on disk; waiting for a controller")
        return
    state.adopt(found, found.digest(), is_from_disk=True)
    log.info("last good assignment in force", extra={"epoch": found.epoch, "generation": found.generation})


async def _serve(app: App, state: GatewayState, listening: socket.socket) -> None:
    config = uvicorn.Config(
        app,  # pyright: ignore[reportArgumentType]
        timeout_graceful_shutdown=_CUT_OFF_S,
        **listener_options(state.settings),
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    address = listening.getsockname()
    log.info("gateway listens", extra={"host": address[0], "port": address[1], "pid": os.getpid()})
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        await _drain(state)
        server.should_exit = True
    stopping.cancel()
    await serving


async def _drain(state: GatewayState) -> None:
    """Refuse what is new, wait for what runs, at most `drain_s`."""
    log.info("draining", extra={"limit_s": state.settings.drain_s})
    state.drain()
    until_s = state.clock.monotonic_s() + state.settings.drain_s
    while state.metrics.held.requests() and state.clock.monotonic_s() < until_s:
        await asyncio.sleep(0.05)
