"""Retry-After: in bounds, spread, and true to its base."""

from __future__ import annotations

import random
from statistics import fmean

import pytest
from gate_world import assignment, open_gate, request, tenant
from hypothesis import given
from hypothesis import strategies as st

from fleet.gate import Refused
from fleet.policy import RetryAfter
from fleet.retry_after import retry_after


@pytest.mark.parametrize("base_s", [0.01, 1.0, 1.4, 7.0, 60.0, 10_000.0])
def test_two_hundred_refused_clients_are_never_told_the_same(base_s: float):
    rng = random.Random(5)
    told = [retry_after(base_s, RetryAfter(), rng) for _ in range(200)]
    assert len({whole_s for whole_s, _ in told}) > 1
    assert len({milliseconds for _, milliseconds in told}) > 100
    assert max(told.count(one) for one in told) < 20


@given(
    base_s=st.floats(1e-6, 1e9),
    floor_s=st.integers(1, 3600),
    room_s=st.integers(0, 3600),
    jitter=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_it_is_a_whole_number_from_floor_to_cap(
    base_s: float, floor_s: int, room_s: int, jitter: float, seed: int
):
    bounds = RetryAfter(floor_s=floor_s, cap_s=min(3600, floor_s + room_s), jitter_ratio=jitter)
    whole_s, milliseconds = retry_after(base_s, bounds, random.Random(seed))
    assert isinstance(whole_s, int)
    assert bounds.floor_s <= whole_s <= bounds.cap_s
    assert 1000 * bounds.floor_s <= milliseconds <= 1000 * bounds.cap_s
    assert abs(1000 * whole_s - milliseconds) <= 1000


def test_it_is_uniform_around_the_base_by_the_jitter():
    rng = random.Random(5)
    told = [retry_after(20.0, RetryAfter(), rng)[1] / 1000 for _ in range(20_000)]
    assert fmean(told) == pytest.approx(20.0, rel=0.01)
    assert 10.0 <= min(told) < 10.1
    assert 29.9 < max(told) <= 30.0


@pytest.mark.parametrize(
    "limits", [{"tokens_per_minute": 0, "burst_tokens": 0}, {}], ids=["quota", "queue"]
)
def test_two_hundred_clients_refused_by_one_gate_are_told_different_times(limits: dict[str, int]):
    made = assignment({"acme": tenant(**limits)}, tiers={"interactive": {"max_queued_requests": 5}})
    gate = open_gate(made)
    told: list[tuple[int, int]] = []
    number = 0
    while len(told) < 200:
        number += 1
        decision = gate.offer(request(number), 0.0)
        if isinstance(decision, Refused):
            assert isinstance(decision.retry_after_s, int)
            assert decision.retry_after_s >= 1
            assert decision.retry_after_ms is not None
            told.append((decision.retry_after_s, decision.retry_after_ms))
    assert len({whole_s for whole_s, _ in told}) > 1
    assert max(told.count(one) for one in told) < 20
