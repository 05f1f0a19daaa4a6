"""Pools set aside for a size class, several models and adapters on a node, and who moves when nodes do."""

from __future__ import annotations

import random
from collections import Counter

from gate_world import MODEL, assignment, node, open_gate, request, state, tenant

from fleet.gate import Dispatch, Evicted, Gate, Lease, Queued, Refused, Started
from fleet.messages import Assignment
from fleet.offers import NodeState
from fleet.outcomes import Outcome, Tier
from fleet.placement import Placement

CLASSES = [
    {"name": "short", "max_tokens": 4_000, "kv_share_ratio": 1.0},
    {"name": "long", "max_tokens": 100_000, "kv_share_ratio": 1.0, "pool": "long-context"},
]
LONG = {"prompt_tokens": 9_000, "max_tokens": 1_000}


def sent(gate: Gate, number: int, now_s: float = 0.0, **asked: object) -> str:
    decision = gate.offer(request(number, **asked), now_s)
    assert isinstance(decision, Dispatch)
    return decision.node


# -- size classes ------------------------------------------------------------------------------------------


def pooled(*nodes: dict[str, object]) -> Gate:
    listed = list(nodes) or [node("n1"), node("l1", pool="long-context")]
    return open_gate(assignment(nodes=listed, admission={"size_classes": CLASSES}))


def test_a_class_bound_to_a_pool_runs_there_and_nobody_else_does():
    gate = pooled()
    assert {sent(gate, n, **LONG) for n in range(8)} == {"l1"}
    assert {sent(gate, n) for n in range(8, 93)} == {"n1"}
    assert isinstance(gate.offer(request(93), 0.0), Queued)  # l1 has room, for long ones
    assert gate.snapshot(0.0).nodes["l1"].tokens == 80_000


def test_long_requests_that_wait_for_their_pool_keep_no_short_one_waiting():
    gate = pooled()
    for number in range(8):
        sent(gate, number, **LONG)
    assert isinstance(gate.offer(request(8, tier=Tier.BATCH, **LONG), 0.0), Queued)
    assert sent(gate, 9) == "n1"


def test_without_a_node_in_its_pool_a_class_is_refused_and_the_others_are_served():
    gate = pooled(node("n1"))
    decision = gate.offer(request(1, **LONG), 0.0)
    assert isinstance(decision, Refused)
    assert decision.outcome is Outcome.NO_NODES
    assert sent(gate, 2) == "n1"


def test_what_a_bound_class_produces_teaches_the_same_history():
    gate = pooled()
    for number in range(250):
        gate.observe([state("n1", number / 10), state("l1", number / 10)], number / 10)
        decision = gate.offer(request(number, **(LONG if number % 2 else {})), number / 10)
        assert isinstance(decision, Dispatch)
        gate.release(
            decision.lease,
            prompt_tokens=100,
            output_tokens=7,
            outcome=Outcome.COMPLETED,
            now_s=number / 10,
        )
    decision = gate.offer(request(999, prompt_tokens=9_000, max_tokens=None), 25.0)
    assert isinstance(decision, Dispatch)
    assert decision.lease.output_tokens == 7  # of 250, not of 125
    assert decision.node == "l1"


def test_a_push_that_unbinds_a_class_starts_what_waited_for_its_pool_elsewhere():
    gate = pooled()
    for number in range(8):
        sent(gate, number, tier=Tier.BATCH, **LONG)
    waiting = gate.offer(request(8, tier=Tier.BATCH, **LONG), 0.0)
    assert isinstance(waiting, Queued)
    gate.apply(assignment(nodes=[node("n1"), node("l1", pool="long-context")], generation=2), 1.0)
    (started,) = gate.poll(1.0)
    assert isinstance(started, Started)
    assert started.ticket is waiting.ticket
    assert started.node == "n1"  # l1 holds 80,000 of 85,000
    assert sent(gate, 9, 1.0, **LONG) == "n1"


