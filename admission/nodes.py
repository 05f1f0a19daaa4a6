"""The nodes this gateway may send to: polled, judged, ejected and let in again.

Times are seconds on the clock's monotonic scale. Each node is polled by its own task with its own
deadline, spread over the interval. What a node does not say is None and closes it at the gate. Prevents:
traffic to a node that is dead, frozen or failing, one slow node delaying the others, and every node
ejected at once because of a fault in front of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from admission.calls import ENDPOINTS
from admission.settings import Settings
from admission.upstream import NodeFailed, Page, Upstream
from fleet.clock import Clock
from fleet.dialects import read_page
from fleet.ejection import Stage
from fleet.gate_snapshot import NodeUse
from fleet.lifesigns import Pulses, node_is_frozen
from fleet.messages import Assignment, NodeTarget
from fleet.offers import NodeState
from fleet.outliers import Outliers
from fleet.placement import stand_ins
from fleet.readings import EngineReading, PageReading, PageState, Reason

log = logging.getLogger(__name__)

PAGE_BYTES = 4 << 20
INLINE_BYTES = 512 << 10  # pages over this are read in a thread; eight engines give half of it
HEALTH_EVERY_POLLS = 4
POLL_COST_S = 0.002  # of event loop that may pass for one node's poll, twice what it takes
SLOWEST_POLL_S = 2.0  # its answer is in before the gate calls the node stale, one lost poll included
STOOD_STILL_S = 3.0  # without a poll begun: this process was stopped, its nodes were not
LATE_S = 1.0  # beyond the end of all its deadlines a poll failed because this process stood still
FAILED_POLLS = 2  # silent polls before a node is closed; a refused connection closes it at once


@dataclass(slots=True)
class Standing:
    """What is known of one node."""

    target: NodeTarget
    failed_polls: int = 0
    is_well: bool = True  # its last health check
    health_due_s: float = 0.0
    pulses: dict[tuple[str, str | None], Pulses] = field(
        default_factory=dict[tuple[str, str | None], Pulses]
    )
    closed_because: str = "not polled yet"  # "" while it is open
    judged_s: float = float("-inf")  # when the newest poll began that said whether it is
    # Of the target, as every request asks for it:
    urls: dict[str, str] = field(default_factory=dict[str, str])  # by endpoint
    honours_priority: bool = False
    only_decodes: bool = False

    def __post_init__(self) -> None:
        self.aim(self.target)

    def aim(self, target: NodeTarget) -> None:
        """Follow the node's address and traits."""
        self.target = target
        base_url = target.base_url.rstrip("/")
        self.urls = {endpoint: base_url + path for path, endpoint in ENDPOINTS.items()}
        self.honours_priority, self.only_decodes = target.honours_priority, target.role == "decode"


