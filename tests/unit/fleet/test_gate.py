"""What the gate decides, one claim a test."""

from __future__ import annotations

import random
from typing import Any

import pytest
from gate_world import MODEL, assignment, node, open_gate, request, state, tenant

from fleet.gate import Dispatch, Event, Evicted, Gate, Queued, Refused, Started, Ticket
from fleet.outcomes import Outcome, Tier

DONE = {"prompt_tokens": 100, "output_tokens": 900, "outcome": Outcome.COMPLETED}


def test_a_gate_without_an_assignment_serves_nobody():
    gate = Gate(random.Random(1))
    refused = gate.offer(request(), 0.0)
    assert isinstance(refused, Refused)
    assert refused.outcome is Outcome.NO_NODES
    assert not gate.is_ready


def test_a_node_takes_its_budget_and_not_one_request_more():
    # 100,000 KV tokens * 0.85 = 85,000: 85 requests of 1,000 tokens
    gate = open_gate()
    decisions = [gate.offer(request(number), 0.0) for number in range(86)]
    assert [type(one) for one in decisions] == [Dispatch] * 85 + [Queued]
    assert gate.snapshot(0.0).nodes["n1"].tokens == 85_000


def test_two_hundred_arrivals_between_two_polls_do_not_overshoot_a_node():
    # max_num_seqs 40 and this gateway's share 0.5: 20 requests a node, whatever arrives
    nodes = [node("n1", max_num_seqs=40), node("n2", max_num_seqs=40)]
    gate = open_gate(assignment(nodes=nodes, kv_share_ratio=0.5))
    decisions = [gate.offer(request(number), 0.1) for number in range(200)]
    assert sum(isinstance(one, Dispatch) for one in decisions) == 40
    assert {name: use.requests for name, use in gate.snapshot(0.1).nodes.items()} == {"n1": 20, "n2": 20}


def test_release_returns_what_was_booked_once():
    gate = open_gate()
    dispatch = gate.offer(request(), 0.0)
    assert isinstance(dispatch, Dispatch)
    assert gate.release(
        dispatch.lease, prompt_tokens=100, output_tokens=7, outcome=Outcome.COMPLETED, now_s=1.0
    )
    assert not gate.release(dispatch.lease, **DONE, now_s=1.0)
    snapshot = gate.snapshot(1.0)
    assert (snapshot.in_flight_requests, snapshot.in_flight_tokens) == (0, 0)
    assert (snapshot.tenants["acme"].requests, snapshot.tenants["acme"].tokens) == (0, 0)


def test_short_answers_to_long_reservations_never_lock_the_gate():
    # prompt 500, reserved 1,000, answered 300: subtracting what was used would leak 700 a request and
    # fill 0.85 * 600,000 after 727 requests with nothing running
    made = assignment(nodes=[node("n1", kv_capacity_tokens=600_000)])
    gate = open_gate(made)
    for number in range(2_000):
        dispatch = gate.offer(request(number, prompt_tokens=500, max_tokens=1000), 0.0)
        assert isinstance(dispatch, Dispatch)
        gate.release(
            dispatch.lease, prompt_tokens=500, output_tokens=300, outcome=Outcome.UPSTREAM_ERROR, now_s=0.0
        )
    assert gate.snapshot(0.0).in_flight_tokens == 0


def test_a_queued_request_starts_when_room_appears():
    gate = open_gate()
    running = [gate.offer(request(number), 0.0) for number in range(85)]
    queued = gate.offer(request(99), 0.0)
    assert isinstance(queued, Queued)
    assert gate.poll(0.5) == []
    first = running[0]
    assert isinstance(first, Dispatch)
    gate.release(first.lease, **DONE, now_s=1.0)
    assert gate.next_deadline_s() == 1.0
    (started,) = gate.poll(1.0)
    assert isinstance(started, Started)
    assert started.ticket is queued.ticket
    assert started.lease.queued_s == 1.0


def test_a_request_that_waited_its_tiers_timeout_is_evicted_and_used_nothing():
    gate = open_gate()
    for number in range(85):
        gate.offer(request(number), 0.0)
    gate.offer(request(99), 0.0)
    assert gate.next_deadline_s() == 1.5
    assert gate.poll(1.49) == []
    (evicted,) = gate.poll(1.5)
    assert isinstance(evicted, Evicted)
    assert evicted.outcome is Outcome.EVICTED_WAIT
    assert evicted.retry_after_s is not None
    assert gate.snapshot(1.5).tenants["acme"].requests == 85
    assert gate.next_deadline_s() is None


