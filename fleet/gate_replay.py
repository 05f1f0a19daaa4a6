"""Traffic replayed through the real gate in virtual time: what a policy would have done with it.

The gate is `fleet.gate`, the same that admits in production; behind it stand engines of `fleet.engine`, or
a pace (seconds a token, or the seconds each request was seen to take). Times are virtual seconds from the
first arrival's clock, sizes tokens. Prevents: a policy published on a guess of whom it refuses, and a
forecast whose rules differ from those of the gateway.
"""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from fleet.budget import STALE_AFTER_S
from fleet.errors import InvalidInput
from fleet.gate import Gate
from fleet.messages import Assignment, NodeTarget, TenantShare
from fleet.offers import Dispatch, Lease, Refused, Request, Started
from fleet.outcomes import TIERS, Outcome, Tier
from fleet.policy import Policy
from fleet.replay_servers import EngineServers, PacedServers, ReplayNode, Servers

#: How often a gateway polls its nodes.
OBSERVE_EVERY_S = 0.5
#: Nodes with a pace have no news: they are heard just often enough not to become stale to the gate.
HEARD_EVERY_S = 0.8 * STALE_AFTER_S
PROGRESS_EVERY = 10_000  # arrivals
_NEVER = math.inf

#: Told (arrivals done, of all); returns False to stop there.
Progress = Callable[[int, int], bool]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request as it came: when, what it asked, and how long its answer is."""

    at_s: float
    request: Request
    output_tokens: int  # what the engine will answer, >= 1; the gate does not see it before the end
    service_s: float | None = None  # measured time in an engine; None: by the node's pace


@dataclass(slots=True)
class ReplayResult:
    """What came of each arrival, by its place. NaN: it did not get that far."""

    arrivals: Sequence[Arrival]
    outcomes: list[Outcome | None]  # None: not decided when the replay was stopped
    tiers: list[Tier | None]  # the tier it counted in; None: unknown tenant
    queued_s: list[float]  # in the gate's queue, of those that started
    first_s: list[float]  # arrival to first token
    e2e_s: list[float]  # arrival to last token
    done: int = 0  # arrivals offered
    ended_at_s: float = 0.0
    preemptions: int = 0  # by the engines
    output_tokens: int = 0  # of completed requests
    gaps_s: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])  # (step, decoders)

    @property
    def is_complete(self) -> bool:
        """Say whether every arrival was offered and decided."""
        return self.done == len(self.arrivals)


def replay(
    policy: Policy,
    arrivals: Sequence[Arrival],
    nodes: Sequence[ReplayNode],
    *,
    seed: int = 1,
    prior_output_tokens: int = 1024,
    observe_every_s: float = OBSERVE_EVERY_S,
    on_progress: Progress | None = None,
) -> ReplayResult:
    """Return what `policy` would have done with `arrivals` (in order of time) on `nodes`.

    One gate holds the whole quotas: with several gateways, each refuses a little earlier. All nodes have
    engines, or none. The same seed gives the same result. Raises InvalidInput for no or mixed nodes.
    """
    _check(arrivals, nodes, observe_every_s)
    return _Replay(policy, arrivals, nodes, seed, prior_output_tokens, observe_every_s).run(on_progress)


def assignment_of(policy: Policy, nodes: Sequence[ReplayNode], models: Sequence[str]) -> Assignment:
    """Return the assignment of a single gateway that holds every quota and every node whole."""
    shares = {
        name: TenantShare(
            tokens_per_minute=tenant.tokens_per_minute,
            burst_tokens=tenant.burst_tokens,
            max_in_flight_tokens=tenant.max_in_flight_tokens,
            max_concurrent_requests=tenant.max_concurrent_requests,
        )
        for name, tenant in policy.tenants.items()
    }
    targets = tuple(
        NodeTarget(
            name=node.name,
            pool="replay",
            base_url="http://replay.invalid:8000",
            models=node.models or tuple(models),
            price_class=node.price_class,
            kv_capacity_tokens=node.kv_capacity_tokens,
            max_num_seqs=node.max_num_seqs,
            honours_priority=node.honours_priority,
        )
        for node in nodes
        if not node.is_prefill_only
    )
    return Assignment(
        gateway="replay",
        epoch=1,
        generation=1,
        revision=1,
        policy=policy,
        shares=shares,
        kv_share_ratio=1.0,
        nodes=targets,
        credentials=(),
    )


def _check(arrivals: Sequence[Arrival], nodes: Sequence[ReplayNode], observe_every_s: float) -> None:
    if not nodes:
        raise InvalidInput("there are no nodes to replay on", field="nodes", hint="Give at least one")
    unknown = next((node.name for node in nodes if node.capacity_tokens is None), None)
    if unknown is not None:
        raise InvalidInput(
            f"the KV capacity of node {unknown} is not given", field="nodes", hint="Give kv_capacity_tokens"
        )
    if len({node.engine is None for node in nodes}) > 1:
        raise InvalidInput("some nodes have an engine and some a pace", field="nodes", hint="Choose one")
    if not 0 < observe_every_s <= 4:
        raise InvalidInput(
            f"nodes observed every {observe_every_s:g} s",
            field="observe_every_s",
            hint="Above 0, at most 4",
        )
    late = next((b for a, b in pairwise(arrivals) if b.at_s < a.at_s), None)
    if late is not None:
        raise InvalidInput(
            f"request {late.request.request_id} at {late.at_s:g} s stands behind a later one",
            field="arrivals",
            hint="Sort them by time",
        )


class _Replay:
    """One run: the gate, what stands behind it, and the records being filled."""

    def __init__(
        self,
        policy: Policy,
        arrivals: Sequence[Arrival],
        nodes: Sequence[ReplayNode],
        seed: int,
        prior_output_tokens: int,
        observe_every_s: float,
    ) -> None:
        count = len(arrivals)
        self.gate = Gate(random.Random(seed), prior_output_tokens=prior_output_tokens)
        self.arrivals = arrivals
        self.servers: Servers = PacedServers(nodes) if nodes[0].engine is None else EngineServers(nodes)
        self.observe_every_s = observe_every_s
        start_s = arrivals[0].at_s if count else 0.0
        models = sorted({arrival.request.model for arrival in arrivals}) or ["any"]
        self.gate.apply(assignment_of(policy, nodes, models), start_s)
        self.heard_at_s = -math.inf
        self.next_observe_s = start_s
        # Answers longer than what was reserved for them, and from when on they can be seen to be.
        self.longer: dict[int, tuple[Lease, float]] = {}
        self._observe(start_s)
        self.due_s = self.next_observe_s
        self.leases: dict[int, Lease] = {}
        self.waiting: dict[int, int] = {}  # ticket -> place of its arrival
        self.is_recalling = self.gate.recalls.is_on
        self.places: dict[int, int] = {}  # lease -> place of its arrival, where leases may be taken back
        self.waited_s: dict[int, float] = {}  # by place, before it was taken back
        nan = math.nan
        self.result = ReplayResult(
            arrivals, [None] * count, [None] * count, [nan] * count, [nan] * count, [nan] * count
        )
        self._priorities = {tier: policy.tiers[tier].engine_priority for tier in TIERS}
        self._tiers = {name: tenant.tier for name, tenant in policy.tenants.items()}
        self._default_tier = (
            None if policy.default_tenant is None else policy.tenants[policy.default_tenant].tier
        )

    def run(self, on_progress: Progress | None) -> ReplayResult:
        """Offer every arrival at its time, then let what waits and runs come to its end."""
        was_collecting = gc.isenabled()
        gc.disable()  # nothing here is part of a cycle, and looking for some takes a tenth of the time
        try:
            return self._run(on_progress)
        finally:
            if was_collecting:
                gc.enable()

    def _run(self, on_progress: Progress | None) -> ReplayResult:
        result, arrivals, waiting = self.result, self.arrivals, self.waiting
        offer, outcomes, tiers = self.gate.offer, result.outcomes, result.tiers
        own_tiers, default_tier = self._tiers, self._default_tier
        for place, arrival in enumerate(arrivals):
            now_s, request = arrival.at_s, arrival.request
            if self.due_s <= now_s:
                self._run_until(now_s)
            tiers[place] = request.tier or own_tiers.get(request.tenant, default_tier)
            if self.is_recalling:
                self._mark_begun(now_s)
            decision = offer(request, now_s)
            if self.is_recalling:
                self._take_back(now_s)
            if isinstance(decision, Dispatch):
                self._start(place, decision.node, decision.lease, now_s)
            elif isinstance(decision, Refused):
                outcomes[place] = decision.outcome
            else:
                waiting[decision.ticket.ticket_id] = place
            if waiting:
                self._poll_if_due(now_s)
            if on_progress is not None and place % PROGRESS_EVERY == PROGRESS_EVERY - 1:
                result.done = place + 1
                if not on_progress(place + 1, len(arrivals)):
                    return self._ended(now_s)
        result.done = len(arrivals)
        last_s = arrivals[-1].at_s if arrivals else 0.0
        return self._ended(self._run_until(_NEVER, last_s))

    def _poll_if_due(self, now_s: float) -> None:
        deadline_s = self.gate.next_deadline_s()
        if deadline_s is not None and deadline_s <= now_s:
            self._poll(now_s)
        self._set_due()

    def _set_due(self) -> None:
        """Work out when something happens next that is not an arrival."""
        next_s, observe_s = self.servers.next_s, self.next_observe_s
        due_s = next_s if next_s < observe_s else observe_s
        if self.waiting:  # only what waits has deadlines
            deadline_s = self.gate.next_deadline_s()
            if deadline_s is not None and deadline_s < due_s:
                due_s = deadline_s
        self.due_s = due_s

    def _run_until(self, until_s: float, now_s: float = 0.0) -> float:
        """Let everything happen that is due at or before `until_s`. Return the time of the last."""
        is_last, servers, waiting = until_s == _NEVER, self.servers, self.waiting
        while True:
            if waiting:
                self._set_due()
                due_s = self.due_s
            else:  # as `_set_due`, which would cost a call for each request
                next_s, observe_s = servers.next_s, self.next_observe_s
                self.due_s = due_s = next_s if next_s < observe_s else observe_s
            if due_s > until_s or (is_last and not self.leases and not waiting):
                return now_s
            now_s = due_s
            if servers.next_s <= now_s:
                if waiting or servers.has_news:
                    self._finish(now_s)
                else:  # nothing can start by what ends: all of them at once
                    observe_s = self.next_observe_s
                    now_s = self._finish(until_s if until_s < observe_s else observe_s)
            elif self.next_observe_s <= now_s:
                self._observe(now_s)
            if waiting:
                self._poll(now_s)

    def _observe(self, now_s: float) -> None:
        for place, (lease, from_s) in self.longer.items():
            if now_s < from_s:
                continue
            produced = self.servers.produced(place, now_s)
            if produced > lease.output_tokens:
                self.gate.extend(lease, produced, now_s)
        has_news = self.servers.has_news
        if has_news or now_s >= self.heard_at_s + HEARD_EVERY_S:
            self.gate.observe(self.servers.states(now_s), now_s)
            self.heard_at_s = now_s
        is_often = has_news or self.longer
        self.next_observe_s = now_s + self.observe_every_s if is_often else self.heard_at_s + HEARD_EVERY_S

    def _start(self, place: int, node: str, lease: Lease, now_s: float) -> None:
        arrival = self.arrivals[place]
        servers = self.servers
        queued_s = lease.queued_s
        if self.waited_s:
            queued_s += self.waited_s.pop(place, 0.0)
        self.result.queued_s[place] = queued_s
        if not servers.start(place, arrival, node, self._priorities[lease.ticket.tier], now_s):
            self.gate.release(
                lease, prompt_tokens=0, output_tokens=0, outcome=Outcome.UPSTREAM_ERROR, now_s=now_s
            )
            self.result.outcomes[place] = Outcome.UPSTREAM_ERROR
            return
        self.leases[place] = lease
        if self.is_recalling:
            self.places[lease.lease_id] = place
        if servers.next_s < self.due_s:
            self.due_s = servers.next_s
        if arrival.output_tokens > lease.output_tokens:
            self.longer[place] = lease, servers.produces_at_s(place, lease.output_tokens)
            self.next_observe_s = min(self.next_observe_s, now_s + self.observe_every_s)
            self.due_s = min(self.due_s, self.next_observe_s)

    def _mark_begun(self, now_s: float) -> None:
        """Tell the gate whose answer has begun: it takes back no such request."""
        recalls = self.gate.recalls
        listed = [lease for leases in recalls.by_node.values() for lease in leases.values()]
        for lease in listed:
            if self.servers.has_begun(self.places[lease.lease_id], now_s):
                recalls.began(lease)

    def _take_back(self, now_s: float) -> None:
        """Stop what the gate took back for an interactive request: it waits again."""
        for one in self.gate.recalls.requeued():
            place = self.places.pop(one.lease.lease_id)
            del self.leases[place]
            self.longer.pop(place, None)
            self.servers.abort(place, now_s)
            self.waited_s[place], self.result.queued_s[place] = self.result.queued_s[place], math.nan
            self.waiting[one.ticket.ticket_id] = place

    def _finish(self, until_s: float) -> float:
        """Close the leases of what ends by then, each at its end. Return the time of the last."""
        end_s = until_s
        result, release, arrivals = self.result, self.gate.release, self.arrivals
        longer, leases, outcomes = self.longer, self.leases, result.outcomes
        for end_s, place, first_s, is_answered in self.servers.finished(until_s):
            arrival, lease = arrivals[place], leases.pop(place)
            if self.is_recalling:
                self.places.pop(lease.lease_id, None)
            if longer:
                longer.pop(place, None)
            outcome, output_tokens = Outcome.UPSTREAM_ERROR, 0
            if is_answered:
                at_s, outcome, output_tokens = arrival.at_s, Outcome.COMPLETED, arrival.output_tokens
                result.output_tokens += output_tokens
                result.first_s[place] = first_s - at_s
                result.e2e_s[place] = end_s - at_s
            release(
                lease,
                prompt_tokens=arrival.request.prompt_tokens,
                output_tokens=output_tokens,
                outcome=outcome,
                now_s=end_s,
            )
            outcomes[place] = outcome
        return end_s

    def _poll(self, now_s: float) -> None:
        for event in self.gate.poll(now_s):
            place = self.waiting.pop(event.ticket.ticket_id)
            if isinstance(event, Started):
                self._start(place, event.node, event.lease, now_s)
            else:
                self.result.outcomes[place] = event.outcome

    def _ended(self, now_s: float) -> ReplayResult:
        result, work = self.result, self.servers.work()
        result.ended_at_s = now_s
        result.preemptions, result.gaps_s = work.preemptions, work.gaps_s
        return result
