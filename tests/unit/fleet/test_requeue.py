"""Started batch requests go back to the queue for interactive ones, by the policy's leave only."""

from __future__ import annotations

import random
from typing import Any

import pytest
from gate_world import assignment, node, open_gate, request, state, tenant

from fleet.errors import InvalidPolicy
from fleet.gate import Dispatch, Gate, Lease, Queued, Started
from fleet.outcomes import Outcome, Tier
from fleet.policy import default_policy, parse

#: One node of 85,000 tokens: 85 requests of 1,000.
FULL = 85


def gate_of(max_requeues: int = 2, **parts: Any) -> Gate:
    return open_gate(assignment(tiers={"batch": {"max_requeues": max_requeues}}, **parts))


def fill(gate: Gate, count: int = FULL, *, tier: Tier = Tier.BATCH, first: int = 0) -> list[Lease]:
    """Start `count` requests, 10 ms apart."""
    leases: list[Lease] = []
    for number in range(first, first + count):
        decision = gate.offer(request(number, tier=tier), number / 100)
        assert isinstance(decision, Dispatch)
        leases.append(decision.lease)
    return leases


def see(gate: Gate, now_s: float) -> None:
    gate.observe([state("n1", now_s)], now_s)
    gate.poll(now_s)


def end(gate: Gate, lease: Lease, now_s: float) -> bool:
    return gate.release(lease, prompt_tokens=100, output_tokens=900, outcome=Outcome.COMPLETED, now_s=now_s)


def test_without_leave_an_interactive_request_waits():
    gate = gate_of(0)
    fill(gate)
    assert isinstance(gate.offer(request(99), 1.0), Queued)
    assert gate.recalls.requeued() == []


def test_the_newest_batch_request_gives_its_room_to_an_interactive_one():
    gate = gate_of()
    leases = fill(gate)
    decision = gate.offer(request(99), 1.0)
    assert isinstance(decision, Dispatch)
    (requeued,) = gate.recalls.requeued()
    assert requeued.lease is leases[-1]
    assert not requeued.lease.is_open
    assert not end(gate, requeued.lease, 1.0)  # its task may still call: nothing happens twice
    snapshot = gate.snapshot(1.0)
    assert (snapshot.in_flight_requests, snapshot.in_flight_tokens) == (FULL, FULL * 1_000)
    assert snapshot.queues[Tier.BATCH].requests == 1
    assert snapshot.tenants["acme"].tokens == (FULL + 1) * 1_000
    assert snapshot.tenants["acme"].queued_requests == 1
    assert snapshot.nodes["n1"].tokens == FULL * 1_000


def test_best_effort_is_taken_before_batch_and_interactive_never():
    tiers = {"batch": {"max_requeues": 1}, "best_effort": {"max_requeues": 1}}
    gate = open_gate(assignment(tiers=tiers))
    fill(gate, 40, tier=Tier.INTERACTIVE)
    fill(gate, 1, tier=Tier.BEST_EFFORT, first=40)
    fill(gate, 44, first=41)
    taken: list[Tier] = []
    for number in range(100, 150):
        decision = gate.offer(request(number), 1.0)
        taken += [one.lease.tier for one in gate.recalls.requeued()]
        if isinstance(decision, Queued):
            break
    assert taken == [Tier.BEST_EFFORT] + [Tier.BATCH] * 44


def test_it_returns_to_its_place_and_its_time_at_the_engine_is_no_wait():
    gate = gate_of()
    leases = fill(gate)
    later = gate.offer(request(200, tier=Tier.BATCH), 2.0)
    assert isinstance(later, Queued)
    see(gate, 3.0)
    assert isinstance(gate.offer(request(99), 3.0), Dispatch)
    (requeued,) = gate.recalls.requeued()
    ticket = requeued.ticket
    assert (ticket.arrived_at_s, ticket.deadline_s) == (3.0, 33.0)  # it had not waited: 30 s are left
    assert ticket.key < later.ticket.key
    see(gate, 4.0)
    end(gate, leases[0], 4.0)
    (started,) = gate.poll(4.0)
    assert isinstance(started, Started)
    assert started.ticket is ticket  # before the one that came while it ran
    assert started.lease.queued_s == 1.0