@pytest.mark.parametrize(
    ("changes", "because"),
    [
        ({"kv_capacity_tokens": None}, "KV capacity is not known"),
        ({"kv_used_ratio": None}, "KV use is not known"),
        ({"healthy": False}, "unhealthy"),
    ],
)
def test_what_a_node_does_not_say_closes_it(changes: dict[str, object], because: str):
    gate = open_gate()
    gate.observe([state("n1", 1.0, **changes)], 1.0)
    refused = gate.offer(request(), 1.0)
    assert isinstance(refused, Refused)
    assert refused.outcome is Outcome.NO_NODES
    assert gate.snapshot(1.0).nodes["n1"].closed_because == because


def test_a_node_not_heard_of_for_five_seconds_takes_nothing():
    gate = open_gate()
    assert isinstance(gate.offer(request(1), 5.0), Dispatch)
    refused = gate.offer(request(2), 5.1)
    assert isinstance(refused, Refused)
    assert refused.outcome is Outcome.NO_NODES


def test_an_operators_capacity_stands_in_for_what_the_node_does_not_say():
    gate = open_gate(assignment(nodes=[node("n1", kv_capacity_tokens=2_000)]))
    gate.observe([state("n1", 1.0, kv_capacity_tokens=None, kv_used_ratio=None)], 1.0)
    # 2,000 * 0.85 = 1,700: one request of 1,000
    assert isinstance(gate.offer(request(1), 1.0), Dispatch)
    assert isinstance(gate.offer(request(2), 1.0), Queued)


def test_tokens_of_others_on_the_node_are_not_ours_to_give():
    # measured 60,000 of which 10,000 are ours: others hold 50,000; 85,000 - 50,000 = 35 requests
    gate = open_gate()
    for number in range(10):
        gate.offer(request(number), 0.0)
    gate.observe([state("n1", 1.0, kv_used_ratio=0.6, running=60)], 1.0)
    decisions = [gate.offer(request(number), 1.0) for number in range(26)]
    assert sum(isinstance(one, Dispatch) for one in decisions) == 25


def test_a_standing_engine_queue_takes_back_what_we_sent():
    # 10 of ours, 4 waiting at two polls: 6 are enough to keep the engine busy
    gate = open_gate()
    leases = [gate.offer(request(number), 0.0) for number in range(10)]
    gate.observe([state("n1", 0.5, running=6, waiting=9)], 0.5)
    assert isinstance(gate.offer(request(20), 0.5), Dispatch)  # one reading may be in passing
    gate.observe([state("n1", 1.0, running=7, waiting=4)], 1.0)
    assert isinstance(gate.offer(request(21), 1.0), Queued)
    for dispatch in leases[:4]:
        assert isinstance(dispatch, Dispatch)
        gate.release(dispatch.lease, **DONE, now_s=1.1)
        assert gate.poll(1.1) == []
    dispatch = leases[4]
    assert isinstance(dispatch, Dispatch)
    gate.release(dispatch.lease, **DONE, now_s=1.2)
    assert len(gate.poll(1.2)) == 1


def test_a_request_no_node_could_ever_hold_is_too_large():
    refused = open_gate().offer(request(prompt_tokens=84_200, max_tokens=801), 0.0)
    assert isinstance(refused, Refused)
    assert refused.outcome is Outcome.REJECTED_TOO_LARGE
    assert refused.retry_after_s is None
    assert isinstance(open_gate().offer(request(prompt_tokens=84_200, max_tokens=800), 0.0), Dispatch)


def test_a_missing_max_tokens_reserves_the_prior_and_not_the_headroom():
    gate = open_gate(prior_output_tokens=512)
    dispatch = gate.offer(request(max_tokens=None), 0.0)
    assert isinstance(dispatch, Dispatch)
    assert dispatch.lease.output_tokens == 512


def test_output_is_reserved_at_the_endpoints_own_p95_after_200_completions():
    # lengths 1..200: p95 is 190, at most 1 % high
    gate = open_gate()
    for length in range(1, 201):
        dispatch = gate.offer(request(length), 0.0)
        assert isinstance(dispatch, Dispatch)
        gate.release(
            dispatch.lease, prompt_tokens=100, output_tokens=length, outcome=Outcome.COMPLETED, now_s=0.0
        )
    dispatch = gate.offer(request(), 0.0)
    assert isinstance(dispatch, Dispatch)
    assert 190 <= dispatch.lease.output_tokens <= 192
    other = gate.offer(request(endpoint="completions"), 0.0)
    assert isinstance(other, Dispatch)
    assert other.lease.output_tokens == 900


