"""A fleet in virtual time: traffic, a front that routes it, engines, and the pages they would show.

Seconds of simulated time; sizes are tokens. Engines run to the exact end of their steps; the front looks
up every TICK_S. Pages are text, as a scraper would get them. Prevents: causes of trouble tested on numbers
that somebody wrote down, instead of on what engines in that trouble export.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Literal, Protocol

from fleet.engine import Engine
from fleet.engine_profile import EngineProfile
from fleet.engine_request import EngineRequest, EventKind
from simfleet.page import HttpTally, MetricsPage

TICK_S = 0.05
#: When a simulated fleet begins, Unix seconds; a whole minute.
EPOCH_S = 1_800_000_000.0
HANDLER = "/v1/chat/completions"

Routing = Literal["least_loaded", "round_robin", "sticky"]
Lie = Literal["running_low", "running_high", "kv_zero", "kv_negative"]


@dataclass(frozen=True, slots=True)
class Call:
    """One request of one client."""

    at_s: float
    tenant: str
    tier: str
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    session: int = 0


@dataclass(frozen=True, slots=True)
class Front:
    """How whatever stands before the engines treats requests. None: no such limit."""

    routing: Routing = "least_loaded"
    cap: int | None = None  # requests in flight, over all nodes
    node_cap: int | None = None  # requests in flight on one node
    shortest_first: bool = False
    max_queued: int | None = None  # refused beyond
    timeout_s: float | None = None  # refused after waiting so long
    retry_probability: float = 0.0  # of a client whose request was refused
    retry_after_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something wrong with one node for a while, or with what it exports."""

    node: int
    freeze: tuple[float, float] | None = None  # from, to; simulated seconds
    lie: Lie | None = None


