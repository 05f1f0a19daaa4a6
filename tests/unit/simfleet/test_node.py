"""A node in manual time: faults, choices, and what the front end hides from the engine."""

import orjson
import pytest

from fleet.clock import ManualClock
from fleet.engine_profile import profile_named
from fleet.errors import InvalidInput
from simfleet.faults import FaultKind, parse_fault
from simfleet.node import Answer, SimNode
from simfleet.openai_api import parse_call

TINY = profile_named("tiny")


def call(**body):
    full = {"prompt": [1, 2, 3, 4], "max_tokens": 50, "ignore_eos": True} | body
    return parse_call(orjson.dumps(full), is_chat=False, profile=TINY, model="tiny")


@pytest.fixture
def node(clock: ManualClock) -> SimNode:
    return SimNode("node-01", TINY, clock, seed=1)


def run(node: SimNode, clock: ManualClock, seconds: float) -> None:
    for _ in range(round(seconds / 0.05)):
        clock.advance(0.05)
        node.tick()


def test_an_answer_fills_up_and_ends(node, clock):
    # 4 ms + 4 * 5 us prefill, then 49 steps of 4.1 ms: 205 ms
    answer = node.start(call())
    run(node, clock, 0.15)
    assert not answer.is_over
    run(node, clock, 0.10)
    assert answer.is_over
    assert (answer.produced, answer.reasons) == ([50], ["length"])


def test_five_choices_are_five_sequences_and_one_request(node, clock):
    node.start(call(n=5, max_tokens=7))
    run(node, clock, 5)
    reading = node.engine.reading()
    assert sum(reading.finished.values()) == 5
    assert reading.prompt_tokens == 20
    assert (reading.histograms["params_n"].count, reading.histograms["params_n"].sum) == (1, 5)


def test_a_stream_gets_its_tokens_in_groups_and_loses_none(node, clock):
    answer = node.start(call(stream=True, max_tokens=400))
    seen = [0]
    while not answer.is_over:
        run(node, clock, 0.05)
        if answer.produced[0] != seen[-1]:
            seen.append(answer.produced[0])
    assert seen[1] == 1  # the first token at once
    assert seen[-1] == 400
    assert len(seen) < 20  # 1.64 s of decoding in groups of 250 ms, not 400 writes


def test_a_frozen_node_stands_still_and_later_goes_on(node, clock):
    first = node.start(call(max_tokens=400))
    run(node, clock, 0.5)
    node.freeze()
    before = node.engine.reading()
    late = node.start(call())
    run(node, clock, 30)
    assert node.engine.reading() == before  # not even `waiting` moves: the front end holds the late one
    assert before.running == 1
    node.unfreeze()
    run(node, clock, 3)
    assert first.is_over
    assert late.is_over
    itl = node.engine.reading().histograms["itl_s"]
    assert itl.sum == pytest.approx(399 * 0.0041 + 30 + 49 * 0.0041, rel=0.02)  # the gap is in one token


def test_a_client_that_leaves_a_frozen_node_is_dropped_when_it_thaws(node, clock):
    inside = node.start(call(max_tokens=400))
    run(node, clock, 0.1)
    node.freeze()
    outside = node.start(call())
    node.abort(inside)
    node.abort(outside)
    assert node.engine.running == 1
    node.unfreeze()
    assert (node.engine.running, node.engine.waiting) == (0, 0)


def test_a_restart_begins_at_zero_with_a_new_start_time_and_tells_those_who_wait(node, clock):
    answer: Answer = node.start(call())
    run(node, clock, 0.1)
    born = node.started_at_s
    node.restart()
    assert answer.is_gone
    assert node.engine.reading().generation_tokens == 0
    assert node.started_at_s == pytest.approx(born + 0.1)


def test_kv_shortage_preempts(node, clock):
    for _ in range(4):
        node.start(call(prompt=list(range(300)), max_tokens=300))
    run(node, clock, 0.2)
    node.take_kv_blocks(0.9)  # 51 of 512 blocks stay: 816 tokens, of 1,200 resident
    run(node, clock, 1)
    assert node.engine.tally.preemptions > 0
    node.take_kv_blocks(0)
    run(node, clock, 10)
    assert node.engine.reading().finished["length"] == 4


def test_drawn_lengths_have_the_profiles_mean_and_repeat_with_the_seed(clock):
    def lengths(seed: int) -> list[int]:
        node = SimNode("node-01", TINY, clock, seed=seed)
        drawn = call(ignore_eos=False)
        return [node._output_tokens(drawn, 1000) for _ in range(4000)]

    assert lengths(1) == lengths(1)
    assert lengths(1) != lengths(2)
    # mean 60, cv 0.8: standard error 60 * 0.8 / sqrt(4000) = 0.76
    assert sum(lengths(1)) / 4000 == pytest.approx(60, abs=3)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], None),
        ({"kind": "explode"}, "kind"),
        ({"kind": "freeze", "forever": True}, "forever"),
        ({"kind": "kv_shortage", "ratio": 2}, "ratio"),
        ({"kind": "freeze", "for_s": "long"}, "for_s"),
        ({"kind": "slow_metrics", "delay_s": -1}, "delay_s"),
    ],
)
def test_orders_that_make_no_sense_are_refused_with_the_field(body, field):
    with pytest.raises(InvalidInput) as caught:
        parse_fault(body)
    assert caught.value.field == field


def test_every_fault_can_be_ordered():
    assert {parse_fault({"kind": kind.value}).kind for kind in FaultKind} == set(FaultKind)
