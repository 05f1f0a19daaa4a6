"""The gate against a model that only adds and subtracts, under any order of events.

Held at every step: in-flight is the sum of live leases, by node, tenant and tier; no node holds more than
its budget; each offer ends in exactly one outcome; nothing waits beyond its tier's timeout; and a push
changes no level, lease or place.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from gate_world import assignment, node, request, state, tenant
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fleet.gate import Dispatch, Evicted, Gate, Lease, Queued, Refused, Started, Ticket
from fleet.messages import Assignment
from fleet.outcomes import SHED, TIERS, Outcome, Tier

TENANTS = ("a", "b", "c")
TIMEOUT_S = {Tier.INTERACTIVE: 1.5, Tier.BATCH: 6.0, Tier.BEST_EFFORT: 8.0}
CAPACITY = 20_000
BUDGET = int(CAPACITY * 0.85)
LONG_BUDGET = int(BUDGET * 0.5)


def made(
    generation: int, *, weights: tuple[int, int, int], burst: int, order: str, names: tuple[str, ...]
) -> Assignment:
    """Return an assignment with small limits, so that every limit is met often."""
    limits = tenant(
        tokens_per_minute=600_000,
        burst_tokens=burst,
        max_in_flight_tokens=30_000,
        max_concurrent_requests=25,
    )
    tiers = {
        tier.value: {"queue_timeout_s": TIMEOUT_S[tier], "max_queued_requests": 12, "weight": weight}
        for tier, weight in zip(TIERS, weights, strict=True)
    }
    classes = [{"name": "long", "max_tokens": 100_000, "kv_share_ratio": 0.5}]
    classes.append({"name": "short", "max_tokens": 2_000, "kv_share_ratio": 1.0})
    return assignment(
        {name: limits | {"weight": place + 1} for place, name in enumerate(TENANTS)},
        nodes=[node(name, models=["llama", "adapter"]) for name in names],
        tiers=tiers,
        generation=generation,
        admission={"order": order, "size_classes": classes},
    )


class GateMachine(RuleBasedStateMachine):
    """Any order of offers, endings, departures, polls, readings and pushes."""

    @initialize(seed=st.integers(0, 10**6))
    def begin(self, seed: int) -> None:
        self.gate = Gate(random.Random(seed), prior_output_tokens=400, max_queued_requests=25)
        self.now_s = 100.0
        self.polled_s = 100.0
        self.number = 0
        self.live: dict[int, Lease] = {}
        self.booked: dict[int, int] = {}
        self.waiting: dict[int, Ticket] = {}
        self.outcomes: dict[str, Outcome | str] = {}
        self.offered: set[str] = set()
        self.names: tuple[str, ...] = ("n1", "n2")
        self.generation = 1
        self.gate.apply(self._assignment((70, 25, 5), 50_000, "sjf_aging"), self.now_s)
        self._observe()

    def _assignment(self, weights: tuple[int, int, int], burst: int, order: str) -> Assignment:
        return made(self.generation, weights=weights, burst=burst, order=order, names=self.names)

    def _observe(self) -> None:
        self.gate.observe(
            [state(name, self.now_s, kv_capacity_tokens=CAPACITY) for name in self.names], self.now_s
        )
        self._poll()

    def _end(self, request_id: str, outcome: Outcome | str) -> None:
        assert request_id in self.offered
        assert request_id not in self.outcomes, "an offer ended twice"
        self.outcomes[request_id] = outcome

    def _open(self, lease: Lease) -> None:
        assert lease.lease_id not in self.live
        self.live[lease.lease_id] = lease
        self.booked[lease.lease_id] = lease.tokens

    def _poll(self) -> None:
        for event in self.gate.poll(self.now_s):
            ticket = self.waiting.pop(event.ticket.ticket_id)
            timeout_s = TIMEOUT_S[ticket.tier]
            if isinstance(event, Started):
                assert event.lease.queued_s < timeout_s
                self._open(event.lease)
            else:
                assert isinstance(event, Evicted)
                assert event.outcome in SHED
                if event.outcome is Outcome.EVICTED_WAIT:
                    assert self.now_s >= ticket.deadline_s
                self._end(ticket.request.request_id, event.outcome)
        self.polled_s = self.now_s

    @rule(
        name=st.sampled_from((*TENANTS, "stranger")),
        tier=st.sampled_from((None, *TIERS)),
        prompt_tokens=st.sampled_from((0, 50, 700, 3_000, 9_000, 16_900, 30_000)),
        max_tokens=st.sampled_from((None, 0, 100, 1_500)),
        model=st.sampled_from(("llama", "adapter", "absent")),
    )
    def offer(
        self, name: str, tier: Tier | None, prompt_tokens: int, max_tokens: int | None, model: str
    ) -> None:
        self.number += 1
        asked = request(
            self.number,
            tenant=name,
            tier=tier,
            model=model,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
        )
        self.offered.add(asked.request_id)
        before = self.gate.snapshot(self.now_s)
        decision = self.gate.offer(asked, self.now_s)
        match decision:
            case Dispatch(node=_, lease=lease):
                self._open(lease)
            case Queued(ticket=ticket):
                self.waiting[ticket.ticket_id] = ticket
            case Refused(outcome=outcome):
                assert outcome in SHED
                assert (decision.retry_after_s is None) == (
                    outcome in {Outcome.REJECTED_TOO_LARGE, Outcome.REJECTED_TIER}
                )
                self._end(asked.request_id, outcome)
                after = self.gate.snapshot(self.now_s)
                assert (after.tenants, after.nodes) == (before.tenants, before.nodes)

    @precondition(lambda self: self.live)
    @rule(
        data=st.data(),
        used=st.sampled_from((None, 0, 120, 4_000)),
        outcome=st.sampled_from((Outcome.COMPLETED, Outcome.CLIENT_GONE, Outcome.UPSTREAM_ERROR)),
    )
    def release(self, data: st.DataObject, used: int | None, outcome: Outcome) -> None:
        lease = self.live.pop(data.draw(st.sampled_from(sorted(self.live))))
        usage = {"prompt_tokens": lease.prompt_tokens, "output_tokens": used, "outcome": outcome}
        assert self.gate.release(lease, **usage, now_s=self.now_s)
        assert not self.gate.release(lease, **usage, now_s=self.now_s)
        del self.booked[lease.lease_id]
        self._end(lease.request.request_id, outcome)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), output_tokens=st.sampled_from((1, 500, 2_000)))
    def stream(self, data: st.DataObject, output_tokens: int) -> None:
        lease = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        self.gate.extend(lease, output_tokens, self.now_s)
        assert lease.output_tokens >= output_tokens

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        ticket = self.waiting[data.draw(st.sampled_from(sorted(self.waiting)))]
        if self.gate.cancel(ticket, self.now_s):
            del self.waiting[ticket.ticket_id]
            self._end(ticket.request.request_id, Outcome.CLIENT_GONE)
        assert not self.gate.cancel(ticket, self.now_s)

    @rule()
    def poll(self) -> None:
        self._poll()

    @rule(seconds=st.sampled_from((0.01, 0.4, 2.0)))
    def wait(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while (due_s := self.gate.next_deadline_s()) is not None and due_s <= until_s:
            self.now_s = max(self.now_s, due_s)
            self._poll()
        self.now_s = until_s

    @rule()
    def observe(self) -> None:
        self._observe()

    @rule(
        weights=st.sampled_from(((70, 25, 5), (34, 33, 33), (98, 1, 1))),
        burst=st.sampled_from((50_000, 5_000)),
        order=st.sampled_from(("sjf_aging", "fifo")),
        names=st.sampled_from((("n1", "n2"), ("n2",), ("n1", "n2", "n3"))),
    )
    def push(self, weights: tuple[int, int, int], burst: int, order: str, names: tuple[str, ...]) -> None:
        before = self.gate.snapshot(self.now_s)
        self.generation += 1
        self.names = names
        self.gate.apply(self._assignment(weights, burst, order), self.now_s)
        after = self.gate.snapshot(self.now_s)
        assert after.queues == before.queues
        assert after.in_flight_tokens_by_tier == before.in_flight_tokens_by_tier
        for name, use in after.tenants.items():
            had = before.tenants[name]
            assert (use.requests, use.tokens) == (had.requests, had.tokens)
            assert use.rate_tokens_left == min(had.rate_tokens_left, burst)
        self._observe()

    @invariant()
    def in_flight_is_the_sum_of_live_leases(self) -> None:
        snapshot = self.gate.snapshot(self.now_s)
        by_node: Counter[str] = Counter()
        by_tier: Counter[Tier] = Counter()
        held: Counter[str] = Counter()
        for lease in self.live.values():
            by_node[lease.node] += lease.tokens
            by_tier[lease.tier] += lease.tokens
            held[lease.account] += lease.tokens
        unasked = {t.ticket_id for t in self.waiting.values() if t.is_waiting}
        for number in unasked:
            held[self.waiting[number].account] += self.waiting[number].tokens
        assert snapshot.in_flight_requests == len(self.live)
        assert {name: use.tokens for name, use in snapshot.nodes.items() if use.tokens} == dict(+by_node)
        assert {tier: n for tier, n in snapshot.in_flight_tokens_by_tier.items() if n} == dict(+by_tier)
        assert {name: use.tokens for name, use in snapshot.tenants.items() if use.tokens} == dict(+held)
        assert sum(queue.requests for queue in snapshot.queues.values()) == len(unasked)

    @invariant()
    def no_node_was_ever_booked_beyond_its_budget(self) -> None:
        booked: Counter[str] = Counter()
        long: Counter[str] = Counter()
        for number, lease in self.live.items():
            booked[lease.node] += self.booked[number]
            if lease.size_class == "long":
                long[lease.node] += self.booked[number]
        assert all(tokens <= BUDGET for tokens in booked.values())
        assert all(tokens <= LONG_BUDGET for tokens in long.values())

    @invariant()
    def nothing_waits_beyond_its_deadline(self) -> None:
        assert all(
            ticket.deadline_s > self.polled_s for ticket in self.waiting.values() if ticket.is_waiting
        )

    def teardown(self) -> None:
        if not hasattr(self, "gate"):
            return
        for lease in list(self.live.values()):
            self.gate.release(
                lease, prompt_tokens=0, output_tokens=0, outcome=Outcome.UPSTREAM_ERROR, now_s=self.now_s
            )
            self._end(lease.request.request_id, Outcome.UPSTREAM_ERROR)
        self.live.clear()
        self.booked.clear()
        for ticket in list(self.waiting.values()):
            if self.gate.cancel(ticket, self.now_s):
                del self.waiting[ticket.ticket_id]
                self._end(ticket.request.request_id, Outcome.CLIENT_GONE)
        self._poll()
        assert self.outcomes.keys() == self.offered
        snapshot = self.gate.snapshot(self.now_s)
        assert (snapshot.in_flight_requests, snapshot.in_flight_tokens) == (0, 0)
        assert all(use.requests == use.tokens == 0 for use in snapshot.tenants.values())
        assert self.gate.next_deadline_s() is None


TestGateMachine = pytest.mark.slow(GateMachine.TestCase)
#: 400 runs of up to 60 steps: 24,000 steps.
TestGateMachine.settings = settings(max_examples=400, stateful_step_count=60, deadline=None)