@dataclass(slots=True)
class NodeBook:
    """All nodes of the assignment in force."""

    settings: Settings
    clock: Clock
    upstream: Upstream
    observe: Callable[[NodeState], None]
    outliers: Outliers = field(default_factory=Outliers)
    _standings: dict[str, Standing] = field(default_factory=dict[str, Standing])
    _polls: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, "asyncio.Task[None]"])
    _looked_s: float = float("inf")  # when the newest poll began
    _woke_s: float = float("-inf")  # when the first one after a standstill began
    _heard_s: float = float("-inf")  # when a node was found open
    _news: asyncio.Event = field(default_factory=asyncio.Event)  # set and replaced as each poll ends
    _doubts: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    def __post_init__(self) -> None:
        self.outliers.is_closed = self._is_closed

    def _is_closed(self, name: str) -> bool:
        """Say whether polls closed a node. One that was taken out is not closed on top of that."""
        standing = self._standings.get(name)
        return standing is None or standing.closed_because not in ("", "ejected")

    def retarget(self, assignment: Assignment) -> None:
        """Follow the assignment: new nodes are polled at once, nodes that left no more."""
        wanted = {node.name: node for node in assignment.nodes}
        for name in self._standings.keys() - wanted.keys():
            self._polls.pop(name).cancel()
            del self._standings[name]
        for index, (name, target) in enumerate(wanted.items()):
            known = self._standings.get(name)
            if known is not None and known.target.base_url == target.base_url:
                known.aim(target)
                continue
            if known is not None:
                self._polls.pop(name).cancel()
                self.outliers.forget(name)
            standing = self._standings[name] = Standing(target)
            offset_s = poll_interval_s(len(wanted), self.settings.poll_interval_s) * index / len(wanted)
            poll = asyncio.get_running_loop().create_task(self._follow(standing, offset_s), name=name)
            poll.add_done_callback(_report_end)
            self._polls[name] = poll
        now_s, rules = self.clock.monotonic_s(), assignment.policy.routing.ejection
        self.outliers.apply(rules, wanted, stand_ins(assignment), now_s=now_s)
        self._tell()

    async def catch_up(self) -> bool:
        """Say whether to ask the gate again: a node was heard of of which it knew nothing, or too little.

        After this process stood still what it knew is too old, and of nodes that are new it knows nothing;
        neither is their fault. Waits until a node is open, or each was looked at and is not.
        """
        now_s, known_s = self.clock.monotonic_s(), self._heard_s
        woke_s = now_s if now_s - self._looked_s > STOOD_STILL_S else self._woke_s
        while self._heard_s <= max(known_s, woke_s):
            if not any(self._is_awaited(one, woke_s) for one in self._standings.values()):
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LATE_S):  # should nobody look any more
                    await self._news.wait()
        return True

    def _is_awaited(self, standing: Standing, woke_s: float) -> bool:
        """Say whether no poll that began since `woke_s`, or ever, has said yet whether a node is open."""
        if standing.target.draining or self._polls[standing.target.name].done():
            return False
        return standing.judged_s < woke_s or standing.judged_s == float("-inf")

    def _tell(self) -> None:
        """Wake who waits for news of nodes."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def close(self) -> None:
        """Stop polling."""
        polls = [*self._polls.values(), *self._doubts]
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)

    def standing(self, name: str) -> Standing | None:
        """Return what is known of a node; None when it left the fleet."""
        return self._standings.get(name)

    def target(self, name: str) -> NodeTarget | None:
        """Return a node's address and traits; None when it left the fleet."""
        standing = self._standings.get(name)
        return None if standing is None else standing.target

    def conditions(self, gate_uses: Mapping[str, NodeUse]) -> dict[str, str]:
        """Return by node why it takes no work; "" while it does. `gate_uses`: what the gate says."""
        now_s = self.clock.monotonic_s()
        found: dict[str, str] = {}
        for name, standing in self._standings.items():
            use = gate_uses.get(name)
            if standing.target.draining:
                found[name] = "draining"
            elif self.outliers.stage(name, now_s) is Stage.OUT:
                found[name] = "ejected"
            else:
                found[name] = standing.closed_because or (use.closed_because if use else None) or ""
        return found

    def is_on_trial(self, name: str) -> bool:
        """Say whether a node takes a few trial requests after it was ejected."""
        return self.outliers.stage(name, self.clock.monotonic_s()) is Stage.TRIAL

    # -- requests -----------------------------------------------------------------------------------

    def request_worked(self, name: str, seconds_per_token: float | None = None) -> None:
        """A request was answered to its end, at this pace; None: it had no output to measure it by."""
        if out := self.outliers.worked(name, self.clock.monotonic_s(), seconds_per_token):
            self._take_out(out)

    def request_failed(self, name: str, fetched_from: str | None = None) -> None:
        """A request broke off or was not answered. Several in a row eject the node for a while.

        `fetched_from`: where it was to fetch the prompt's KV cache; if that is gone, that is at fault.
        """
        suspect = None if fetched_from is None else self._standings.get(fetched_from)
        if suspect is None:
            self._take_out(self.outliers.failed(name, self.clock.monotonic_s()))
            return
        doubt = asyncio.get_running_loop().create_task(self._blame(suspect, name))
        self._doubts.add(doubt)
        doubt.add_done_callback(self._doubts.discard)

    def has_answered_lately(self, name: str) -> bool:
        """Say whether a node answered a request within the last interval of the ejection's rules."""
        return self.outliers.has_answered_lately(name, self.clock.monotonic_s())

    async def _blame(self, suspect: Standing, name: str) -> None:
        try:
            is_gone = self._is_closed(suspect.target.name) or not await self._is_well(suspect)
        except NodeFailed:
            is_gone = True
        at_fault = suspect.target.name if is_gone else name
        self._take_out(self.outliers.failed(at_fault, self.clock.monotonic_s()))

    def _take_out(self, names: Iterable[str]) -> None:
        for name in names:
            log.warning("node ejected", extra={"node": name})
            self.observe(NodeState(name, healthy=False, seen_at_s=self.clock.monotonic_s()))

    # -- polls --------------------------------------------------------------------------------------

    async def _follow(self, standing: Standing, offset_s: float) -> None:
        """Poll one node for ever, on a grid so that a slow answer does not shift the next."""
        await self._poll(standing)
        due_s = self.clock.monotonic_s() + offset_s
        while True:
            due_s = max(due_s + self._interval_s, self.clock.monotonic_s())
            await asyncio.sleep(due_s - self.clock.monotonic_s())
            await self._poll(standing)

    @property
    def _interval_s(self) -> float:
        return poll_interval_s(len(self._standings), self.settings.poll_interval_s)

    async def _poll(self, standing: Standing) -> None:
        asked_at_s = self.clock.monotonic_s()
        if asked_at_s - self._looked_s > STOOD_STILL_S:
            self._woke_s = asked_at_s
        self._looked_s = asked_at_s
        try:
            await self._look(standing, asked_at_s)
        finally:
            self._tell()

    async def _look(self, standing: Standing, asked_at_s: float) -> None:
        try:
            if asked_at_s >= standing.health_due_s:
                standing.is_well = await self._is_well(standing)
                standing.health_due_s = asked_at_s + HEALTH_EVERY_POLLS * self._interval_s
            engines = await self._engines(standing)
        except NodeFailed as exc:
            standing.health_due_s = 0.0
            if self.clock.monotonic_s() - asked_at_s > 2 * self.settings.poll_timeout_s + LATE_S:
                return  # both its deadlines passed unwatched
            standing.failed_polls += 1
            if exc.reason is Reason.REFUSED or standing.failed_polls >= FAILED_POLLS:
                standing.judged_s = asked_at_s
                self._close(standing, exc.reason.value)
            return
        standing.failed_polls = 0
        standing.judged_s = asked_at_s
        self._judge(standing, engines, asked_at_s)

    def _judge(self, standing: Standing, engines: tuple[EngineReading, ...], asked_at_s: float) -> None:
        now_s, name = self.clock.monotonic_s(), standing.target.name
        state = node_state(name, engines, asked_at_s)
        if not standing.is_well:
            self._close(standing, "unhealthy")
        elif self.outliers.stage(name, now_s) is Stage.OUT and not self._is_tried(name, now_s):
            self._close(standing, "ejected")
        elif _is_frozen(standing, engines, asked_at_s):
            self._close(standing, "frozen")
        else:
            if standing.closed_because:
                log.info("node open", extra={"node": standing.target.name})
            standing.closed_because = ""
            self._heard_s = now_s
            most = self.outliers.most_requests(name, now_s)
            self.observe(state if most is None else replace(state, most_requests=most))

    def _is_tried(self, name: str, now_s: float) -> bool:
        """Put an ejected node on trial before its time if too few others serve; say whether it was."""
        is_tried = self.outliers.tried_early(name, now_s)
        if is_tried:
            log.warning("ejected node tried early", extra={"node": name, "because": "panic threshold"})
        return is_tried

    def _close(self, standing: Standing, because: str) -> None:
        if standing.closed_because != because:
            standing.closed_because = because
            log.warning("node closed", extra={"node": standing.target.name, "because": because})
        now_s = self.clock.monotonic_s()
        self.observe(NodeState(standing.target.name, healthy=False, seen_at_s=now_s))

    async def _is_well(self, standing: Standing) -> bool:
        url = standing.target.base_url.rstrip("/") + "/health"
        page = await self.upstream.page(url, deadline_s=self.settings.poll_timeout_s, limit_bytes=65_536)
        return page.status == 200

    async def _engines(self, standing: Standing) -> tuple[EngineReading, ...]:
        """Return what the node's engines say. Raises NodeFailed when the page names no engine."""
        url = standing.target.base_url.rstrip("/") + "/metrics"
        page = await self.upstream.page(
            url, deadline_s=self.settings.poll_timeout_s, limit_bytes=PAGE_BYTES
        )
        if page.status != 200:
            raise NodeFailed(Reason.HTTP_ERROR, f"/metrics answered {page.status}")
        name = standing.target.name
        if len(page.body) <= INLINE_BYTES:
            reading = _read(page, name)
        else:
            reading = await asyncio.to_thread(_read, page, name)
        if reading.state is not PageState.OK:
            raise NodeFailed(Reason.NO_ENGINE_SERIES, reading.hint)
        return reading.engines