def test_an_answer_longer_than_reserved_books_what_it_takes():
    gate = open_gate()
    dispatch = gate.offer(request(), 0.0)
    assert isinstance(dispatch, Dispatch)
    gate.extend(dispatch.lease, 1_500, 1.0)
    gate.extend(dispatch.lease, 1_200, 1.0)
    assert gate.snapshot(1.0).in_flight_tokens == 1_600
    gate.release(
        dispatch.lease, prompt_tokens=100, output_tokens=1500, outcome=Outcome.COMPLETED, now_s=2.0
    )
    assert gate.snapshot(2.0).nodes["n1"].tokens == 0


@pytest.mark.parametrize(
    ("limits", "outcome", "name"),
    [
        ({"tokens_per_minute": 0, "burst_tokens": 0}, Outcome.REJECTED_QUOTA_RATE, "tokens_per_minute"),
        ({"max_in_flight_tokens": 0}, Outcome.REJECTED_QUOTA_TOKENS, "in_flight_tokens"),
        ({"max_concurrent_requests": 0}, Outcome.REJECTED_QUOTA_REQUESTS, "concurrent_requests"),
    ],
)
def test_a_quota_of_zero_refuses_everything(limits: dict[str, int], outcome: Outcome, name: str):
    gate = open_gate(assignment({"acme": tenant(**limits)}))
    for number in range(3):
        refused = gate.offer(request(number), 0.0)
        assert isinstance(refused, Refused)
        assert refused.outcome is outcome
        assert refused.limit is not None
        assert refused.limit.name == name


def test_five_parallel_calls_of_the_whole_quota_admit_one():
    gate = open_gate(assignment({"acme": tenant(tokens_per_minute=1000, burst_tokens=1000)}))
    decisions = [gate.offer(request(number), 0.0) for number in range(5)]
    assert [type(one) for one in decisions] == [Dispatch] + [Refused] * 4


def test_what_was_reserved_and_not_used_comes_back_to_the_rate():
    gate = open_gate(assignment({"acme": tenant(tokens_per_minute=60, burst_tokens=2_000)}))
    dispatch = gate.offer(request(), 0.0)
    assert isinstance(dispatch, Dispatch)
    assert gate.snapshot(0.0).tenants["acme"].rate_tokens_left == 1_000
    gate.release(dispatch.lease, prompt_tokens=90, output_tokens=10, outcome=Outcome.COMPLETED, now_s=0.0)
    assert gate.snapshot(0.0).tenants["acme"].rate_tokens_left == 1_900


def test_usage_the_engine_did_not_report_is_charged_as_booked():
    gate = open_gate(assignment({"acme": tenant(tokens_per_minute=60, burst_tokens=2_000)}))
    dispatch = gate.offer(request(), 0.0)
    assert isinstance(dispatch, Dispatch)
    gate.release(
        dispatch.lease, prompt_tokens=None, output_tokens=None, outcome=Outcome.CLIENT_GONE, now_s=0.0
    )
    assert gate.snapshot(0.0).tenants["acme"].rate_tokens_left == 1_000


def test_a_refused_request_burns_nothing():
    gate = open_gate(
        assignment({"acme": tenant(tokens_per_minute=60, burst_tokens=5_000, max_concurrent_requests=1)})
    )
    gate.offer(request(1), 0.0)
    before = gate.snapshot(0.0).tenants
    for number in range(10):
        assert isinstance(gate.offer(request(number), 0.0), Refused)
    assert gate.snapshot(0.0).tenants == before


def test_a_tier_the_tenant_may_not_use_is_refused_and_an_unknown_tenant_too():
    gate = open_gate(assignment({"acme": tenant(allowed_tiers=["interactive"])}))
    for refused in (gate.offer(request(tier=Tier.BATCH), 0.0), gate.offer(request(tenant="else"), 0.0)):
        assert isinstance(refused, Refused)
        assert refused.outcome is Outcome.REJECTED_TIER