def test_it_is_taken_back_at_most_so_many_times():
    gate = gate_of(2)
    leases = fill(gate, 1)
    fill(gate, FULL - 1, tier=Tier.INTERACTIVE, first=1)
    mine, now_s = leases[0], 1.0
    for _ in range(2):
        decision = gate.offer(request(99), now_s)
        assert isinstance(decision, Dispatch)
        (requeued,) = gate.recalls.requeued()
        assert requeued.lease is mine
        see(gate, now_s + 0.5)
        end(gate, decision.lease, now_s + 0.5)
        (started,) = gate.poll(now_s + 0.5)
        assert isinstance(started, Started)
        mine, now_s = started.lease, now_s + 1
    assert isinstance(gate.offer(request(99), now_s), Queued)
    assert mine.is_open


def test_what_has_begun_to_answer_stays():
    gate = gate_of()
    leases = fill(gate)
    for lease in leases:
        gate.recalls.began(lease)
    assert isinstance(gate.offer(request(99), 1.0), Queued)
    assert all(lease.is_open for lease in leases)


def test_it_has_its_whole_timeout_again_and_is_displaced_last():
    gate = open_gate(
        assignment(tiers={"batch": {"max_requeues": 9, "queue_timeout_s": 10.0}}), max_queued_requests=3
    )
    leases = fill(gate, FULL, tier=Tier.INTERACTIVE)
    waiting = gate.offer(request(100, tier=Tier.BATCH), 1.0)
    assert isinstance(waiting, Queued)
    see(gate, 9.5)
    end(gate, leases[0], 9.5)
    (started,) = gate.poll(9.5)
    assert isinstance(started, Started)
    assert started.lease.queued_s == 8.5  # of 10 s
    others = [gate.offer(request(n, tier=Tier.BATCH), 9.6) for n in (101, 102)]
    assert isinstance(gate.offer(request(103), 9.7), Dispatch)
    (requeued,) = gate.recalls.requeued()
    assert requeued.ticket.deadline_s == pytest.approx(19.7)
    assert gate.snapshot(9.8).queues[Tier.BATCH].oldest_wait_s == pytest.approx(0.2)
    assert isinstance(gate.offer(request(104), 9.8), Queued)  # the queue of three is full: one must leave
    (evicted,) = gate.poll(9.8)
    assert isinstance(others[1], Queued)
    assert evicted.ticket is others[1].ticket


def test_nobody_is_taken_back_in_vain():
    # what runs holds 60,000 and can be taken back; 26,000 of others' measured use cannot
    gate = gate_of()
    fill(gate, 60)
    gate.observe([state("n1", 0.7, kv_used_ratio=0.8)], 0.7)
    large = request(99, prompt_tokens=84_000, max_tokens=900)
    assert isinstance(gate.offer(large, 0.7), Queued)
    assert gate.recalls.requeued() == []
    assert gate.snapshot(0.7).nodes["n1"].tokens == 60_000


def test_a_rate_that_is_charged_once_stays_charged_once():
    quota = tenant(tokens_per_minute=60, burst_tokens=85_000)
    free = tenant()
    gate = gate_of(tenants={"acme": quota, "zoe": free})
    fill(gate)
    left = gate.snapshot(0.9).tenants["acme"].rate_tokens_left
    assert isinstance(gate.offer(request(99, tenant="zoe"), 0.9), Dispatch)
    assert len(gate.recalls.requeued()) == 1
    assert gate.snapshot(0.9).tenants["acme"].rate_tokens_left == left


def test_the_node_where_fewest_must_leave_is_taken():
    gate = gate_of(nodes=[node("n1"), node("n2")])
    many = [gate.offer(request(n, tier=Tier.BATCH), 0.0) for n in range(170)]
    assert all(isinstance(one, Dispatch) for one in many)
    on_n2 = [one.lease for one in many if isinstance(one, Dispatch) and one.node == "n2"]
    for lease in on_n2[:3]:
        end(gate, lease, 0.1)  # n2 has 3,000 free: two must leave there, five on n1
    decision = gate.offer(request(999, prompt_tokens=4_100, max_tokens=900), 0.2)
    assert isinstance(decision, Dispatch)
    assert decision.node == "n2"
    assert {one.lease.node for one in gate.recalls.requeued()} == {"n2"}