def test_what_waits_for_a_bound_class_whose_last_node_left_is_answered_at_once():
    gate = pooled()
    for number in range(8):
        sent(gate, number, tier=Tier.BATCH, **LONG)
    waiting = gate.offer(request(8, tier=Tier.BATCH, **LONG), 0.0)
    assert isinstance(waiting, Queued)
    gate.apply(assignment(nodes=[node("n1")], admission={"size_classes": CLASSES}, generation=2), 1.0)
    (evicted,) = gate.poll(1.0)
    assert isinstance(evicted, Evicted)
    assert evicted.ticket is waiting.ticket
    assert evicted.outcome is Outcome.NO_NODES
    assert gate.snapshot(1.0).queues[Tier.BATCH].requests == 0


def test_a_request_taken_back_after_its_class_was_unbound_waits_for_its_models_nodes():
    tiers = {"batch": {"max_requeues": 1}}
    parts = {"tiers": tiers, "nodes": [node("l1", pool="long-context")]}
    gate = open_gate(assignment(admission={"size_classes": CLASSES}, **parts))
    leases = [gate.offer(request(n, tier=Tier.BATCH, **LONG), 0.0) for n in range(8)]
    gate.apply(assignment(generation=2, **parts), 1.0)
    decision = gate.offer(request(9, **LONG), 1.0)
    assert isinstance(decision, Dispatch)
    (requeued,) = gate.recalls.requeued()
    first = leases[0]
    assert isinstance(first, Dispatch)
    gate.release(first.lease, prompt_tokens=1, output_tokens=1, outcome=Outcome.COMPLETED, now_s=2.0)
    (started,) = gate.poll(2.0)
    assert isinstance(started, Started)
    assert started.ticket is requeued.ticket


# -- models and adapters -----------------------------------------------------------------------------------


def test_adapters_route_to_nodes_that_hold_them_and_share_the_nodes_capacity():
    nodes = [node("n1", models=["base", "sql-lora"]), node("n2", models=["base"])]
    gate = open_gate(assignment(nodes=nodes))
    assert {sent(gate, n, model="sql-lora") for n in range(40)} == {"n1"}
    # 45 more fit on n1 and 85 on n2: the capacity is counted once, not once a name
    placed = Counter(sent(gate, n, model="base") for n in range(40, 170))
    assert placed == {"n1": 45, "n2": 85}
    assert isinstance(gate.offer(request(170, model="base"), 0.0), Queued)
    assert isinstance(gate.offer(request(171, model="sql-lora"), 0.0), Queued)
    assert gate.snapshot(0.0).nodes["n1"].tokens == 85_000


def test_an_adapter_that_waits_starts_when_the_base_model_gives_room():
    gate = open_gate(assignment(nodes=[node("n1", models=["base", "sql-lora"])]))
    leases = [gate.offer(request(n, model="base"), 0.0) for n in range(85)]
    waiting = gate.offer(request(85, model="sql-lora", tier=Tier.BATCH), 0.0)
    assert isinstance(waiting, Queued)
    first = leases[0]
    assert isinstance(first, Dispatch)
    gate.release(first.lease, prompt_tokens=1, output_tokens=1, outcome=Outcome.COMPLETED, now_s=1.0)
    (started,) = gate.poll(1.0)
    assert isinstance(started, Started)
    assert started.ticket is waiting.ticket


# -- prefixes ----------------------------------------------------------------------------------------------


def homes(names: list[str], prefixes: int) -> dict[str, str]:
    """Return where each prefix goes on idle nodes, asked one by one through the gate."""
    gate = open_gate(assignment(nodes=[node(name) for name in names], routing={"prefix_affinity": True}))
    found: dict[str, str] = {}
    for number in range(prefixes):
        decision = gate.offer(request(number, prefix_key=f"p{number}"), 0.0)
        assert isinstance(decision, Dispatch)
        found[f"p{number}"] = decision.node
        gate.release(decision.lease, prompt_tokens=1, output_tokens=1, outcome=Outcome.COMPLETED, now_s=0.0)
    return found


def test_a_prefix_of_nothing_finds_a_home_on_nodes_without_a_budget():
    # an embedding of nothing, where this gateway's millionth of each node is no token
    gate = open_gate(
        assignment(nodes=[node("n1"), node("n2")], kv_share_ratio=1e-6, routing={"prefix_affinity": True})
    )
    assert sent(gate, 1, prefix_key="p", prompt_tokens=0, max_tokens=0) in {"n1", "n2"}


