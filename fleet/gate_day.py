"""One day of a strategy through the real gate, in virtual time: its nodes come and go, its requests ask.

Owns: the loop that asks `fleet.gate` about every request of a day and lets time pass between them. Times
are seconds from the month's start, tokens counts. Nodes follow a plan by bin; what is dropped finishes what
it holds, what is interrupted loses it. Prevents: a forecast whose rules are not those of the gateway.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

from fleet.day_servers import Asked, DayServers, DrawnServers, GroupedEngines
from fleet.fluid import BIN_S
from fleet.gate import Gate
from fleet.gate_replay import assignment_of
from fleet.offers import Dispatch, Lease, Refused, Request, Started
from fleet.outcomes import Outcome, Tier
from fleet.policy import Policy
from fleet.replay_servers import ReplayNode
from fleet.simulate import NodePlan

MODEL = "simulated"
#: Whenever something happens so long after they last did, nodes are polled. The gate trusts that for 5 s.
OBSERVE_EVERY_S = 2.0
_NEVER = math.inf
_OUTCOMES = tuple(Outcome)


@dataclass(frozen=True, slots=True)
class DayTraffic:
    """Requests in order of time. Those before `counted_from` only warm the gate up."""

    at_s: NDArray[np.float64]
    service_s: NDArray[np.float64]
    flow: NDArray[np.int16]  # place among the flows
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    counted_from: int


@dataclass(frozen=True, slots=True)
class DayOutcome:
    """What became of the counted requests. Rows are flows; `refused` has a column for each outcome."""

    offered: NDArray[np.int64]
    refused: NDArray[np.int64]
    refused_at_s: NDArray[np.float64]  # when each of them came
    waits_s: tuple[NDArray[np.float32], ...]  # by flow, of those that started
    lost_waits_s: tuple[NDArray[np.float32], ...]  # of those of them in flight on interrupted nodes
    first_s: tuple[NDArray[np.float32], ...]  # by flow, arrival to first token; empty where not known
    e2e_s: tuple[NDArray[np.float32], ...]  # arrival to last token, of those
    preemptions: int


class DayCounts:
    """The same while it is counted."""

    def __init__(self, flows: int) -> None:
        self.offered = [0] * flows
        self.waits_s, self.lost_waits_s, self.first_s, self.e2e_s = (
            [list[float]() for _ in range(flows)] for _ in range(4)
        )
        self.refused = [Counter[Outcome]() for _ in range(flows)]
        self.refused_at_s: list[float] = []

    def outcome(self, preemptions: int) -> DayOutcome:
        """Return what was counted."""
        waits_s, lost_waits_s, first_s, e2e_s = (
            tuple(np.array(part, dtype=np.float32) for part in parts)
            for parts in (self.waits_s, self.lost_waits_s, self.first_s, self.e2e_s)
        )
        return DayOutcome(
            np.array(self.offered, dtype=np.int64),
            np.array([[one[name] for name in _OUTCOMES] for one in self.refused], dtype=np.int64),
            np.array(self.refused_at_s),
            waits_s,
            lost_waits_s,
            first_s,
            e2e_s,
            preemptions,
        )


@dataclass(frozen=True, slots=True)
class DayFlow:
    """Whose requests: a tenant of the policy in its tier."""

    tenant: str
    tier: Tier


@dataclass(slots=True)
class GateDay:
    """The gate, the nodes behind it and the clock, from `bin` to `last_bin`; `plan` begins with `bin`."""

    policy: Policy
    flows: Sequence[DayFlow]
    node: ReplayNode
    plan: NodePlan
    traffic: DayTraffic
    bin: int
    last_bin: int
    seed: int
    counts: DayCounts = field(init=False)
    _gate: Gate = field(init=False)
    _servers: DayServers = field(init=False)
    _first_bin: int = field(init=False)
    _offsets: list[int] = field(init=False)
    _requests: dict[tuple[int, int], Request] = field(init=False, default_factory=dict)
    _names: count[int] = field(init=False, default_factory=lambda: count(1))
    _nodes: list[str] = field(init=False, default_factory=list)
    _burst: list[str] = field(init=False, default_factory=list)
    _held: dict[int, tuple[Asked, Lease]] = field(init=False, default_factory=dict)
    #: Answers longer than what was reserved for them, by place.
    _longer: dict[int, tuple[Asked, Lease]] = field(init=False, default_factory=dict)
    _waiting: dict[int, Asked] = field(init=False, default_factory=dict)  # by ticket
    _observe_s: float = field(init=False, default=_NEVER)
    _ranks: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = DayCounts(len(self.flows))
        self._gate = Gate(random.Random(self.seed))
        engine, capacity = self.node.engine, self.node.capacity_tokens
        self._servers = DrawnServers(capacity or 0) if engine is None else GroupedEngines(engine)
        self._first_bin = self.bin
        edges_s = np.arange(self.bin, self.last_bin + 1) * BIN_S
        self._offsets = np.searchsorted(self.traffic.at_s, edges_s).tolist()
        self._ranks = [self.policy.tiers[one.tier].engine_priority for one in self.flows]

    @property
    def done(self) -> int:
        """How many counted requests were offered."""
        return sum(self.counts.offered)

    @property
    def is_done(self) -> bool:
        """Say whether every request of the day was decided and has ended."""
        return self.bin >= self.last_bin

    def outcome(self) -> DayOutcome:
        """Return what became of the requests counted so far."""
        servers = self._servers
        return self.counts.outcome(servers.preemptions if isinstance(servers, GroupedEngines) else 0)

    def advance(self, at_least: int) -> None:
        """Go on by whole bins until so many requests were asked about; after the last let all end."""
        asked = 0
        while not self.is_done and asked < at_least:
            asked += self._run_bin(self.bin)
            self.bin += 1
        if self.is_done:
            self._pass_to(_NEVER)

    def _run_bin(self, k: int) -> int:
        self._pass_to(k * BIN_S)
        self._follow_plan(k)
        first, last = self._offsets[k - self._first_bin : k - self._first_bin + 2]
        t = self.traffic
        counted_from, offered, waiting = t.counted_from, self.counts.offered, self._waiting
        offer, request_of = self._gate.offer, self._request
        rows = map(
            Asked,
            range(first, last),
            *(
                column[first:last].tolist()
                for column in (t.at_s, t.flow, t.prompt_tokens, t.service_s, t.output_tokens)
            ),
        )
        for asked in rows:
            now_s, flow = asked.at_s, asked.flow
            self._pass_to(now_s)
            if now_s >= self._observe_s:
                self._observe(now_s)
            if asked.place >= counted_from:
                offered[flow] += 1
            decision = offer(request_of(flow, asked.prompt_tokens), now_s)
            if isinstance(decision, Dispatch):
                self._start(asked, decision.lease, now_s)
            elif isinstance(decision, Refused):
                self._refuse(asked, decision.outcome)
            else:
                waiting[decision.ticket.ticket_id] = asked
                self._poll(now_s)
        return last - first

    def _request(self, flow: int, prompt: int) -> Request:
        """Return a request; equal ones are one object, since the gate reads no more of them."""
        found = self._requests.get((flow, prompt))
        if found is None:
            whose = self.flows[flow]
            found = Request("simulated", whose.tenant, whose.tier, MODEL, "chat", prompt, None)
            self._requests[flow, prompt] = found
        return found

    def _follow_plan(self, k: int) -> None:
        """Bring the nodes to what the plan says of bin `k`; newest ones are dropped first."""
        at = k - self._first_bin
        ready, burst = int(self.plan.ready[at]), int(self.plan.running_burst[at])
        gone = min(int(self.plan.interrupted[at]), len(self._burst)) if at else 0
        if at and not gone and (len(self._nodes), len(self._burst)) == (ready, burst):
            return
        now_s = k * BIN_S
        taken, self._burst = set(self._burst[:gone]), self._burst[gone:]  # those that ran longest
        for names, wanted, kind in ((self._nodes, ready, "n"), (self._burst, burst, "s")):
            del names[wanted:]
            names += [f"{kind}{next(self._names)}" for _ in range(wanted - len(names))]
        nodes = [
            ReplayNode(
                name,
                engine=self.node.engine,
                kv_capacity_tokens=self.node.capacity_tokens,
                max_num_seqs=self.node.max_num_seqs,
                price_class="spot" if is_spot else "on_demand",
            )
            for names, is_spot in ((self._nodes, False), (self._burst, True))
            for name in names
        ]
        self._gate.apply(assignment_of(self.policy, nodes, [MODEL]), now_s)
        self._lose(taken, now_s)
        self._servers.follow([*self._nodes, *self._burst])
        self._observe(now_s)
        self._poll(now_s)

    def _lose(self, taken: set[str], now_s: float) -> None:
        """End what runs on nodes that were taken away, unanswered."""
        if not taken:
            return
        for place in self._servers.lose(taken):
            asked, lease = self._held.pop(place)
            self._longer.pop(place, None)
            self._gate.release(
                lease, prompt_tokens=None, output_tokens=0, outcome=Outcome.UPSTREAM_ERROR, now_s=now_s
            )
            if place >= self.traffic.counted_from:
                self.counts.lost_waits_s[asked.flow].append(lease.queued_s)

    def _observe(self, now_s: float) -> None:
        for place, (_, lease) in self._longer.items():
            produced = self._servers.produced(place, now_s)
            if produced > lease.output_tokens:
                self._gate.extend(lease, produced, now_s)
        self._gate.observe(self._servers.states([*self._nodes, *self._burst], now_s), now_s)
        self._observe_s = now_s + OBSERVE_EVERY_S

    def _pass_to(self, until_s: float) -> None:
        """Let everything happen that is due at or before `until_s`."""
        ended_of, waiting, gate = self._servers.ended, self._waiting, self._gate
        while True:
            limit_s, deadline_s = until_s, None
            if waiting:
                deadline_s = gate.next_deadline_s()
                if deadline_s is not None and deadline_s < until_s:
                    limit_s = deadline_s
            ended = ended_of(limit_s)
            if ended is not None:
                now_s = ended.at_s
            elif deadline_s is not None and deadline_s <= until_s:
                now_s = deadline_s
            else:
                return
            if ended is not None:
                self._finish(now_s, ended.names, ended.first_s)
            if now_s >= self._observe_s:
                self._observe(now_s)
            if waiting:
                self._poll(now_s)

    def _start(self, asked: Asked, lease: Lease, now_s: float) -> None:
        self._servers.start(asked, lease.node, self._ranks[asked.flow], now_s)
        self._held[asked.place] = (asked, lease)
        if asked.output_tokens > lease.output_tokens:
            self._longer[asked.place] = (asked, lease)
        if asked.place >= self.traffic.counted_from:
            self.counts.waits_s[asked.flow].append(lease.queued_s)

    def _finish(self, now_s: float, places: tuple[int, ...], first_s: tuple[float, ...]) -> None:
        counts, counted_from = self.counts, self.traffic.counted_from
        for n, place in enumerate(places):
            asked, lease = self._held.pop(place)
            if self._longer:
                self._longer.pop(place, None)
            self._gate.release(
                lease,
                prompt_tokens=lease.prompt_tokens,
                output_tokens=asked.output_tokens,
                outcome=Outcome.COMPLETED,
                now_s=now_s,
            )
            if first_s and place >= counted_from:
                counts.first_s[asked.flow].append(first_s[n] - asked.at_s)
                counts.e2e_s[asked.flow].append(now_s - asked.at_s)

    def _poll(self, now_s: float) -> None:
        for event in self._gate.poll(now_s):
            asked = self._waiting.pop(event.ticket.ticket_id)
            if isinstance(event, Started):
                self._start(asked, event.lease, now_s)
            else:
                self._refuse(asked, event.outcome)

    def _refuse(self, asked: Asked, outcome: Outcome) -> None:
        if asked.place >= self.traffic.counted_from:
            self.counts.refused[asked.flow][outcome] += 1
            self.counts.refused_at_s.append(asked.at_s)