def _read(page: Page, name: str) -> PageReading:
    """Read a page. One larger than real ones are is read as it is: its lines are capped there."""
    body = without_buckets(page.body) if len(page.body) <= INLINE_BYTES else page.body
    return read_page(body, source=name, content_type=page.content_type)


def _is_frozen(standing: Standing, engines: tuple[EngineReading, ...], asked_at_s: float) -> bool:
    """Say whether requests run while nothing moves: a stalled worker still answers 200.

    The rule is the scraper's own: three pages and `FROZEN_AFTER_S` seconds.
    """
    known = {(engine.engine, engine.model): engine for engine in engines}
    standing.pulses = {key: standing.pulses.get(key, Pulses()) for key in known}
    for key, engine in known.items():
        standing.pulses[key].add(engine, asked_at_s)
    return node_is_frozen(pulses.life() for pulses in standing.pulses.values())


def _report_end(poll: asyncio.Task[None]) -> None:
    """Say that a node is followed no more. It ends by cancelling only; anything else is a fault of ours.

    The gate takes the node for stale from then on.
    """
    if not poll.cancelled() and poll.exception() is not None:
        log.critical("node is polled no more", extra={"node": poll.get_name()}, exc_info=poll.exception())


def poll_interval_s(nodes: int, asked_s: float) -> float:
    """Return the time between two polls of one node, so that all polls take at most half of the process.

    What is asked for up to 250 nodes at 0.5 s; then 2 ms a node, up to 2 s.
    """
    return max(asked_s, min(nodes * POLL_COST_S, SLOWEST_POLL_S))


