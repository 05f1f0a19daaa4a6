"""Limits that only count, limits that are off, and what "would have refused" counts."""

from __future__ import annotations

from typing import Any

import pytest
from gate_world import Server, assignment, node, open_gate, request, tenant

from fleet.gate import Decision, Dispatch, Evicted, Lease, Queued, Refused
from fleet.limiters import Limiter, Limiters, Mode
from fleet.outcomes import TIERS, Outcome, Tier


def offered(server: Server, count: int, **changes: Any) -> list[Decision]:
    """Offer `count` requests of 1,000 tokens now."""
    return [server.offer(request(number, **changes)) for number in range(count)]


def admitted(decisions: list[Decision]) -> list[bool]:
    return [not isinstance(one, Refused) for one in decisions]


def flagged(decisions: list[Decision]) -> list[tuple[str, ...]]:
    """Return what each admitted request would have been refused by."""
    found: list[tuple[str, ...]] = []
    for one in decisions:
        assert not isinstance(one, Refused)
        held = one.lease if isinstance(one, Dispatch) else one.ticket
        found.append(tuple(held.would_refuse))
    return found


QUOTAS = {
    # each lets exactly three requests of 1,000 tokens in
    "tokens_per_minute": {"tokens_per_minute": 60, "burst_tokens": 3_000},
    "in_flight_tokens": {"max_in_flight_tokens": 3_000},
    "concurrent_requests": {"max_concurrent_requests": 3},
}


@pytest.mark.parametrize("name", QUOTAS)
def test_a_quota_in_shadow_flags_exactly_what_it_would_refuse(name: str):
    enforced = Server(open_gate(assignment({"acme": tenant(**QUOTAS[name])})))
    shadowed = Server(open_gate(assignment({"acme": tenant(**QUOTAS[name])}, limiters={name: "shadow"})))
    want = admitted(offered(enforced, 8))
    got = offered(shadowed, 8)
    assert want == [True] * 3 + [False] * 5
    assert flagged(got) == [() if let_in else (name,) for let_in in want]
    # ... and goes on doing so when half a minute of quota and one finished request came back
    for server in (enforced, shadowed):
        server.step(30.0)  # ends the oldest: one of the three in both worlds
    want = admitted(offered(enforced, 3))
    got = offered(shadowed, 3)
    assert flagged(got) == [() if let_in else (name,) for let_in in want]


@pytest.mark.parametrize("name", QUOTAS)
def test_a_quota_switched_off_neither_refuses_nor_flags(name: str):
    server = Server(open_gate(assignment({"acme": tenant(**QUOTAS[name])}, limiters={name: "off"})))
    assert flagged(offered(server, 8)) == [()] * 8


def test_an_enforced_limit_refuses_beside_one_in_shadow_and_the_refused_is_not_counted():
    quota = tenant(max_concurrent_requests=2, max_in_flight_tokens=4_000)
    server = Server(open_gate(assignment({"acme": quota}, limiters={"concurrent_requests": "shadow"})))
    decisions = offered(server, 6)
    assert admitted(decisions) == [True] * 4 + [False] * 2
    last = decisions[-1]
    assert isinstance(last, Refused)
    assert last.outcome is Outcome.REJECTED_QUOTA_TOKENS


def test_what_a_shadowed_rate_lets_through_leaves_the_bucket_as_enforcing_would():
    quota = tenant(tokens_per_minute=600, burst_tokens=3_000)
    server = Server(open_gate(assignment({"acme": quota}, limiters={"tokens_per_minute": "shadow"})))
    offered(server, 50)
    assert server.gate.snapshot(0.0).tenants["acme"].rate_tokens_left == 0
    for lease in list(server.running):
        used = {"prompt_tokens": 100, "output_tokens": 5_000}  # far more than booked
        server.gate.release(lease, **used, outcome=Outcome.COMPLETED, now_s=0.0)
    # the three that count used 5,100 each: 3 * 4,100 more than charged
    assert server.gate.snapshot(0.0).tenants["acme"].rate_tokens_left == -3 * 4_100
    server.running.clear()
    assert server.gate.snapshot(0.0).tenants["acme"].tokens == 0