def test_a_node_that_comes_or_goes_moves_its_own_prefixes_only():
    eight = homes([f"n{n}" for n in range(8)], 2_000)
    nine = homes([f"n{n}" for n in range(9)], 2_000)
    moved = [key for key in eight if eight[key] != nine[key]]
    assert {nine[key] for key in moved} == {"n8"}  # nobody moves between the eight
    # a ninth of 2,000 is 222, standard deviation sqrt(2000 / 9 * 8 / 9) = 14
    assert abs(len(moved) - 222) < 5 * 14


def test_a_skewed_prefix_does_not_heat_its_home_beyond_the_cap():
    """Half of all requests have one prefix, the others Zipf-like ones; 16 nodes, 320 requests at once."""
    rng = random.Random(11)
    nodes = [node(f"n{n}") for n in range(16)]
    gate = open_gate(assignment(nodes=nodes, routing={"prefix_affinity": True}))
    placed: Counter[str] = Counter()
    for number in range(320):
        rank = 0 if rng.random() < 0.5 else int(1 / (1 - rng.random()))
        placed[sent(gate, number, prefix_key=f"p{rank}")] += 1
        # bounded loads: no node above 1.25 times the mean of all, plus the one request that is placed
        assert max(placed.values()) <= 1.25 * (number + 1) / 16 + 1


# -- many at once ------------------------------------------------------------------------------------------


def test_two_hundred_arrivals_in_one_poll_spread_over_nodes_and_stay_in_budgets():
    nodes = [node("n1"), node("n2"), node("n3", kv_capacity_tokens=20_000)]
    for strategy in ("least_loaded", "kv_room", "cost_aware"):
        gate = open_gate(assignment(nodes=nodes, routing={"strategy": strategy}))
        decisions = [gate.offer(request(n), 0.0) for n in range(200)]
        placed = Counter(one.node for one in decisions if isinstance(one, Dispatch))
        assert placed == {"n1": 85, "n2": 85, "n3": 17}
        assert sum(isinstance(one, Queued) for one in decisions) == 13


def test_batch_fills_spot_first_and_returns_to_it_when_it_has_room_again():
    nodes = [node("s1", price_class="spot"), node("d1")]
    made = assignment({"acme": tenant(tier="batch")}, nodes=nodes, routing={"strategy": "cost_aware"})
    gate = open_gate(made)
    leases: list[Lease] = []
    for number in range(90):
        decision = gate.offer(request(number), 0.0)
        assert isinstance(decision, Dispatch)
        leases.append(decision.lease)
    assert [lease.node for lease in leases] == ["s1"] * 85 + ["d1"] * 5
    gate.release(leases[3], prompt_tokens=1, output_tokens=1, outcome=Outcome.COMPLETED, now_s=1.0)
    assert sent(gate, 91, 1.0) == "s1"


# -- the roomiest node -------------------------------------------------------------------------------------


def test_the_room_of_the_roomiest_node_is_exact_whatever_was_booked_freed_and_seen():
    rng = random.Random(5)
    placement = Placement()
    made: Assignment = assignment(nodes=[node(f"n{n}", max_num_seqs=20) for n in range(4)])
    placement.apply(made)
    pool = placement.pool(MODEL, Tier.BATCH)
    assert pool is not None
    held: list[tuple[str, int]] = []
    for step in range(2_000):
        name = f"n{rng.randrange(4)}"
        book = placement.book(name)
        what = rng.random()
        if what < 0.4:
            held.append((name, rng.randint(1, 20_000)))
            book.book(held[-1][1], None)
        elif what < 0.8 and held:
            freed, tokens = held.pop(rng.randrange(len(held)))
            placement.book(freed).free(tokens, None)
        elif what < 0.95:
            said: NodeState = state(name, float(step), kv_used_ratio=rng.choice([0.0, 0.3, 0.9]))
            placement.observe([said])
        else:
            placement.apply(made)
            pool = placement.pool(MODEL, Tier.BATCH)
            assert pool is not None
        most = max(one.room for one in pool)
        assert pool.most_room >= most
        if rng.random() < 0.7:
            assert pool.count_most_room() == most