def without_buckets(page: bytes) -> bytes:
    """Return a metrics page without comments and histogram buckets: nine tenths of it, not needed here."""
    return b"\n".join(
        line for line in page.split(b"\n") if b"_bucket{" not in line and not line.startswith(b"# HELP")
    )


def node_state(name: str, engines: Iterable[EngineReading], seen_at_s: float) -> NodeState:
    """Return one node's state from its engines: counts add up, KV use is weighted by KV size."""
    listed = tuple(engines)
    capacity = _total(engine.kv_capacity_tokens for engine in listed)
    used = [engine.kv_used_ratio for engine in listed]
    ratio: float | None = None
    if used and None not in used:
        weights = [engine.kv_capacity_tokens or 1 for engine in listed] if capacity else [1] * len(listed)
        weighted = sum(
            value * weight for value, weight in zip(used, weights, strict=True) if value is not None
        )
        ratio = weighted / sum(weights)
    return NodeState(
        name=name,
        healthy=True,
        seen_at_s=seen_at_s,
        kv_capacity_tokens=capacity,
        kv_used_ratio=ratio,
        running=_total(engine.running for engine in listed),
        waiting=_total(engine.waiting for engine in listed),
        preemptions=_total(engine.preemptions for engine in listed),
    )


def _total(values: Iterable[int | None]) -> int | None:
    """Return the sum; None if any part is unknown, or there is none."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    return sum(known) if known and len(known) == len(listed) else None
