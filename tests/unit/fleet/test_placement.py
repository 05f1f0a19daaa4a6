"""Which node a request goes to."""

from __future__ import annotations

from collections import Counter

import pytest
from gate_world import assignment, node, open_gate, request, state

from fleet.gate import Dispatch, Gate, Queued
from fleet.outcomes import Tier
from fleet.placement import affinity, hash_of


def sent_to(gate: Gate, number: int, **asked: object) -> str:
    """Return the node a request was sent to."""
    decision = gate.offer(request(number, **asked), 0.0)
    assert isinstance(decision, Dispatch)
    return decision.node


def test_least_loaded_spreads_evenly_and_by_capacity():
    # n2 is twice as large: of 30 requests it carries 20
    made = assignment(nodes=[node("n1"), node("n2", kv_capacity_tokens=200_000)])
    gate = open_gate(made)
    assert Counter(sent_to(gate, n) for n in range(30)) == {"n1": 10, "n2": 20}


def test_requests_of_others_count_as_load():
    gate = open_gate(assignment(nodes=[node("n1"), node("n2")]))
    gate.observe([state("n1", 0.1, running=20, kv_used_ratio=0.2)], 0.1)
    assert Counter(sent_to(gate, n) for n in range(20)) == {"n2": 20}


def test_kv_room_takes_the_node_with_most_free_tokens():
    made = assignment(nodes=[node("n1"), node("n2")], routing={"strategy": "kv_room"})
    gate = open_gate(made)
    gate.observe([state("n1", 0.1, kv_used_ratio=0.05), state("n2", 0.1, running=9)], 0.1)
    # n1 has 80,000 free, n2 85,000: five go to n2, then they level
    assert [sent_to(gate, n) for n in range(5)] == ["n2"] * 5


@pytest.mark.parametrize(
    ("tier", "order"),
    [(Tier.BATCH, ["s1", "r1", "d1"]), (Tier.INTERACTIVE, ["r1", "d1", "s1"])],
)
def test_cost_aware_sends_batch_to_spot_first_and_interactive_last(tier: Tier, order: list[str]):
    nodes = [
        node("d1", price_class="on_demand"),
        node("r1", price_class="reserved"),
        node("s1", price_class="spot"),
    ]
    routing = {"strategy": "cost_aware", "spot_tiers": ["interactive", "batch"]}
    gate = open_gate(assignment(nodes=nodes, routing=routing))
    sent = [sent_to(gate, n, tier=tier) for n in range(3 * 85)]
    assert sent == [name for name in order for _ in range(85)]


@pytest.mark.parametrize("strategy", ["least_loaded", "kv_room", "cost_aware"])
def test_interactive_takes_spot_only_when_no_guaranteed_node_has_room(strategy: str):
    nodes = [node("s1", price_class="spot"), node("n1")]
    routing = {"strategy": strategy, "spot_tiers": ["interactive"]}
    gate = open_gate(assignment(nodes=nodes, routing=routing))
    assert [sent_to(gate, n) for n in range(86)] == ["n1"] * 85 + ["s1"]


def test_one_prefix_stays_on_one_node_until_it_is_hot():
    nodes = [node(f"n{n}") for n in range(4)]
    gate = open_gate(assignment(nodes=nodes, routing={"prefix_affinity": True}))
    home = max((f"n{n}" for n in range(4)), key=lambda name: affinity(hash_of("p"), hash_of(name)))
    assert sent_to(gate, 0, prefix_key="p") == home
    sent = Counter(sent_to(gate, n, prefix_key="p") for n in range(1, 100))
    assert len(sent) == 4
    assert sent[home] <= 1.25 * 25 + 1


def test_prefixes_spread_over_the_nodes():
    names = [f"n{n}" for n in range(8)]
    homes = Counter(
        max(names, key=lambda name: affinity(hash_of(f"p{n}"), hash_of(name))) for n in range(8_000)
    )
    # 1,000 each; standard deviation sqrt(8000 / 8 * 7 / 8) = 29.6
    assert all(abs(count - 1_000) < 5 * 29.6 for count in homes.values())


def test_a_node_that_failed_the_request_is_used_only_when_no_other_has_room():
    gate = open_gate(assignment(nodes=[node("n1"), node("n2")]))
    sent = [sent_to(gate, n, avoid=("n1",)) for n in range(86)]
    assert sent == ["n2"] * 85 + ["n1"]


def test_a_draining_node_takes_nothing_new():
    gate = open_gate(assignment(nodes=[node("n1", draining=True), node("n2")]))
    decisions = [gate.offer(request(n), 0.0) for n in range(86)]
    assert {one.node for one in decisions if isinstance(one, Dispatch)} == {"n2"}
    assert isinstance(decisions[-1], Queued)


def test_gateways_do_not_all_open_on_the_same_node():
    nodes = [node(f"n{n}") for n in range(6)]
    first: set[str] = set()
    for number in range(12):
        made = assignment(nodes=nodes).model_copy(update={"gateway": f"gw{number}"})
        first.add(sent_to(open_gate(made), 0))
    assert len(first) > 1