def test_ghosts_count_again_when_the_limit_is_enforced():
    quota = {"acme": tenant(max_concurrent_requests=3)}
    server = Server(open_gate(assignment(quota, limiters={"concurrent_requests": "shadow"})))
    offered(server, 8)
    server.gate.apply(assignment(quota, generation=2), 0.0)
    assert admitted(offered(server, 1)) == [False]  # 8 run: over by 5, and nothing was killed
    assert server.gate.snapshot(0.0).in_flight_requests == 8


def test_a_spent_budget_in_shadow_keeps_the_tier_and_flags_it():
    quota = {"acme": tenant(over_budget="downgrade", monthly_budget_usd="1.00")}
    for mode, tier, flags in (
        ("enforce", Tier.BEST_EFFORT, ()),
        ("shadow", Tier.INTERACTIVE, (Limiter.MONTHLY_BUDGET,)),
        ("off", Tier.INTERACTIVE, ()),
    ):
        made = assignment(quota, over_budget=("acme",), limiters={"monthly_budget": mode})
        decision = open_gate(made).offer(request(), 0.0)
        assert isinstance(decision, Dispatch)
        assert (decision.lease.tier, decision.lease.would_refuse) == (tier, flags)


def full(**parts: Any) -> Server:
    """Return a gate whose node of 85,000 tokens is full."""
    server = Server(open_gate(assignment(tiers={"interactive": {"max_queued_requests": 2}}, **parts)))
    offered(server, 85)
    return server


def test_a_queue_in_shadow_takes_all_and_flags_those_beyond_its_bound():
    server = full(limiters={"queue_length": "shadow"})
    assert flagged(offered(server, 4)) == [(), (), ("queue_length",), ("queue_length",)]


def test_node_room_in_shadow_starts_what_would_have_waited_and_books_it():
    server = full(limiters={"node_room": "shadow"})
    decisions = offered(server, 5)
    assert all(isinstance(one, Dispatch) for one in decisions)
    assert flagged(decisions) == [("node_room",)] * 5
    assert server.gate.snapshot(0.0).nodes["n1"].tokens == 90_000
    for lease in server.running:
        server.gate.release(lease, prompt_tokens=0, output_tokens=0, outcome=Outcome.COMPLETED, now_s=0.0)
    assert server.gate.snapshot(0.0).nodes["n1"].tokens == 0
    server.running.clear()
    assert flagged(offered(server, 1)) == [()]


def test_what_no_node_could_hold_is_refused_whatever_is_switched_off():
    every = {limiter.value: "off" for limiter in Limiter}
    refused = open_gate(assignment(limiters=every)).offer(request(prompt_tokens=90_000), 0.0)
    assert isinstance(refused, Refused)
    assert refused.outcome is Outcome.REJECTED_TOO_LARGE


def test_expected_wait_in_shadow_queues_what_it_would_refuse_at_the_door():
    flags: set[tuple[str, ...]] = set()
    outcomes: set[Outcome] = set()
    for mode in ("enforce", "shadow"):
        made = assignment(tiers={"interactive": {"queue_timeout_s": 5}}, limiters={"expected_wait": mode})
        server = Server(open_gate(made))
        offered(server, 85)
        for _ in range(300):  # offered 2 for each that ends, 10 a second: 5 s of queue are 50 requests
            for decision in offered(server, 2):
                if isinstance(decision, Refused):
                    outcomes.add(decision.outcome)
                elif mode == "shadow" and isinstance(decision, Queued):
                    flags.add(tuple(decision.ticket.would_refuse))
            server.step(0.1)
    assert outcomes == {Outcome.REJECTED_TOO_LATE}
    assert ("expected_wait",) in flags


@pytest.mark.parametrize(
    ("bounds", "name"),
    [({"max_waiting_requests": 4}, "queued_requests"), ({"max_waiting_tokens": 4_500}, "queued_tokens")],
)
def test_all_queues_together_are_bounded_with_a_reason(bounds: dict[str, int], name: str):
    server = Server(open_gate(assignment(admission=bounds)))
    offered(server, 85)
    for tier in (Tier.BATCH, Tier.BEST_EFFORT, Tier.BATCH, Tier.BEST_EFFORT):
        assert isinstance(server.offer(request(tier=tier)), Queued)
    refused = server.offer(request(tier=Tier.BATCH))
    assert isinstance(refused, Refused)
    assert refused.outcome is Outcome.REJECTED_QUEUE_FULL
    assert refused.limit is not None
    assert refused.limit.name == name
    assert "all tiers" in refused.reason


