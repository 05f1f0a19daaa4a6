"""The rate bucket against arithmetic that anyone can do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.bucket import RateBucket


def test_burst_at_once_then_the_rate():
    # 6,000 a minute is 100 a second
    bucket = RateBucket(6_000, 500, 0.0)
    assert bucket.admits(500, 0.0)
    bucket.charge(500)
    assert not bucket.admits(1, 0.0)
    assert bucket.wait_s(50, 0.0) == pytest.approx(0.5)
    assert not bucket.admits(50, 0.499)
    assert bucket.admits(50, 0.5)


def test_a_rate_of_zero_admits_nothing_for_ever():
    bucket = RateBucket(0, 1_000, 0.0)
    assert not bucket.admits(0, 1e6)
    assert bucket.wait_s(1, 0.0) is None


def test_a_request_above_the_burst_passes_only_when_full_and_is_paid_off_first():
    # burst 100, 60 a minute = 1 a second: 300 leave a debt of 200, full again after 300 s
    bucket = RateBucket(60, 100, 0.0)
    assert bucket.admits(300, 0.0)
    bucket.charge(300)
    assert bucket.left_tokens(0.0) == -200
    assert not bucket.admits(1, 200.0)
    assert bucket.admits(1, 201.0)
    assert not bucket.admits(300, 299.0)
    assert bucket.admits(300, 300.0)


def test_a_late_refund_does_not_mint_tokens():
    bucket = RateBucket(60, 100, 0.0)
    bucket.charge(100)
    bucket.refund(100)
    bucket.refund(100)
    assert bucket.left_tokens(3600.0) == 100


def test_a_change_of_limits_mints_nothing_and_clamps_to_a_smaller_burst():
    bucket = RateBucket(60, 100, 0.0)
    bucket.charge(90)
    bucket.change(6_000, 10_000, 5.0)  # 5 s at the old rate: 10 + 5
    assert bucket.left_tokens(5.0) == 15
    bucket.change(60, 4, 5.0)
    assert bucket.left_tokens(5.0) == 4
    bucket.change(60, 100, 5.0)
    assert bucket.left_tokens(5.0) == 4


@given(level=st.integers(-10_000, 10_000), elapsed_s=st.integers(0, 100_000))
def test_going_on_from_an_earlier_level_is_as_if_the_process_had_lived_on(level: int, elapsed_s: int):
    # 60 a minute is 1 a second: the level some seconds later, never above the burst of 500
    bucket = RateBucket(60, 500, 1_000.0)
    bucket.resume(level, float(elapsed_s))
    assert bucket.left_tokens(1_000.0) == min(500, level + elapsed_s)


def test_going_on_never_raises_a_level():
    bucket = RateBucket(60, 500, 0.0)
    bucket.charge(400)
    bucket.resume(500, 3600.0)
    assert bucket.left_tokens(0.0) == 100


@given(
    rate=st.integers(1, 10**7),
    burst=st.integers(1, 10**6),
    steps=st.lists(st.tuples(st.floats(0, 30), st.integers(1, 10**6)), max_size=60),
)
def test_no_interval_admits_more_than_burst_plus_rate(
    rate: int, burst: int, steps: list[tuple[float, int]]
):
    bucket = RateBucket(rate, burst, 0.0)
    now_s = 0.0
    admitted: list[tuple[float, int]] = []
    for wait_s, tokens in steps:
        now_s += wait_s
        tokens = min(tokens, burst)
        if bucket.admits(tokens, now_s):
            bucket.charge(tokens)
            admitted.append((now_s, tokens))
    for first, (start_s, _) in enumerate(admitted):
        used = 0
        for at_s, tokens in admitted[first:]:
            used += tokens
            assert used <= burst + rate * (at_s - start_s) / 60 + 1e-3


@given(
    rate=st.one_of(st.integers(1, 10**6), st.integers(10**9, 10**15)),
    burst=st.one_of(st.integers(1, 100), st.integers(1, 10**12)),
    steps=st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(0, 10**6), st.integers(-2, 2)), max_size=40
    ),
)
def test_a_level_is_exact_to_the_nanosecond_at_which_it_is_full_and_beyond_machine_words(
    rate: int, burst: int, steps: list[tuple[int, int, int]]
):
    # Units of 1/60e9 token, as in fractions: a nanosecond at `rate` a minute brings `rate` of them.
    unit, now_ns = 60 * 10**9, 0
    bucket, level = RateBucket(rate, burst, 0.0), burst * unit
    for wait_ns, tokens, near in steps:
        missing_ns = (burst * unit - level) // rate  # at about which it is full
        elapsed_ns = max(0, missing_ns + near) if near and missing_ns < 10**14 else wait_ns
        before_ns, now_s = now_ns, (now_ns + elapsed_ns) / 10**9
        now_ns = int(now_s * 10**9)  # what a float can say
        level = min(burst * unit, level + (now_ns - before_ns) * rate)
        expected = level >= tokens * unit or level >= burst * unit
        assert bucket.admits(tokens, now_s) == expected
        assert bucket.level_tokens == level // unit
        bucket.charge(tokens)
        level -= tokens * unit
