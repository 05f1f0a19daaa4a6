"""Prefill phases book room on prefill nodes and give it back; roles of nodes."""

from __future__ import annotations

import pytest
from gate_world import MODEL, assignment, node, open_gate, request, state
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fleet.gate import Dispatch, Gate, Refused
from fleet.messages import NodeTarget
from fleet.outcomes import Outcome, Tier
from fleet.phases import Phase

NODES = [node("p1", role="prefill"), node("p2", role="prefill"), node("d1", role="decode")]


def booked(gate: Gate) -> dict[str, int]:
    return {name: use.tokens for name, use in gate.snapshot(0.0).nodes.items() if use.tokens}


def test_requests_go_to_decode_nodes_and_prompts_to_prefill_nodes():
    gate = open_gate(assignment(nodes=NODES))
    decision = gate.offer(request(), 0.0)
    assert isinstance(decision, Dispatch)
    assert decision.node == "d1"
    phases = [gate.phases.begin(MODEL, Tier.INTERACTIVE, 100) for _ in range(2)]
    assert gate.phases.starts(0.0) == phases
    assert {phase.node for phase in phases} == {"p1", "p2"}
    assert booked(gate) == {"p1": 100, "p2": 100, "d1": 1_000}
    for phase in phases:
        gate.phases.end(phase)
        gate.phases.end(phase)
    assert booked(gate) == {"d1": 1_000}


def test_prefill_nodes_alone_serve_nobody():
    decision = open_gate(assignment(nodes=NODES[:2])).offer(request(), 0.0)
    assert isinstance(decision, Refused)
    assert decision.outcome is Outcome.NO_NODES


def test_a_prompt_is_not_passed_by_smaller_ones():
    gate = open_gate(assignment(nodes=NODES[1:]))  # p2 holds 85,000 tokens
    first, large, small = (gate.phases.begin(MODEL, Tier.BATCH, size) for size in (50_000, 40_000, 10))
    assert gate.phases.starts(0.0) == [first]
    gate.phases.end(first)
    assert gate.phases.starts(0.0) == [large, small]


def test_a_node_that_had_the_prompt_is_not_tried_again():
    gate = open_gate(assignment(nodes=NODES))
    phase = gate.phases.begin(MODEL, Tier.BATCH, 10, ("p1", "p2"))
    assert not gate.phases.could_start(phase, 0.0)
    assert gate.phases.starts(0.0) == []
    gate.phases.end(phase)
    assert gate.phases.waiting == 0


def test_who_waits_for_one_node_keeps_nobody_from_the_node_it_avoids():
    gate = open_gate(assignment(nodes=NODES))
    held = gate.phases.begin(MODEL, Tier.BATCH, 80_000, ("p1",))
    assert gate.phases.starts(0.0) == [held]  # at p2
    again = gate.phases.begin(MODEL, Tier.BATCH, 30_000, ("p1",))  # p1 broke off: waits for p2
    large, small = (gate.phases.begin(MODEL, Tier.BATCH, size) for size in (60_000, 10))
    assert gate.phases.starts(0.0) == [large, small]
    assert (large.node, small.node) == ("p1", "p1")  # the 5,000 left at p2 are kept for it
    gate.phases.end(held)
    assert gate.phases.starts(0.0) == [again]
    assert again.node == "p2"


def test_a_prompt_larger_than_every_prefill_node_could_not_start():
    gate = open_gate(assignment(nodes=NODES))
    assert gate.phases.could_start(gate.phases.begin(MODEL, Tier.BATCH, 85_000), 0.0)
    assert not gate.phases.could_start(gate.phases.begin(MODEL, Tier.BATCH, 85_001), 0.0)


def test_a_prefill_node_that_leaves_keeps_its_phase_until_it_ends():
    gate = open_gate(assignment(nodes=NODES))
    phase = gate.phases.begin(MODEL, Tier.BATCH, 10)
    gate.phases.starts(0.0)
    gate.apply(assignment(nodes=NODES[2:], generation=2), 1.0)
    assert phase.node in gate.snapshot(1.0).nodes
    gate.phases.end(phase)
    assert set(gate.snapshot(1.0).nodes) == {"d1"}


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(st.tuples(st.booleans(), st.integers(1, 60_000), st.integers(0, 30)), max_size=60))
def test_whatever_comes_and_ends_room_is_never_exceeded_and_all_comes_back(
    steps: list[tuple[bool, int, int]],
):
    gate = open_gate(assignment(nodes=NODES))
    live: list[Phase] = []
    for begins, tokens, place in steps:
        if begins:
            live.append(gate.phases.begin(MODEL, Tier.BATCH, tokens))
        elif live:
            gate.phases.end(live.pop(place % len(live)))
        gate.observe([state(name, 0.0) for name in ("p1", "p2")], 0.0)
        gate.phases.starts(0.0)
        held = booked(gate)
        assert all(tokens <= 85_000 for tokens in held.values())
        assert sum(held.values()) == sum(phase.tokens for phase in live if phase.node is not None)
    for phase in live:
        gate.phases.end(phase)
    assert booked(gate) == {}
    assert (gate.phases.waiting, gate.phases.running) == (0, 0)


def test_a_role_is_said_only_where_there_is_one():
    plain, split = (
        NodeTarget.model_validate(node("n1")),
        NodeTarget.model_validate(node("n1", role="decode")),
    )
    assert "role" not in plain.model_dump(mode="json")
    assert split.model_dump(mode="json")["role"] == "decode"
    assert NodeTarget.model_validate(split.model_dump(mode="json")) == split
    with pytest.raises(ValidationError):
        NodeTarget.model_validate(node("n1", role="both"))