class FrontCounters(Protocol):
    """Where a front books what it sees: the gateway's own metrics fit."""

    def offer(self, call: Call, *, is_retry: bool) -> None: ...
    def dispatch(self, call: Call, waited_s: float) -> None: ...
    def refuse(self, call: Call, *, timed_out: bool) -> None: ...
    def first_token(self, call: Call, ttft_s: float) -> None: ...
    def finish(self, call: Call) -> None: ...
    def page(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class RoundPages:
    """What a scraper would read at one moment."""

    at_s: float  # Unix seconds
    nodes: dict[str, bytes]
    front: bytes | None


@dataclass(slots=True)
class _Node:
    name: str
    engine: Engine
    page: MetricsPage
    http: HttpTally = field(default_factory=HttpTally)
    inside: int = 0
    frozen: tuple[float, float] | None = None
    lie: Lie | None = None
    backlog: list[EngineRequest] = field(default_factory=list[EngineRequest])


@dataclass(slots=True)
class _Ticket:
    call: Call
    offered_s: float
    node: _Node | None = None


class VirtualFleet:
    """Runs `calls` (in order of time) through a front and engines; deterministic for a seed."""

    def __init__(
        self,
        profile: EngineProfile,
        nodes: int,
        front: Front,
        *,
        seed: int = 0,
        troubles: tuple[Trouble, ...] = (),
        counters: FrontCounters | None = None,
    ) -> None:
        self.front = front
        self.counters = counters
        self._rng = random.Random(f"fleet/{seed}")
        self._nodes = [
            _Node(f"gpu-{n + 1:02}", Engine(profile), MetricsPage(profile, profile.model, EPOCH_S - 3600))
            for n in range(nodes)
        ]
        for trouble in troubles:
            node = self._nodes[trouble.node]
            node.frozen = trouble.freeze or node.frozen
            node.lie = trouble.lie or node.lie
        self._queue: list[tuple[float, int, _Ticket]] = []
        self._retries: list[tuple[float, int, Call]] = []
        self._tickets: dict[str, _Ticket] = {}
        self._numbers = count()
        self._turn = 0
        self._in_flight = 0

    def run(
        self, calls: Iterator[Call], length_s: float, *, begin_s: float = 0.0, period_s: float = 10.0
    ) -> Iterator[RoundPages]:
        """Yield the pages of every round from `begin_s` (<= 0) to `length_s`, each `period_s` apart."""
        pending = next(calls, None)
        every = round(period_s / TICK_S)
        for tick in range(round(begin_s / TICK_S), round(length_s / TICK_S) + 1):
            now_s = tick * TICK_S
            self._advance(now_s)
            self._expire(now_s)
            self._dispatch(now_s)
            if tick % every == 0:
                yield self._pages(now_s)
            end_s = now_s + TICK_S
            while self._retries and self._retries[0][0] < end_s:
                at_s, _, call = heappop(self._retries)
                self._offer(call, at_s, is_retry=True)
            while pending is not None and pending.at_s < end_s:
                self._offer(pending, pending.at_s, is_retry=False)
                pending = next(calls, None)

    # -- the front ----------------------------------------------------------------------------------

    def _offer(self, call: Call, at_s: float, *, is_retry: bool) -> None:
        if self.counters:
            self.counters.offer(call, is_retry=is_retry)
        ticket = _Ticket(call, at_s)
        limit = self.front.max_queued
        if limit is not None and len(self._queue) >= limit and not self._has_room():
            self._refuse(ticket, at_s, timed_out=False)
            return
        size = call.prompt_tokens + call.output_tokens
        rank = size - 200.0 * -at_s if self.front.shortest_first else at_s
        heappush(self._queue, (rank, next(self._numbers), ticket))
        self._dispatch(at_s)

    def _expire(self, now_s: float) -> None:
        limit = self.front.timeout_s
        if limit is None or not self._queue:
            return
        late = [row for row in self._queue if now_s - row[2].offered_s > limit]
        if late:
            self._queue = [row for row in self._queue if now_s - row[2].offered_s <= limit]
            self._queue.sort()
            for _, _, ticket in late:
                self._refuse(ticket, now_s, timed_out=True)

    def _refuse(self, ticket: _Ticket, now_s: float, *, timed_out: bool) -> None:
        if self.counters:
            self.counters.refuse(ticket.call, timed_out=timed_out)
        if self._rng.random() < self.front.retry_probability:
            wait_s = self.front.retry_after_s * self._rng.uniform(0.5, 1.5)
            heappush(self._retries, (now_s + wait_s, next(self._numbers), ticket.call))

    def _has_room(self) -> bool:
        cap, node_cap = self.front.cap, self.front.node_cap
        if cap is not None and self._in_flight >= cap:
            return False
        return node_cap is None or any(node.inside < node_cap for node in self._nodes)

    def _dispatch(self, now_s: float) -> None:
        while self._queue and self._has_room():
            ticket = heappop(self._queue)[2]
            node = self._route(ticket.call)
            number = str(next(self._numbers))
            ticket.node = node
            self._tickets[number] = ticket
            node.inside += 1
            self._in_flight += 1
            call = ticket.call
            request = EngineRequest(number, call.prompt_tokens, call.output_tokens, priority=call.priority)
            if _is_frozen(node, now_s):
                node.backlog.append(request)
            else:
                node.engine.submit(request, now_s)
            if self.counters:
                self.counters.dispatch(call, now_s - ticket.offered_s)

    def _route(self, call: Call) -> _Node:
        nodes, cap = self._nodes, self.front.node_cap
        if self.front.routing == "sticky":
            return nodes[call.session % len(nodes)]
        if self.front.routing == "round_robin":
            self._turn += 1
            return nodes[self._turn % len(nodes)]
        open_ = nodes if cap is None else [node for node in nodes if node.inside < cap]
        least = min(node.inside for node in open_)
        return self._rng.choice([node for node in open_ if node.inside == least])

    # -- the engines --------------------------------------------------------------------------------

    def _advance(self, now_s: float) -> None:
        for node in self._nodes:
            if _is_frozen(node, now_s):
                continue
            if node.frozen is not None and now_s >= node.frozen[1]:
                self._thaw(node, now_s)
            for event in node.engine.advance(now_s):
                ticket = self._tickets.get(event.request_id)
                if ticket is None:
                    continue
                if event.kind is EventKind.FIRST_OUTPUT:
                    if self.counters:
                        self.counters.first_token(ticket.call, event.at_s - ticket.offered_s)
                    continue
                del self._tickets[event.request_id]
                node.inside -= 1
                self._in_flight -= 1
                total_s = event.at_s - ticket.offered_s
                node.http.book(HANDLER, "POST", 200, total_s, 0, 0)
                if self.counters:
                    self.counters.finish(ticket.call)

    def _thaw(self, node: _Node, now_s: float) -> None:
        frozen = node.frozen or (now_s, now_s)
        node.engine.stall(frozen[1] - frozen[0])
        node.frozen = None
        for request in node.backlog:
            node.engine.submit(request, now_s)
        node.backlog.clear()

    def _pages(self, now_s: float) -> RoundPages:
        pages = {
            node.name: _told(node.page.render(node.engine, node.http), node.lie) for node in self._nodes
        }
        return RoundPages(EPOCH_S + now_s, pages, self.counters.page() if self.counters else None)


def _is_frozen(node: _Node, now_s: float) -> bool:
    return node.frozen is not None and node.frozen[0] <= now_s < node.frozen[1]


def _told(page: bytes, lie: Lie | None) -> bytes:
    """Return the page as a lying engine writes it."""
    match lie:
        case None:
            return page
        case "running_low":
            return _scaled(page, b"vllm:num_requests_running", lambda v: float(int(v * 0.25)))
        case "running_high":
            return _scaled(page, b"vllm:num_requests_running", lambda v: float(int(v * 3.0)))
        case "kv_zero":
            return _scaled(page, b"vllm:kv_cache_usage_perc", lambda _: 0.0)
        case "kv_negative":
            return _scaled(page, b"vllm:kv_cache_usage_perc", lambda v: v - 1.2)


def _scaled(page: bytes, name: bytes, change: Callable[[float], float]) -> bytes:
    return re.sub(
        rb"^(" + name + rb"\{[^}]*\}) (\S+)$",
        lambda m: m.group(1) + b" " + repr(change(float(m.group(2)))).encode(),
        page,
        flags=re.MULTILINE,
    )
