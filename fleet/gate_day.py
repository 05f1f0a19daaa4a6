"""One day of a strategy through the real gate, in virtual time: its nodes come and go, its requests ask.

Owns: the loop that asks `fleet.gate` about every request of a day and lets time pass between them. Times
are seconds from the month's start, tokens counts. Nodes follow a plan by bin; what is dropped finishes what
it holds, what is interrupted loses it. Prevents: a forecast whose rules are not those of the gateway.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

import numpy as np
from numpy.typing import NDArray

from fleet.fluid import BIN_S
from fleet.gate import Gate
from fleet.gate_replay import assignment_of
from fleet.offers import Dispatch, Lease, NodeState, Refused, Request, Started
from fleet.outcomes import TIERS, Outcome
from fleet.policy import Policy
from fleet.replay_servers import ReplayNode
from fleet.simulate import NodePlan

MODEL = "simulated"
#: Whenever something happens so long after they last did, nodes say that they are well. The gate trusts
#: that for 5 s.
OBSERVE_EVERY_S = 2.0
_NEVER = math.inf


@dataclass(frozen=True, slots=True)
class DayTraffic:
    """Requests in order of time. Those before `counted_from` only warm the gate up."""

    at_s: NDArray[np.float64]
    service_s: NDArray[np.float64]
    tier: NDArray[np.int8]  # place in TIERS
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    counted_from: int


@dataclass(slots=True)
class DayCounts:
    """What became of the counted requests, by tier in the order of TIERS."""

    offered: list[int] = field(default_factory=lambda: [0] * len(TIERS))
    waits_s: list[list[float]] = field(
        default_factory=lambda: [list[float]() for _ in TIERS]
    )  # of those that started
    refused: list[Counter[Outcome]] = field(default_factory=lambda: [Counter[Outcome]() for _ in TIERS])
    refused_at_s: list[float] = field(default_factory=list[float])  # when each of them came
    lost: list[int] = field(default_factory=lambda: [0] * len(TIERS))  # in flight on interrupted nodes


#: A request: place, time, place of its tier, prompt tokens, seconds in the engine, output tokens.
_Asked = tuple[int, float, int, int, float, int]


class GateDay:
    """The gate, the nodes behind it and the clock, from `first_bin` to `last_bin` of a plan."""

    def __init__(
        self,
        policy: Policy,
        node: ReplayNode,
        plan: NodePlan,
        traffic: DayTraffic,
        first_bin: int,
        last_bin: int,
        seed: int,
    ) -> None:
        self.counts = DayCounts()
        self.bin, self.last_bin = first_bin, last_bin
        self._policy, self._node, self._plan, self._traffic = policy, node, plan, traffic
        self._gate = Gate(random.Random(seed))
        self._offsets = np.searchsorted(traffic.at_s, np.arange(first_bin, last_bin + 1) * BIN_S).tolist()
        self._first_bin = first_bin
        self._requests: dict[tuple[int, int], Request] = {}
        self._names = count(1)
        self._nodes: list[str] = []
        self._burst: list[str] = []
        self._ends: list[tuple[float, int, _Asked, Lease]] = []  # (end, place, …)
        self._longer: dict[
            int, tuple[_Asked, Lease]
        ] = {}  # by place: answers longer than what was reserved
        self._waiting: dict[int, _Asked] = {}  # by ticket
        self._observe_s = _NEVER

    @property
    def done(self) -> int:
        """How many counted requests were offered."""
        return sum(self.counts.offered)

    @property
    def is_done(self) -> bool:
        """Say whether every request of the day was decided and has ended."""
        return self.bin >= self.last_bin

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
        t = self._traffic
        counted_from, offered, waiting = t.counted_from, self.counts.offered, self._waiting
        offer, request_of = self._gate.offer, self._request
        rows = zip(
            range(first, last),
            *(
                column[first:last].tolist()
                for column in (t.at_s, t.tier, t.prompt_tokens, t.service_s, t.output_tokens)
            ),
            strict=True,
        )
        for asked in rows:
            place, now_s, tier, prompt, _, _ = asked
            self._pass_to(now_s)
            if now_s >= self._observe_s:
                self._observe(now_s)
            if place >= counted_from:
                offered[tier] += 1
            decision = offer(request_of(tier, prompt), now_s)
            if isinstance(decision, Dispatch):
                self._start(asked, decision.lease, now_s)
            elif isinstance(decision, Refused):
                self._refuse(asked, decision.outcome)
            else:
                waiting[decision.ticket.ticket_id] = asked
                self._poll(now_s)
        return last - first

    def _request(self, tier: int, prompt: int) -> Request:
        """Return a request; equal ones are one object, since the gate reads no more of them."""
        found = self._requests.get((tier, prompt))
        if found is None:
            name = TIERS[tier]
            found = Request("simulated", name.value, name, MODEL, "chat", prompt, None)
            self._requests[tier, prompt] = found
        return found

    def _follow_plan(self, k: int) -> None:
        """Bring the nodes to what the plan says of bin `k`; newest ones are dropped first."""
        ready, burst = int(self._plan.ready[k]), int(self._plan.running_burst[k])
        gone = min(int(self._plan.interrupted[k]), len(self._burst)) if k > self._first_bin else 0
        if not gone and (len(self._nodes), len(self._burst)) == (ready, burst):
            return
        now_s = k * BIN_S
        taken, self._burst = set(self._burst[:gone]), self._burst[gone:]  # those that ran longest
        for names, wanted, kind in ((self._nodes, ready, "n"), (self._burst, burst, "s")):
            del names[wanted:]
            names += [f"{kind}{next(self._names)}" for _ in range(wanted - len(names))]
        nodes = [
            ReplayNode(
                name,
                kv_capacity_tokens=self._node.kv_capacity_tokens,
                max_num_seqs=self._node.max_num_seqs,
                price_class="spot" if is_spot else "on_demand",
            )
            for names, is_spot in ((self._nodes, False), (self._burst, True))
            for name in names
        ]
        self._gate.apply(assignment_of(self._policy, nodes, [MODEL]), now_s)
        self._lose(taken, now_s)
        self._observe(now_s)
        self._poll(now_s)

    def _lose(self, taken: set[str], now_s: float) -> None:
        """End what runs on nodes that were taken away, unanswered."""
        lost = [entry for entry in self._ends if entry[-1].node in taken]
        if not lost:
            return
        self._ends[:] = [entry for entry in self._ends if entry[-1].node not in taken]
        heapify(self._ends)
        for _, place, asked, lease in lost:
            self._longer.pop(place, None)
            self._gate.release(
                lease, prompt_tokens=None, output_tokens=0, outcome=Outcome.UPSTREAM_ERROR, now_s=now_s
            )
            if place >= self._traffic.counted_from:
                self.counts.lost[asked[2]] += 1

    def _observe(self, now_s: float) -> None:
        for (_, _, _, _, service_s, output_tokens), lease in self._longer.values():
            produced = int(output_tokens * min((now_s - lease.opened_at_s) / service_s, 1.0))
            if produced > lease.output_tokens:
                self._gate.extend(lease, produced, now_s)
        capacity = self._node.kv_capacity_tokens
        states = [
            NodeState(name, True, now_s, capacity, 0.0, 0, 0)
            for names in (self._nodes, self._burst)
            for name in names
        ]
        self._gate.observe(states, now_s)
        self._observe_s = now_s + OBSERVE_EVERY_S

    def _pass_to(self, until_s: float) -> None:
        """Let everything happen that is due at or before `until_s`."""
        ends, waiting, gate = self._ends, self._waiting, self._gate
        while True:
            now_s, is_end = (ends[0][0], True) if ends else (_NEVER, False)
            if waiting:
                deadline_s = gate.next_deadline_s()
                if deadline_s is not None and deadline_s < now_s:
                    now_s, is_end = deadline_s, False
            if now_s > until_s or now_s == _NEVER:
                return
            if now_s >= self._observe_s:
                self._observe(now_s)
            if is_end:
                self._finish(now_s)
            if waiting:
                self._poll(now_s)

    def _start(self, asked: _Asked, lease: Lease, now_s: float) -> None:
        place, _, tier, _, service_s, output_tokens = asked
        heappush(self._ends, (now_s + service_s, place, asked, lease))
        if output_tokens > lease.output_tokens:
            self._longer[place] = (asked, lease)
        if place >= self._traffic.counted_from:
            self.counts.waits_s[tier].append(lease.queued_s)

    def _finish(self, now_s: float) -> None:
        _, place, asked, lease = heappop(self._ends)
        self._longer.pop(place, None)
        self._gate.release(
            lease,
            prompt_tokens=lease.prompt_tokens,
            output_tokens=asked[5],
            outcome=Outcome.COMPLETED,
            now_s=now_s,
        )

    def _poll(self, now_s: float) -> None:
        for event in self._gate.poll(now_s):
            asked = self._waiting.pop(event.ticket.ticket_id)
            if isinstance(event, Started):
                self._start(asked, event.lease, now_s)
            else:
                self._refuse(asked, event.outcome)

    def _refuse(self, asked: _Asked, outcome: Outcome) -> None:
        place, at_s, tier, _, _, _ = asked
        if place >= self._traffic.counted_from:
            self.counts.refused[tier][outcome] += 1
            self.counts.refused_at_s.append(at_s)
