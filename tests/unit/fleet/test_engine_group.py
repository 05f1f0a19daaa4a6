"""Engines that run together against the engine step by step: the same answers at the same instants."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.engine import Engine
from fleet.engine_group import EngineGroup, calibrated
from fleet.engine_profile import H100_70B_FP8, TINY, EngineProfile
from fleet.engine_request import EngineRequest, EventKind
from fleet.errors import Conflict, InvalidInput


@dataclass(frozen=True, slots=True)
class One:
    at_s: float
    prompt: int
    output: int
    priority: int


def poisson(
    rate_rps: float, count: int, seed: int, tokens_in: float = 500, tokens_out: float = 300
) -> list[One]:
    rng, variance = np.random.default_rng(seed), math.log1p(0.6)

    def lengths(mean: float) -> list[int]:
        drawn = mean * np.exp(math.sqrt(variance) * rng.standard_normal(count) - variance / 2)
        return [int(value) for value in np.maximum(1, np.rint(drawn))]

    at_s = np.cumsum(rng.exponential(1 / rate_rps, count)).tolist()
    priorities = rng.integers(0, 3, count).tolist()
    return [
        One(*row) for row in zip(at_s, lengths(tokens_in), lengths(tokens_out), priorities, strict=True)
    ]


def step_by_step(profile: EngineProfile, asked: list[One]) -> tuple[dict[int, tuple[float, float]], int]:
    """First and last token of each request, and the preemptions, by `fleet.engine`."""
    engine = Engine(profile)
    first: dict[int, float] = {}
    found: dict[int, tuple[float, float]] = {}

    def take(now_s: float) -> None:
        for event in engine.advance(now_s):
            if event.kind is EventKind.FIRST_OUTPUT:
                first[int(event.request_id)] = event.at_s
            else:
                assert event.output_tokens == asked[int(event.request_id)].output
                found[int(event.request_id)] = (first[int(event.request_id)], event.at_s)

    for name, one in enumerate(asked):
        take(one.at_s)
        engine.submit(EngineRequest(str(name), one.prompt, one.output, priority=one.priority), one.at_s)
    while engine.next_step_end_s is not None:
        take(engine.next_step_end_s)
    return found, engine.tally.preemptions


def together(profile: EngineProfile, asked: list[One]) -> tuple[dict[int, tuple[float, float]], int]:
    """The same by a group of one."""
    group = EngineGroup(profile, places=len(asked))
    group.add("a")
    found: dict[int, tuple[float, float]] = {}

    def take(until_s: float) -> None:
        while (ended := group.run_until(until_s)) is not None:
            for name, first_s in zip(ended.names, ended.first_s, strict=True):
                found[name] = (first_s, ended.at_s)

    for name, one in enumerate(asked):
        take(one.at_s)
        group.submit(name, "a", one.prompt, one.output, one.at_s, one.priority)
    take(math.inf)
    assert group.is_empty("a")
    assert group.state("a").kv_used_ratio == 0
    return found, group.preemptions


SMALL_KV = replace(H100_70B_FP8, num_gpu_blocks=1_500)
FCFS = replace(
    H100_70B_FP8, scheduling_policy="fcfs", num_gpu_blocks=1_200, kappa_s=1e-8, prefix_hit_ratio=0.3
)


@pytest.mark.parametrize(
    "profile", [H100_70B_FP8, SMALL_KV, FCFS, TINY], ids=["kv", "small", "fcfs", "tiny"]
)
@pytest.mark.parametrize("load", [0.3, 0.85, 1.1])
def test_every_token_time_is_that_of_the_engine_step_by_step(profile: EngineProfile, load: float) -> None:
    # 3 requests/s is what the large profile serves; the tiny one about 11 of its own sizes.
    is_tiny = profile is TINY
    asked = poisson(load * (11 if is_tiny else 3), 500, 7, *((60, 20) if is_tiny else (500, 300)))
    exact, preempted = step_by_step(profile, asked)
    found, preempted_here = together(profile, asked)
    assert found == exact  # not one bit differs, so neither does any percentile
    assert preempted_here == preempted
    assert len(found) == len(asked)
    if profile in (SMALL_KV, FCFS) and load > 1:
        assert preempted > 50  # the case is there


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 0.3), st.integers(1, 90), st.integers(1, 60), st.integers(0, 2)),
        min_size=1,
        max_size=30,
    ),
    st.integers(11, 60),
    st.sampled_from(["fcfs", "priority"]),
)
def test_tokens_are_conserved_whatever_comes(
    rows: list[tuple[float, int, int, int]], blocks: int, policy: str
) -> None:
    profile = replace(TINY, num_gpu_blocks=blocks, scheduling_policy=policy, max_num_batched_tokens=32)
    gaps, at_s, asked = iter(rows), 0.0, list[One]()
    for gap_s, prompt, output, priority in gaps:
        at_s += gap_s
        asked.append(One(at_s, prompt, output, priority))
    group = EngineGroup(profile, places=len(asked))
    group.add("a")
    left, answered = set(range(len(asked))), 0

    def take(until_s: float) -> None:
        nonlocal answered
        while (ended := group.run_until(until_s)) is not None:
            assert ended.at_s <= until_s
            for name, first_s in zip(ended.names, ended.first_s, strict=True):
                left.remove(name)  # each ends once
                answered += asked[name].output
                assert asked[name].at_s < first_s <= ended.at_s

    inside: dict[int, int] = {}
    for name, one in enumerate(asked):
        take(one.at_s)
        for mine in inside.keys() & left:
            assert 0 <= group.produced("a", inside[mine]) < asked[mine].output
        inside[name] = group.submit(name, "a", one.prompt, one.output, one.at_s, one.priority)
        state = group.state("a")
        assert state.running + state.waiting == len(inside.keys() & left)
        assert state.running <= profile.max_num_seqs
    take(math.inf)
    assert not left
    assert answered == sum(one.output for one in asked)
    assert group.state("a").kv_used_ratio == 0
    assert together(profile, asked)[0] == step_by_step(profile, asked)[0]


@pytest.mark.parametrize("slots", [16, 36, 64])
def test_a_calibrated_engine_that_is_never_idle_serves_the_stated_rate(slots: int) -> None:
    profile = calibrated(replace(H100_70B_FP8, max_num_seqs=slots), 2.0, 500, 300, 0.6)
    asked = [replace(one, at_s=0.0) for one in poisson(1, 4_000, 3)]
    mean_out = sum(one.output for one in asked) / len(asked)
    found, preempted = together(profile, asked)
    last_s = sorted(end_s for _, end_s in found.values())
    # From a tenth to nine tenths of the answers every slot is taken. A mean of 3,200 lengths of cv^2 0.6
    # has a standard error of 1.4 %.
    rate = 0.8 * len(asked) / (last_s[int(0.9 * len(asked))] - last_s[int(0.1 * len(asked))])
    assert rate * mean_out / 300 == pytest.approx(2.0, rel=0.04)
    assert preempted == 0


def test_engines_are_apart_and_one_that_goes_loses_what_it_holds() -> None:
    group = EngineGroup(TINY)
    for name in "abcdefg":  # more than there is room for at first
        group.add(name)
    for request, name in enumerate("aabg"):
        group.submit(request, name, 10, 5, 0.0)
    assert group.remove("a") == (0, 1)
    with pytest.raises(Conflict):
        group.add("b")
    ended = [group.run_until(math.inf), group.run_until(math.inf)]
    assert {name for one in ended if one is not None for name in one.names} == {2, 3}
    assert group.run_until(math.inf) is None
    group.add("a")
    assert group.is_empty("a")


def test_what_an_engine_cannot_hold_is_refused() -> None:
    group = EngineGroup(TINY)
    group.add("a")
    for prompt, output in ((0, 1), (1, 0), (1_000, 25)):
        with pytest.raises(InvalidInput, match="do not fit"):
            group.submit(1, "a", prompt, output, 0.0)
    for request in range(TINY.max_num_seqs):
        group.submit(request, "a", 10, 10, 0.0)
    with pytest.raises(Conflict, match="4 requests"):
        group.submit(9, "a", 10, 10, 0.0)
    with pytest.raises(InvalidInput, match="continuous"):
        EngineGroup(replace(TINY, batching="static"))
    with pytest.raises(InvalidInput, match="mu"):
        calibrated(TINY, 0.0, 500, 300)