def test_unlisted_tenants_share_the_default_tenants_quota():
    limits = tenant(tokens_per_minute=60, burst_tokens=2_000)
    gate = open_gate(assignment({"guest": limits}, default_tenant="guest"))
    decisions = [gate.offer(request(number, tenant=f"t{number}"), 0.0) for number in range(3)]
    assert [type(one) for one in decisions] == [Dispatch, Dispatch, Refused]
    assert set(gate.snapshot(0.0).tenants) == {"guest"}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("warn", Tier.INTERACTIVE),
        ("downgrade", Tier.BEST_EFFORT),
        ("refuse", Outcome.REJECTED_QUOTA_BUDGET),
    ],
)
def test_a_spent_budget_warns_downgrades_or_refuses(rule: str, expected: Tier | Outcome):
    gate = open_gate(assignment({"acme": tenant(over_budget=rule)}, over_budget=("acme",)))
    decision = gate.offer(request(), 0.0)
    got = decision.lease.tier if isinstance(decision, Dispatch) else getattr(decision, "outcome", None)
    assert got is expected


def test_a_full_queue_refuses_and_leaves_the_waiting_alone():
    gate = open_gate(assignment(tiers={"interactive": {"max_queued_requests": 3}}))
    decisions = [gate.offer(request(number), 0.0) for number in range(85 + 4)]
    last = decisions[-1]
    assert isinstance(last, Refused)
    assert last.outcome is Outcome.REJECTED_QUEUE_FULL
    assert gate.snapshot(0.0).queues[Tier.INTERACTIVE].requests == 3


def test_an_interactive_request_displaces_the_newest_of_the_lowest_tier():
    gate = open_gate(max_queued_requests=3)
    for number in range(85):
        gate.offer(request(number), 0.0)
    waiting = [
        gate.offer(request(200 + n, tier=tier), 0.0)
        for n, tier in enumerate((Tier.BATCH, Tier.BEST_EFFORT, Tier.BEST_EFFORT))
    ]
    assert isinstance(gate.offer(request(300, tier=Tier.BATCH), 0.0), Refused)
    assert isinstance(gate.offer(request(301), 0.0), Queued)
    (evicted,) = gate.poll(0.0)
    assert isinstance(evicted, Evicted)
    assert evicted.outcome is Outcome.EVICTED_DISPLACED
    assert isinstance(waiting[2], Queued)
    assert evicted.ticket is waiting[2].ticket


def test_a_client_that_leaves_the_queue_gives_back_its_place_once():
    gate = open_gate()
    for number in range(85):
        gate.offer(request(number), 0.0)
    queued = gate.offer(request(99), 0.0)
    assert isinstance(queued, Queued)
    assert gate.cancel(queued.ticket, 0.5)
    assert not gate.cancel(queued.ticket, 0.5)
    assert gate.snapshot(0.5).tenants["acme"].requests == 85
    assert gate.poll(2.0) == []


def test_a_draining_gate_refuses_the_new_and_finishes_the_old():
    gate = open_gate()
    dispatches = [gate.offer(request(number), 0.0) for number in range(86)]
    gate.drain()
    refused = gate.offer(request(100), 0.1)
    assert isinstance(refused, Refused)
    assert refused.outcome is Outcome.DRAINING
    first = dispatches[0]
    assert isinstance(first, Dispatch)
    gate.release(first.lease, **DONE, now_s=0.2)
    assert isinstance(gate.poll(0.2)[0], Started)


def test_overload_judged_from_the_drain_rate_is_refused_at_once():
    # one request of 1,000 tokens leaves each 0.1 s: 10,000 tokens/s; in 1.5 s 15 requests can start
    gate = open_gate(assignment(tiers={"interactive": {"max_queued_requests": 10_000}}))
    running = [
        one.lease for one in (gate.offer(request(n), 0.0) for n in range(85)) if isinstance(one, Dispatch)
    ]
    now_s = 0.0
    outcomes: list[Outcome] = []
    for step in range(100):
        now_s = 0.1 * (step + 1)
        for number in range(3):  # three times what can be served
            decision = gate.offer(request(1000 + 3 * step + number), now_s)
            if isinstance(decision, Refused):
                outcomes.append(decision.outcome)
        gate.release(running.pop(0), **DONE, now_s=now_s)
        running += [event.lease for event in gate.poll(now_s) if isinstance(event, Started)]
        gate.observe([state("n1", now_s, kv_used_ratio=0.5)], now_s)
    late = [one for one in outcomes if one is Outcome.REJECTED_TOO_LATE]
    assert len(late) > 100
    assert gate.snapshot(now_s).queues[Tier.INTERACTIVE].requests <= 17


