"""One gateway process: put together, run, drained, closed, in this order.

Times are seconds. Prevents: an exit that drops running requests, usage records not on disk at exit, and
a listener that opens before the last good assignment is in force.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import signal

from admission import lastgood
from admission.adapters import AdapterWatch
from admission.admin import Admin
from admission.app import App, LoopLag
from admission.clients import Listener
from admission.decision_log import DecisionLog
from admission.doors import BACKLOG, Acceptor, Doors
from admission.durable import lock_folder
from admission.engine_link import EngineLink
from admission.engine_tokenizer import prompt_counts
from admission.exact_quota import ExactQuotas
from admission.levels import LevelKeeper
from admission.metrics import GatewayMetrics
from admission.nodes import NodeBook
from admission.outbox import Outbox
from admission.passthrough import Passthrough
from admission.proxy import Proxy
from admission.quota_lease import QuotaLeases
from admission.quota_wire import address_of
from admission.running_journal import RunningJournal, settle
from admission.settings import Settings
from admission.state import GatewayState
from admission.tracing_form import open_tracing
from admission.upstream import Upstream
from admission.usage import UsageFlusher
from admission.usage_spool import UsageSpool
from admission.waiting import WaitingRoom
from compiled import load
from fleet.clock import Clock
from fleet.errors import InvalidInput
from fleet.gate import Gate
from fleet.offers import NodeState

log = logging.getLogger(__name__)

_CUT_OFF_S = 2  # time for cut-off requests to end after the drain deadline
_ON_ITS_WAY_S = 0.5  # what was sent before the listener closed is told so, and not reset
_LAST_ANSWERS_S = 3.0  # connections get so long for one more answer, which says that it is the last


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
        tracing=open_tracing(settings, clock),
        quotas=QuotaLeases(settings.name, boot_id, settings.state_dir, gate.accounts, clock),
    )


async def run(settings: Settings, clock: Clock, doors: Doors) -> None:
    """Serve on bound sockets until SIGTERM, SIGINT or a successor comes, then drain and close."""
    state = open_state(settings, clock)
    flusher, lag = UsageFlusher(state.spool), LoopLag()
    levels = LevelKeeper(settings.state_dir, state.gate.accounts, clock)
    state.on_change.append(levels.restore)
    state.quotas.room = lambda: state.gate.snapshot(clock.monotonic_s())
    state.quotas.on_room = state.take_room
    exact = _exact_quotas(state)

    def observe(node: NodeState) -> None:
        state.gate.observe((node,), clock.monotonic_s())
        state.room.pump()

    outbox = _outbox(state)
    async with Upstream(settings, outbox) as upstream:
        nodes = NodeBook(settings, clock, upstream, observe)
        state.on_change.append(nodes.retarget)
        passed = Passthrough(state, nodes, upstream)
        state.prompt_counts = prompt_counts(state, nodes, upstream)
        proxy = Proxy(state, EngineLink(state, nodes, upstream), passed)
        app = App(state, nodes, proxy, Admin(state, nodes, flusher), flusher, lag, doors.admin_port)
        _load_last_good(state)
        async with asyncio.TaskGroup() as group:
            running = (flusher, levels, lag, state.quotas, AdapterWatch(state, upstream), *exact)
            helpers = [group.create_task(helper.run()) for helper in running]
            await _serve(app, state, doors, outbox)
            for helper in helpers:
                helper.cancel()
        await nodes.close()
        if state.prompt_counts is not None:
            await state.prompt_counts.close()
        if state.tracing is not None:
            await state.tracing.close()
        state.room.close()
    levels.save()
    state.spool.close()
    state.journal.close()
    log.info("gateway stopped")


def _outbox(state: GatewayState) -> Outbox:
    """Return what this process sends by: records and journal are written before anything leaves."""
    spool, journal = state.spool, state.journal

    def write() -> None:
        spool.write_held()
        journal.write_held()

    outbox = Outbox(asyncio.get_running_loop(), write)
    spool.hold(outbox.soon)
    journal.hold(spool.write_held)
    return outbox


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


async def _serve(app: App, state: GatewayState, doors: Doors, outbox: Outbox) -> None:
    listener = Listener(state.settings, state.clock, app.handle, outbox)
    loop = asyncio.get_running_loop()
    acceptor = Acceptor(doors, listener.connection, asyncio.Event(), asyncio.Event(), state.hear)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a supervisor above
            loop.add_signal_handler(number, acceptor.stop.set)
    # The admin port stays open to the end: by it the controller sees the drain, and takes the last usage.
    admin = None
    if doors.admin is not None:
        admin = await loop.create_server(listener.connection, sock=doors.admin.dup(), backlog=BACKLOG)
    await _nodes_are_known(state)
    await acceptor.take(doors.own)
    host, port = doors.public[doors.own].getsockname()[:2]
    where = {} if doors.admin_port is None else {"admin_port": doors.admin_port}
    log.info("hot modules", extra={"run": load.state()})
    log.info("gateway listens", extra={"host": host, "port": port, "pid": os.getpid(), **where})
    helpers = [asyncio.ensure_future(one) for one in (acceptor.stop.wait(), acceptor.leave.wait())]
    following = asyncio.ensure_future(acceptor.follow())
    await asyncio.wait(helpers, return_when=asyncio.FIRST_COMPLETED)
    if acceptor.stop.is_set():
        acceptor.hold_no_more()
        await _drain(state, listener)
        acceptor.drop_all()
        await _answer_the_last(listener)
    elif acceptor.leave.is_set():
        await _leave(state, listener, acceptor)
    acceptor.drop_all()
    if admin is not None:
        admin.close()
    for one in (*helpers, following):
        one.cancel()
    await listener.close(_CUT_OFF_S)


async def _nodes_are_known(state: GatewayState) -> None:
    """Return once a node is open, or was asked in vain: who comes before would be refused for nothing."""
    until_s = state.clock.monotonic_s() + state.settings.poll_timeout_s
    while state.assignment is not None and not state.gate.is_ready and state.clock.monotonic_s() < until_s:
        await asyncio.sleep(0.01)


async def _drain(state: GatewayState, listener: Listener) -> None:
    """Refuse what is new, wait for what runs, at most `drain_s`.

    Each answer is the last of its connection: one that is kept would be reset at the end, and what a client
    just sent on it lost, where a new connection is refused and may be tried elsewhere.
    """
    log.info("draining", extra={"limit_s": state.settings.drain_s})
    listener.is_leaving = True
    state.drain()
    await _wait_for_running(state)


async def _answer_the_last(listener: Listener) -> None:
    """Let requests that are on their way, on connections there are, be refused in words."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + _ON_ITS_WAY_S
    while listener.connections and loop.time() < until_s:
        await asyncio.sleep(0.01)


async def _leave(state: GatewayState, listener: Listener, acceptor: Acceptor) -> None:
    """Let go of connections and wait for what runs, at most `drain_s`. Nothing is refused."""
    log.info("leaving", extra={"limit_s": state.settings.drain_s})
    listener.is_leaving = True
    acceptor.drop_all()
    await asyncio.sleep(_LAST_ANSWERS_S)
    listener.let_go()
    await _wait_for_running(state)


async def _wait_for_running(state: GatewayState) -> None:
    until_s = state.clock.monotonic_s() + state.settings.drain_s
    while state.metrics.requests_held() and state.clock.monotonic_s() < until_s:
        await asyncio.sleep(0.05)
