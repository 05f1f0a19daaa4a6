"""The gate against a model that only adds and subtracts, under any order of events.

Held at every step: the invariants of `gate_oracles`, and each offer ends in exactly one outcome.
"""

from __future__ import annotations

import random

import gate_oracles as oracles
import pytest
from gate_world import assignment, node, request, state, tenant
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fleet.gate import Decision, Dispatch, Evicted, Gate, Lease, Queued, Refused, Started, Ticket
from fleet.messages import Assignment
from fleet.outcomes import SHED, TIERS, Outcome, Tier

TENANTS = ("a", "b", "c")
MODELS = ("llama", "adapter")
TIMEOUT_S = {Tier.INTERACTIVE: 1.5, Tier.BATCH: 6.0, Tier.BEST_EFFORT: 8.0}
CAPACITY = 20_000
BUDGET = int(CAPACITY * 0.85)
LONG_BUDGET = int(BUDGET * 0.5)
WAITING_REQUESTS, WAITING_TOKENS = 25, 60_000
MOST_REQUEUES = 2


def made(
    generation: int,
    *,
    weights: tuple[int, int, int],
    burst: int,
    order: str,
    names: tuple[str, ...],
    quotas: str,
    requeues: int = 0,
    models: tuple[str, ...] = MODELS,
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
    tiers["batch"]["max_requeues"] = requeues
    classes = [{"name": "long", "max_tokens": 100_000, "kv_share_ratio": 0.5}]
    classes.append({"name": "short", "max_tokens": 2_000, "kv_share_ratio": 1.0})
    return assignment(
        {name: limits | {"weight": place + 1} for place, name in enumerate(TENANTS)},
        nodes=[node(name, models=list(models)) for name in names],
        tiers=tiers,
        generation=generation,
        admission={"order": order, "size_classes": classes, "max_waiting_tokens": WAITING_TOKENS},
        limiters=dict.fromkeys(("tokens_per_minute", "in_flight_tokens", "concurrent_requests"), quotas),
    )


class GateMachine(RuleBasedStateMachine):
    """Any order of offers, endings, departures, polls, readings and pushes."""

    gate_type = Gate
    steps = 0  # of all runs together

    @initialize(seed=st.integers(0, 10**6))
    def begin(self, seed: int) -> None:
        self.gate = self.gate_type(
            random.Random(seed), prior_output_tokens=400, max_queued_requests=WAITING_REQUESTS
        )
        self.now_s = 100.0
        self.polled_s = 100.0
        self.number = 0
        self.live: dict[int, Lease] = {}
        self.booked: dict[int, int] = {}
        self.waiting: dict[int, Ticket] = {}
        self.passed: dict[int, int] = {}  # tokens that started past who was next and did not fit
        self.begun: set[int] = set()
        self.outcomes: dict[str, Outcome | str] = {}
        self.offered: set[str] = set()
        self.names: tuple[str, ...] = ("n1", "n2")
        self.generation = 1
        self.requeues = 0
        self.models = MODELS
        self.seen_at_s: dict[str, float] = {}
        refused = self.gate.offer(request(0, tenant="a"), self.now_s)
        assert isinstance(refused, Refused), "admitted before there was a policy"
        assert refused.outcome is Outcome.NO_NODES
        self.gate.apply(self._assignment((70, 25, 5), 50_000, "sjf_aging", "enforce"), self.now_s)
        self._observe()
        for number in range(21):  # 1,500 of 17,000 each: both nodes full but for a gap
            self.offer(TENANTS[number % 3], Tier.BATCH, 1_400, 100, "llama")
        assert self.gate.snapshot(self.now_s).in_flight_requests == 21

    def _assignment(self, weights: tuple[int, int, int], burst: int, order: str, quotas: str) -> Assignment:
        return made(
            self.generation,
            weights=weights,
            burst=burst,
            order=order,
            names=self.names,
            quotas=quotas,
            requeues=self.requeues,
            models=self.models,
        )

    def _observe(self) -> None:
        self.gate.observe(
            [state(name, self.now_s, kv_capacity_tokens=CAPACITY) for name in self.names], self.now_s
        )
        self.seen_at_s |= dict.fromkeys(self.names, self.now_s)
        self._poll()

    def _end(self, request_id: str, outcome: Outcome | str) -> None:
        assert request_id in self.offered
        assert request_id not in self.outcomes, "an offer ended twice"
        self.outcomes[request_id] = outcome

    def _open(self, lease: Lease) -> None:
        assert lease.lease_id not in self.live
        oracles.g3_nothing_waits_beyond_its_tiers_timeout(lease, TIMEOUT_S[lease.tier])
        oracles.g7_nothing_starts_on_a_node_not_heard_of(lease, self.seen_at_s)
        self.live[lease.lease_id] = lease
        self.booked[lease.lease_id] = lease.tokens

    def _parked(self) -> list[Ticket]:
        """Return who is known to be next and not to fit, before the gate is asked again."""
        return [ticket for ticket in self.waiting.values() if ticket.is_waiting and ticket.is_parked]

    def _could_use(self, ticket: Ticket, node: str) -> bool:
        """Say whether a request waits for a node's room, and not for its own size class's part of it."""
        in_class = sum(
            lease.tokens
            for lease in self.live.values()
            if (lease.node, lease.size_class) == (node, ticket.size_class)
        )
        return ticket.size_class != "long" or in_class + ticket.tokens <= LONG_BUDGET

    def _count_passing(self, parked: list[Ticket], lease: Lease) -> None:
        """Count a start against those it went past. Who was next before them does not pass them."""
        started = lease.ticket
        assert started is not None
        for ticket in parked:
            was_before = started.is_parked and started.ticket_id < ticket.ticket_id
            is_other = ticket.ticket_id != started.ticket_id and ticket.tier is lease.tier
            if is_other and not was_before and self._could_use(ticket, lease.node):
                self.passed[ticket.ticket_id] = self.passed.get(ticket.ticket_id, 0) + started.tokens
                oracles.g4_who_is_next_is_passed_by_no_more_than_its_own_size(
                    ticket, self.passed[ticket.ticket_id]
                )

    def _poll(self, parked: list[Ticket] | None = None) -> None:
        """Take in what the gate decided; `parked` before it did, where that was in an earlier call."""
        parked = self._parked() if parked is None else parked
        for event in self.gate.poll(self.now_s):
            ticket = self.waiting.pop(event.ticket.ticket_id)
            parked = [one for one in parked if one is not ticket]
            if isinstance(event, Started):
                self._count_passing(parked, event.lease)
                self._open(event.lease)
            else:
                assert isinstance(event, Evicted)
                assert event.outcome in SHED
                if event.outcome is Outcome.EVICTED_WAIT:
                    assert self.now_s >= ticket.deadline_s
                if event.outcome is Outcome.NO_NODES and self.now_s < ticket.deadline_s:
                    assert ticket.request.model not in self.models
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
        parked = self._parked()
        decision = self.gate.offer(asked, self.now_s)
        self._take_back(decision)
        match decision:
            case Dispatch(node=_, lease=lease):
                # Who was next and started within the same call may have started before it.
                self._count_passing([one for one in parked if one.is_waiting], lease)
                self._open(lease)
            case Queued(ticket=ticket):
                self.waiting[ticket.ticket_id] = ticket
                snapshot = self.gate.snapshot(self.now_s)
                oracles.g9_the_queue_keeps_its_bounds(snapshot, WAITING_REQUESTS, WAITING_TOKENS)
            case Refused(outcome=outcome):
                assert outcome in SHED
                assert (decision.retry_after_s is None) == (
                    outcome in {Outcome.REJECTED_TOO_LARGE, Outcome.REJECTED_TIER}
                )
                self._end(asked.request_id, outcome)
                after = self.gate.snapshot(self.now_s)
                oracles.g6_a_refusal_used_up_nothing(before, after)
        due_s = self.gate.next_deadline_s()
        if due_s is not None and due_s <= self.now_s:  # it started or displaced others
            self._poll(parked)

    def _take_back(self, decision: Decision) -> None:
        """Only an interactive request that starts takes others back, and only what may be."""
        for one in self.gate.recalls.requeued():
            assert isinstance(decision, Dispatch)
            assert decision.lease.tier is Tier.INTERACTIVE
            assert decision.node == one.lease.node
            assert one.lease.tier is Tier.BATCH
            assert one.lease.lease_id not in self.begun
            assert 1 <= one.ticket.requeues <= MOST_REQUEUES
            assert self.live.pop(one.lease.lease_id) is one.lease
            del self.booked[one.lease.lease_id]
            self.waiting[one.ticket.ticket_id] = one.ticket
            usage = {"prompt_tokens": 0, "output_tokens": 0, "outcome": Outcome.CLIENT_GONE}
            assert not self.gate.release(one.lease, **usage, now_s=self.now_s)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def begin_to_answer(self, data: st.DataObject) -> None:
        lease = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        self.gate.recalls.began(lease)
        self.begun.add(lease.lease_id)

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

    @precondition(lambda self: len(self.live) >= 3)
    @rule(
        name=st.sampled_from(TENANTS),
        tier=st.sampled_from(TIERS),
        large_tokens=st.sampled_from((None, 2_900, 9_000)),
    )
    def churn(self, name: str, tier: Tier, large_tokens: int | None) -> None:
        """End leases one by one while small requests come: who is next and large must not starve."""
        self._observe()
        if large_tokens is not None:
            other = TENANTS[(TENANTS.index(name) + 1) % len(TENANTS)]
            self.offer(other, tier, large_tokens, 100, "llama")
        for _ in range(12):
            self.now_s += 0.02
            for _ in range(2):
                self.offer(name, tier, 600, 100, "llama")
            self._poll()
            if self.live:
                oldest = self.live.pop(min(self.live))
                self.gate.release(
                    oldest, prompt_tokens=0, output_tokens=0, outcome=Outcome.CLIENT_GONE, now_s=self.now_s
                )
                del self.booked[oldest.lease_id]
                self._end(oldest.request.request_id, Outcome.CLIENT_GONE)
                self._poll()

    @precondition(lambda self: len(self.live) >= 15)
    @rule(prompt_tokens=st.sampled_from((1_400, 4_000)))
    def flood(self, prompt_tokens: int) -> None:
        """More come in every tier than the queues may hold, in number or in tokens."""
        for number in range(30):
            self.offer(TENANTS[number % 3], TIERS[number // 10], prompt_tokens, 100, "llama")

    @precondition(lambda self: self.live)
    @rule(data=st.data(), output_tokens=st.sampled_from((1, 500, 2_000)))
    def stream(self, data: st.DataObject, output_tokens: int) -> None:
        lease = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        self.gate.recalls.began(lease)
        self.begun.add(lease.lease_id)
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
        quotas=st.sampled_from(("enforce", "enforce", "shadow", "off")),
        requeues=st.sampled_from((0, 1, MOST_REQUEUES)),
        models=st.sampled_from((MODELS, MODELS, ("llama",))),
    )
    def push(
        self,
        weights: tuple[int, int, int],
        burst: int,
        order: str,
        names: tuple[str, ...],
        quotas: str,
        requeues: int,
        models: tuple[str, ...],
    ) -> None:
        self.requeues, self.models = requeues, models
        before = self.gate.snapshot(self.now_s)
        self.generation += 1
        self.names = names
        waiting = [ticket for ticket in self.waiting.values() if ticket.is_waiting]
        stranded = [ticket for ticket in waiting if ticket.request.model not in models]
        self.gate.apply(self._assignment(weights, burst, order, quotas), self.now_s)
        oracles.g5_a_push_moves_nothing(before, self.gate.snapshot(self.now_s), burst, stranded)
        self._observe()
        oracles.g10_nothing_waits_for_what_no_listed_node_serves(self.waiting.values(), set(models))

    @invariant()
    def a_step_is_counted(self) -> None:
        type(self).steps += 1

    @invariant()
    def in_flight_is_the_sum_of_live_leases(self) -> None:
        waiting = [ticket for ticket in self.waiting.values() if ticket.is_waiting]
        snapshot = self.gate.snapshot(self.now_s)
        oracles.g1_in_flight_is_the_sum_of_live_leases(snapshot, self.live.values(), waiting)
        oracles.g8_ghosts_are_those_a_shadowed_quota_let_through(
            self.gate.accounts, self.live.values(), waiting
        )

    @invariant()
    def no_node_was_ever_booked_beyond_its_budget(self) -> None:
        budgets = {None: BUDGET, "long": LONG_BUDGET}
        oracles.g2_no_node_is_booked_beyond_its_budget(self.booked, self.live, budgets)

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


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_twenty_thousand_steps_of_any_order_of_events(part: int) -> None:
    GateMachine.steps = 0
    runs = settings(max_examples=110, stateful_step_count=60, deadline=None)
    run_state_machine_as_test(GateMachine, settings=runs)
    print(f"part {part}: {GateMachine.steps} steps")
    assert GateMachine.steps >= 5_000  # in each of four parts