def test_a_first_burst_after_a_quiet_night_is_queued_not_refused():
    gate = open_gate()
    for number in range(1000):  # one request a second, never a queue
        dispatch = gate.offer(request(number), float(number))
        assert isinstance(dispatch, Dispatch)
        gate.release(dispatch.lease, **DONE, now_s=number + 0.5)
        gate.observe([state("n1", number + 0.6)], number + 0.6)
    burst = [gate.offer(request(5000 + number), 1000.0) for number in range(120)]
    assert [type(one) for one in burst] == [Dispatch] * 85 + [Queued] * 35


def test_nodes_that_vanish_keep_their_leases_until_released():
    gate = open_gate(assignment(nodes=[node("n1"), node("n2")]))
    decisions = [gate.offer(request(number), 0.0) for number in range(2)]
    leases = {one.node: one.lease for one in decisions if isinstance(one, Dispatch)}
    gate.apply(assignment(nodes=[node("n2")], generation=2), 1.0)
    assert gate.snapshot(1.0).in_flight_tokens == 2_000
    gate.release(leases["n1"], **DONE, now_s=2.0)
    snapshot = gate.snapshot(2.0)
    assert snapshot.in_flight_tokens == 1_000
    assert set(snapshot.nodes) == {"n2"}


def test_interactive_never_runs_on_spot_unless_listed():
    made = assignment(nodes=[node("n1"), node("s1", price_class="spot")])
    gate = open_gate(made)
    interactive = [gate.offer(request(number), 0.0) for number in range(86)]
    assert {one.node for one in interactive if isinstance(one, Dispatch)} == {"n1"}
    assert isinstance(interactive[-1], Queued)
    batch = gate.offer(request(100, tier=Tier.BATCH), 0.0)
    assert isinstance(batch, Dispatch)
    assert batch.node == "s1"


def test_an_outage_while_waiting_ends_as_an_outage():
    gate = open_gate()
    for number in range(86):
        gate.offer(request(number), 0.0)
    gate.observe([state("n1", 1.0, healthy=False)], 1.0)
    (evicted,) = gate.poll(1.5)
    assert isinstance(evicted, Evicted)
    assert evicted.outcome is Outcome.NO_NODES


def waiting_for(gate: Gate, model: str, count: int = 2) -> list[Ticket]:
    """Fill n1 with 85 requests, and let `count` more wait for a model."""
    for number in range(85):
        assert isinstance(gate.offer(request(number), 0.0), Dispatch)
    decisions = [gate.offer(request(90 + number, model=model), 0.1) for number in range(count)]
    assert all(isinstance(one, Queued) for one in decisions)
    return [one.ticket for one in decisions if isinstance(one, Queued)]


@pytest.mark.parametrize("last", [{"models": [MODEL]}, {"models": [MODEL, "other"], "draining": True}])
def test_a_push_that_takes_a_models_last_node_refuses_at_once_what_waits_for_it(last: dict[str, Any]):
    gate = open_gate(assignment(nodes=[node("n1", models=[MODEL, "other"])]))
    tickets = waiting_for(gate, "other")
    gate.apply(assignment(nodes=[node("n1", **last), node("n2")], generation=2), 0.2)
    assert gate.next_deadline_s() == 0.2
    events = gate.poll(0.2)
    assert [event.ticket for event in events] == tickets
    new = gate.offer(request(99, model="other"), 0.2)
    assert isinstance(new, Refused)
    for event in events:
        assert isinstance(event, Evicted)
        assert (event.outcome, event.reason) == (new.outcome, new.reason)
        assert event.outcome is Outcome.NO_NODES
        assert not gate.cancel(event.ticket, 0.2)
    snapshot = gate.snapshot(0.2)
    assert snapshot.queues[Tier.INTERACTIVE].requests == 0
    assert snapshot.tenants["acme"].tokens == 85 * 1_000  # what they held is given back
    assert gate.next_deadline_s() is None


def test_a_push_refuses_nobody_whose_node_is_only_unhealthy_or_whose_model_has_another():
    both = [MODEL, "other"]
    gate = open_gate(assignment(nodes=[node("n1", models=both)]))
    waiting_for(gate, "other")
    gate.observe([state("n1", 0.15, healthy=False)], 0.15)
    gate.apply(assignment(nodes=[node("n1", models=both)], generation=2), 0.2)
    assert gate.poll(0.2) == []
    gate.apply(assignment(nodes=[node("n3", models=both)], generation=3), 0.3)  # not heard of yet
    assert gate.poll(0.3) == []
    gate.observe([state("n3", 0.4)], 0.4)
    assert [event.node for event in gate.poll(0.4) if isinstance(event, Started)] == ["n3", "n3"]