def test_only_those_are_taken_back_whose_room_it_needs():
    # beside 81,000 that stay a batch request of 3,000 and a newer one of 1,000; 3,000 are wanted
    gate = gate_of()
    fill(gate, 81, tier=Tier.INTERACTIVE)
    older = gate.offer(request(90, tier=Tier.BATCH, prompt_tokens=2_100), 0.9)
    newer = gate.offer(request(91, tier=Tier.BATCH), 0.91)
    assert isinstance(older, Dispatch)
    assert isinstance(newer, Dispatch)
    assert isinstance(gate.offer(request(99, prompt_tokens=2_100), 1.0), Dispatch)
    assert [one.lease for one in gate.recalls.requeued()] == [older.lease]
    assert newer.lease.is_open
    assert gate.snapshot(1.0).nodes["n1"].tokens == 85_000


def test_one_taken_back_starts_at_once_where_it_fits():
    # n2 has 1,500 left: too little for the 5,000, enough for one of the five that make room on n1
    gate = gate_of(nodes=[node("n1"), node("n2")])
    gate.observe([state("n2", 0.1, healthy=False)], 0.1)
    fill(gate)
    gate.observe([state("n2", 0.9, kv_used_ratio=0.835)], 0.9)
    gate.poll(0.9)
    assert isinstance(gate.offer(request(99, prompt_tokens=4_100), 1.0), Dispatch)
    taken = gate.recalls.requeued()
    assert len(taken) == 5
    (started,) = gate.poll(1.0)
    assert isinstance(started, Started)
    assert started.node == "n2"
    assert started.ticket in {one.ticket for one in taken}


def test_what_no_node_would_take_again_is_not_taken_back():
    made = assignment(tiers={"batch": {"max_requeues": 2}}, nodes=[node("n1", models=["llama", "other"])])
    gate = open_gate(made)
    for number in range(FULL):
        assert isinstance(gate.offer(request(number, tier=Tier.BATCH, model="other"), 0.5), Dispatch)
    gate.apply(assignment(tiers={"batch": {"max_requeues": 2}}, generation=2), 0.9)
    assert isinstance(gate.offer(request(99), 1.0), Queued)
    assert gate.recalls.requeued() == []


def test_what_streams_more_than_was_booked_is_not_taken_back():
    gate = gate_of()
    fill(gate, FULL - 1, tier=Tier.INTERACTIVE)
    (lease,) = fill(gate, 1, first=FULL - 1)
    gate.extend(lease, 901, 0.9)
    assert isinstance(gate.offer(request(99), 1.0), Queued)
    assert gate.recalls.requeued() == []


def test_interactive_requests_cannot_be_given_up():
    document = default_policy().as_document()
    document["tiers"]["interactive"]["max_requeues"] = 1
    with pytest.raises(InvalidPolicy) as refused:
        parse(document)
    assert refused.value.field == "/tiers"


def test_a_seeded_overload_loses_nothing_and_interactive_hardly_waits():
    rng = random.Random(7)
    waits = {False: 0, True: 0}
    for allowed in (False, True):
        gate, now_s, live, waiting, left = (
            gate_of(3 if allowed else 0),
            0.0,
            dict[int, Lease](),
            set[int](),
            0,
        )
        for number in range(4_000):
            now_s += 0.05
            gate.observe([state("n1", now_s)], now_s)
            if rng.random() < 0.5 and live:
                lease = live.pop(rng.choice(list(live)))
                assert end(gate, lease, now_s)
                left += 1
            tier = Tier.INTERACTIVE if rng.random() < 0.1 else Tier.BATCH
            decision = gate.offer(request(number, tier=tier), now_s)
            for one in gate.recalls.requeued():
                del live[one.lease.lease_id]
                waiting.add(one.ticket.ticket_id)
            if isinstance(decision, Dispatch):
                live[decision.lease.lease_id] = decision.lease
            elif isinstance(decision, Queued):
                waiting.add(decision.ticket.ticket_id)
                waits[allowed] += tier is Tier.INTERACTIVE
            else:
                left += 1
            for event in gate.poll(now_s):
                waiting.remove(event.ticket.ticket_id)
                if isinstance(event, Started):
                    live[event.lease.lease_id] = event.lease
                else:
                    left += 1
            assert gate.snapshot(now_s).in_flight_requests == len(live)
        assert left + len(live) + len(waiting) == 4_000
    assert waits[True] < 0.2 * waits[False]
