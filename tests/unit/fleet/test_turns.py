"""The order of flows and inside a flow, against plain sorting; and that what ended is let go at once."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable

import pytest
from gate_world import Server, assignment, open_gate, request, tenant

from fleet.fairflows import FairTags, Flow, Lane
from fleet.gate import Dispatch, Lease, Queued, Started
from fleet.lines import Lines
from fleet.messages import Assignment
from fleet.outcomes import TIERS, Outcome, Tier
from fleet.tally import Tally
from fleet.turns import Turns

Draw = Callable[[random.Random, float], float]

STARTS: dict[str, Draw] = {
    "spread": lambda rng, now: now + rng.uniform(0, 1_000),
    "far apart": lambda rng, now: now + rng.expovariate(1e-7),
    "in clusters, many at once": lambda rng, now: now + rng.choice([0.0, 0.0, 5.0, 5.0 + 1e-9, 80_000.0]),
    "all at once": lambda rng, now: 7.0,
    "before those there": lambda rng, now: max(0.0, 1e6 - now) + rng.random(),
}


@pytest.fixture
def lane() -> Lane:
    return Lane(Lines(Tally()).find("llama", Tier.BATCH), None)


@pytest.mark.parametrize("kind", STARTS)
def test_flows_have_their_turn_by_start_and_then_in_the_order_in_which_they_came(kind: str, lane: Lane):
    rng, draw, turns = random.Random(5), STARTS[kind], Turns()
    flows = [Flow(f"t{number}", lane, FairTags().find("")) for number in range(600)]
    standing: list[tuple[float, int, Flow]] = []  # sorted by hand: the truth
    idle, count, now = list(flows), 0, 0.0
    for step in range(6_000):
        expected = min(standing, key=lambda turn: turn[:2], default=None)
        first = turns.first()
        assert (first and (first.turn, first.turn_number, first)) == expected
        if step % 100 == 0:
            assert list(turns) == [flow for _, _, flow in sorted(standing, key=lambda turn: turn[:2])]
        fills = step % 2_000 < 1_200  # it fills up to all of them, and empties, several times
        if idle and (expected is None or rng.random() < (0.7 if fills else 0.1)):
            flow, count = idle.pop(), count + 1
            start = draw(rng, now)
            turns.add(start, flow)
            standing.append((start, count, flow))
        elif expected is not None:
            now, _, flow = expected
            standing.remove(expected)
            if rng.random() < (0.9 if fills else 0.2):
                start, count = max(now, draw(rng, now)), count + 1
                turns.put_back_first(start, flow)
                standing.append((start, count, flow))
            else:
                turns.drop_first()
                idle.append(flow)
    assert count > 3_000


@pytest.mark.parametrize("most", [3, 40, 1_200])
def test_a_flow_starts_by_key_whether_it_is_short_or_was_long_and_whoever_leaves(most: int):
    rng, server = random.Random(most), Server(open_gate())
    while isinstance(last := server.offer(request(max_tokens=400)), Dispatch):
        pass  # until the node is full
    assert isinstance(last, Queued)
    flow, waiting = last.ticket.flow, [last.ticket]
    assert isinstance(flow, Flow)
    lengths: set[int] = set()
    for step in range(3_000):
        server.now_s += rng.choice([0.0, 0.001])
        grows = step % 1_000 < 700
        if len(waiting) < most and (grows or len(waiting) < 2):
            decision = server.offer(request(step, max_tokens=rng.choice([500, 900, 5_000])))
            assert isinstance(decision, Queued)
            waiting.append(decision.ticket)
        else:
            gone = rng.choice([flow.first(), rng.choice(waiting)])
            assert gone is not None
            waiting.remove(gone)
            server.gate.cancel(gone, server.now_s)
        lengths.add(len(waiting))
        assert flow.requests == len(waiting)
        assert flow.first() is min(waiting, key=lambda one: (one.key, one.ticket_id))
    assert max(lengths) == most
    while waiting:  # the whole order
        first = min(waiting, key=lambda one: (one.key, one.ticket_id))
        assert flow.first() is first
        waiting.remove(first)
        server.gate.cancel(first, server.now_s)
    assert (flow.first(), flow.requests, flow.tokens) == (None, 0, 0)


def test_equal_keys_start_in_the_order_in_which_they_came_however_many_and_whoever_leaves():
    rng, server = random.Random(8), Server(open_gate(patient({"acme": 1})))
    while not isinstance(last := server.offer(request(tier=Tier.BATCH)), Queued):
        pass
    waiting = [last.ticket]
    for number in range(2_500):  # at one moment, of two sizes: two keys
        decision = server.offer(request(number, tier=Tier.BATCH, max_tokens=rng.choice([None, 900])))
        assert isinstance(decision, Queued)
        waiting.append(decision.ticket)
    assert len({one.key for one in waiting}) == 2
    flow = waiting[0].flow
    assert isinstance(flow, Flow)
    for one in rng.sample(waiting, 1_500):
        server.gate.cancel(one, server.now_s)
        waiting.remove(one)
    for one in sorted(waiting, key=lambda one: (one.key, one.ticket_id)):
        assert flow.first() is one
        server.gate.cancel(one, server.now_s)


class Name(str):
    """A text that can be watched."""

    __slots__ = ("__weakref__",)


def test_what_was_served_is_let_go_at_once_and_needs_no_search_for_cycles():
    server = Server(open_gate(assignment({"acme": tenant(), "globex": tenant()})))
    while isinstance(last := server.offer(request(tenant="globex")), Dispatch):
        pass
    assert isinstance(last, Queued)
    del last
    seen: list[weakref.ref[Name]] = []
    was_on = gc.isenabled()
    gc.disable()
    try:
        for number in range(300):
            name = Name(f"n{number}")
            seen.append(weakref.ref(name))
            asked = request(number)
            asked.request_id = name
            server.offer(asked)
            del asked, name
            oldest = server.running.popleft()
            server.gate.release(
                oldest, prompt_tokens=100, output_tokens=9, outcome=Outcome.COMPLETED, now_s=server.now_s
            )
            del oldest
            for event in server.gate.poll(server.now_s):
                assert isinstance(event, Started)
                server.running.append(event.lease)
                del event
        server.started.clear()
        alive = sum(one() is not None for one in seen)
    finally:
        if was_on:
            gc.enable()
    waiting = server.gate.snapshot(server.now_s).queues[Tier.INTERACTIVE].requests
    assert alive <= waiting + len(server.running) + 1  # one more: whose deadline came first when last asked
    assert alive < 100  # most of them ran and ended


def test_a_gate_that_is_let_go_with_requests_waiting_and_running_is_freed():
    seen: list[weakref.ref[Name]] = []

    def left_behind() -> None:
        server = Server(open_gate())
        for number in range(300):
            asked = request(number)
            asked.request_id = name = Name(f"n{number}")
            seen.append(weakref.ref(name))
            server.offer(asked)
        assert server.gate.snapshot(0.0).queues[Tier.INTERACTIVE].requests > 0
        assert server.running

    left_behind()
    gc.collect()
    assert [one() for one in seen if one() is not None] == []


def starts_after_a_push(before: dict[str, int], after: dict[str, int]) -> list[Lease]:
    """Return 600 starts in order, all tenants backlogged, the first by requests of before the push."""
    rng, server = random.Random(9), Server(open_gate(patient(before)))
    for number in range(400):
        server.offer(request(number, tenant="early", max_tokens=rng.choice([400, 900, 2_000])))
    for number in range(60):
        server.offer(request(number, tenant=rng.choice(["late", "other"])))
    while server.running[0].opened_at_s == 0.0:
        server.step(0.01)
    server.gate.apply(patient(after, generation=2), server.now_s)
    for number in range(1_500):
        server.offer(request(number, tenant=("late", "other", "early")[number % 3]))
    server.started.clear()
    while len(server.started) < 600:
        server.step(0.01)
    return server.started[:600]


def patient(weights: dict[str, int], generation: int = 1) -> Assignment:
    """Return an assignment under which everybody waits for ten minutes."""
    tiers = {tier.value: {"queue_timeout_s": 600} for tier in TIERS}
    tenants = {name: tenant(weight=weight) for name, weight in weights.items()}
    return assignment(tenants, tiers=tiers, generation=generation)


@pytest.mark.parametrize("factor", [16, 1_024])  # powers of two: no rounding breaks a tie
@pytest.mark.parametrize("grows", [True, False])
def test_a_push_that_changes_all_weights_alike_changes_no_order(factor: int, grows: bool):
    small = {"early": 1, "late": 2, "other": 5}
    large = {name: weight * factor for name, weight in small.items()}
    before, after = (small, large) if grows else (large, small)
    same = [(one.account, one.tokens) for one in starts_after_a_push(before, before)]
    assert [(one.account, one.tokens) for one in starts_after_a_push(before, after)] == same


@pytest.mark.parametrize(("was", "weight"), [(1, 10_000), (10_000, 1)])
def test_a_weight_that_a_push_changes_holds_at_once_also_for_what_waits(was: int, weight: int):
    others = {"late": 100, "other": 100}
    started = starts_after_a_push(others | {"early": was}, others | {"early": weight})
    tokens = dict.fromkeys([*others, "early"], 0)
    for lease in started:
        tokens[lease.account] += lease.tokens
    # 600 starts of 500 to 2,100 tokens: its share by weight, give or take one largest request of each
    expected = sum(tokens.values()) * weight / (weight + 200)
    assert abs(tokens["early"] - expected) <= 2 * 2_100


def test_of_tenants_that_left_the_policy_nothing_is_kept_once_they_owe_nothing():
    server = Server(open_gate(assignment({"acme": tenant()})))
    for number in range(40):
        names = [f"t{number}-{one}" for one in range(25)]
        server.gate.apply(assignment(dict.fromkeys(names, tenant()), generation=number + 2), server.now_s)
        for one in range(200):  # the node holds 85: some wait
            server.offer(request(one, tenant=names[one % 25]))
        while server.running:
            server.step(0.001)
    kept = server.started[-1].ticket.line.state.tags.by_key
    assert len(kept) <= 50  # those of the push before may still have owed a request
    assert kept.keys() >= {lease.account for lease in server.started[-25:]}