def test_a_push_that_leaves_a_tier_without_a_node_refuses_what_waits_in_that_tier_only():
    gate = open_gate()
    (first,) = waiting_for(gate, MODEL, 1)
    batch = gate.offer(request(95, tier=Tier.BATCH), 0.1)
    assert isinstance(batch, Queued)
    spot = assignment(nodes=[node("s1", price_class="spot")], generation=2)  # batch may, interactive not
    gate.apply(spot, 0.2)
    (event,) = gate.poll(0.2)
    assert (event.ticket, isinstance(event, Evicted)) == (first, True)
    gate.observe([state("s1", 0.3)], 0.3)
    (event,) = gate.poll(0.3)
    assert (event.ticket, isinstance(event, Started)) == (batch.ticket, True)


def test_an_unknown_model_has_no_nodes():
    refused = open_gate().offer(request(model="other"), 0.0)
    assert isinstance(refused, Refused)
    assert refused.outcome is Outcome.NO_NODES


def test_a_quota_cut_below_present_use_shows_the_excess_and_ends_nothing():
    gate = open_gate(assignment({"acme": tenant(max_in_flight_tokens=10_000)}))
    for number in range(10):
        assert isinstance(gate.offer(request(number), 0.0), Dispatch)
    gate.apply(assignment({"acme": tenant(max_in_flight_tokens=4_000)}, generation=2), 0.1)
    use = gate.snapshot(0.1).tenants["acme"]
    assert (use.tokens, use.over_by_tokens) == (10_000, 6_000)
    refused = gate.offer(request(99), 0.1)
    assert isinstance(refused, Refused)
    assert refused.outcome is Outcome.REJECTED_QUOTA_TOKENS


def test_ten_thousand_made_up_tenants_leave_one_account():
    gate = open_gate(assignment({"guest": tenant()}, default_tenant="guest"))
    for number in range(10_000):
        decision = gate.offer(request(number, tenant=f"x{number}"), 0.0)
        assert isinstance(decision, Dispatch)
        gate.release(decision.lease, **DONE, now_s=0.0)
    assert set(gate.snapshot(0.0).tenants) == {"guest"}


def test_an_interactive_request_that_starts_at_once_displaces_nobody():
    # 5,000 are free: too little for the batch requests of 10,000 that fill the queue, enough for this one
    gate = open_gate(max_queued_requests=2)
    for number in range(8):
        gate.offer(request(number, tier=Tier.BATCH, prompt_tokens=9_100), 0.0)
    for number in (8, 9):
        assert isinstance(gate.offer(request(number, tier=Tier.BATCH, prompt_tokens=9_100), 0.0), Queued)
    assert isinstance(gate.offer(request(10), 0.1), Dispatch)
    assert gate.poll(0.1) == []
    assert gate.snapshot(0.1).queues[Tier.BATCH].requests == 2


def test_interactive_requests_displace_one_that_keeps_room_for_itself_and_start_there():
    # 5,000 are free and kept for nobody, until the batch request that is next has been passed by its 10,000
    gate = open_gate(max_queued_requests=1)
    for number in range(8):
        gate.offer(request(number, tier=Tier.BATCH, prompt_tokens=9_100), 0.0)
    waiting = gate.offer(request(8, tier=Tier.BATCH, prompt_tokens=9_100), 0.0)
    assert isinstance(waiting, Queued)
    displaced: list[Event] = []
    for number in range(10, 50):
        decision = gate.offer(request(number), 0.1)
        assert isinstance(decision, Dispatch)
        displaced += gate.poll(0.1)
        gate.release(decision.lease, **DONE, now_s=0.1)
        displaced += gate.poll(0.1)
        assert not displaced or number >= 20
    assert [event.ticket for event in displaced] == [waiting.ticket]


def test_an_offer_that_displaces_another_makes_the_poll_due_at_once():
    gate = open_gate(max_queued_requests=1)
    for number in range(85):
        gate.offer(request(number), 0.0)
    gate.offer(request(90, tier=Tier.BATCH), 0.2)
    gate.offer(request(91), 0.3)
    assert gate.next_deadline_s() == 0.3
    assert [event.ticket.request.request_id for event in gate.poll(0.3)] == ["r90"]