def test_an_interactive_request_displaces_only_as_much_as_it_needs_and_only_if_that_is_enough():
    server = Server(open_gate(assignment(admission={"max_waiting_tokens": 4_500})))
    offered(server, 85)
    queued = [server.offer(request(n, tier=Tier.BATCH)) for n in range(4)]
    assert isinstance(server.offer(request(9, prompt_tokens=1_600)), Queued)  # 2,500 tokens: two leave
    gone = [event.ticket for event in server.poll() if isinstance(event, Evicted)]
    assert gone == [one.ticket for one in (queued[3], queued[2]) if isinstance(one, Queued)]
    refused = server.offer(request(10, prompt_tokens=4_000))  # 4,900: more than the bound
    assert isinstance(refused, Refused)
    assert not [event for event in server.poll() if isinstance(event, Evicted)]


def test_several_answers_in_one_call_are_booked_as_so_many():
    gate = open_gate(assignment(nodes=[node("n1")]), prior_output_tokens=500)
    lease = started(gate.offer(request(max_tokens=None, choices=4), 0.0))
    assert lease.output_tokens == 2_000
    # the client's bound is over all of them
    assert started(gate.offer(request(max_tokens=1_200, choices=4), 0.0)).output_tokens == 1_200


def test_a_missing_max_tokens_never_books_more_than_half_a_node():
    # 85,000 of budget: at most 42,500, whatever history says and however many answers are asked for
    gate = open_gate(prior_output_tokens=70_000)
    assert started(gate.offer(request(max_tokens=None), 0.0)).output_tokens == 42_500
    gate = open_gate(prior_output_tokens=1_000)
    assert started(gate.offer(request(max_tokens=None, choices=128), 0.0)).output_tokens == 42_500


def test_history_is_learned_for_each_answer():
    # 200 calls for four answers of 100 tokens each: p95 of one answer is 100, at most 1 % high
    gate = open_gate()
    for number in range(200):
        lease = started(gate.offer(request(number, choices=4), 0.0))
        gate.release(lease, prompt_tokens=100, output_tokens=400, outcome=Outcome.COMPLETED, now_s=0.0)
    assert 100 <= started(gate.offer(request(max_tokens=None), 0.0)).output_tokens <= 101
    assert 400 <= started(gate.offer(request(max_tokens=None, choices=4), 0.0)).output_tokens <= 404


def started(decision: Decision) -> Lease:
    assert isinstance(decision, Dispatch)
    return decision.lease


def test_every_limiter_has_a_switch_and_every_switch_a_limiter():
    assert set(Limiters.model_fields) == {limiter.value for limiter in Limiter}
    assert Limiters().all_enforced
    for limiter in Limiter:
        one_off = Limiters.model_validate({limiter.value: Mode.OFF})
        assert not one_off.all_enforced
        assert one_off.mode(limiter) is Mode.OFF


def test_a_push_that_changes_switches_moves_nobody_in_the_queue():
    server = full()
    waiting = [one for one in offered(server, 2) if isinstance(one, Queued)]
    before = server.gate.snapshot(0.0)
    made = assignment(tiers={"interactive": {"max_queued_requests": 2}}, generation=2)
    for mode in Mode:
        limiters = {limiter.value: mode.value for limiter in Limiter}
        policy = made.policy.model_copy(update={"limiters": Limiters.model_validate(limiters)})
        server.gate.apply(made.model_copy(update={"policy": policy}), 0.0)
        after = server.gate.snapshot(0.0)
        assert (after.queues, after.tenants, after.nodes) == (before.queues, before.tenants, before.nodes)
    assert all(one.ticket.is_waiting for one in waiting)
    assert sum(after.queues[tier].requests for tier in TIERS) == 2
