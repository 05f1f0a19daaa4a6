"""One rule for standing still: what makes an engine frozen, stuck, quiet; and who writes a page."""

from __future__ import annotations

import pytest

from fleet.lifesigns import (
    FROZEN_AFTER_S,
    GAUGE_AFTER_S,
    GAUGE_PAGES_MIN,
    Life,
    Pulses,
    Writer,
    is_other_process,
    node_is_frozen,
    two_writers,
)
from fleet.readings import EngineReading

PERIOD_S = 10.0


def engine(
    *,
    running: int | None = 0,
    waiting: int | None = 0,
    kv: float | None = 0.0,
    tokens: int = 0,
    done: int = 0,
) -> EngineReading:
    return EngineReading(
        "0",
        "m",
        running=running,
        waiting=waiting,
        kv_used_ratio=kv,
        generation_tokens=tokens,
        finished={"stop": done},
    )


def lived(*pages: EngineReading, period_s: float = PERIOD_S) -> Life:
    pulses = Pulses()
    for index, page in enumerate(pages):
        pulses.add(page, index * period_s)
    return pulses.life()


def test_three_equal_pages_over_fifteen_seconds_with_requests_running_are_frozen():
    busy = engine(running=2, tokens=100)
    assert lived(busy, busy) is Life.UNKNOWN
    assert lived(busy, busy, busy) is Life.FROZEN  # 20 s
    assert lived(*[busy] * 3, period_s=5.0) is Life.UNKNOWN  # 10 s: shorter than FROZEN_AFTER_S
    assert lived(*[busy] * 4, period_s=5.0) is Life.FROZEN  # 15 s


def test_a_gateway_that_polls_twice_a_second_waits_as_long_as_a_scraper():
    polls = int(FROZEN_AFTER_S / 0.5)  # the last of them is 0.5 s short of FROZEN_AFTER_S
    busy = engine(running=2, tokens=100)
    assert lived(*[busy] * polls, period_s=0.5) is Life.UNKNOWN
    assert lived(*[busy] * (polls + 1), period_s=0.5) is Life.FROZEN


def test_a_long_prefill_moves_the_kv_cache_and_is_not_frozen():
    pages = [engine(running=1, kv=0.1 * i) for i in range(1, 6)]
    assert lived(*pages) is Life.UNKNOWN


def test_waiting_without_running_is_stuck_and_neither_is_quiet():
    assert lived(*[engine(waiting=6)] * 3) is Life.STUCK
    assert lived(*[engine()] * 3) is Life.QUIET


def test_gauges_that_are_not_said_prove_nothing():
    assert lived(*[engine(running=None, waiting=None)] * 5) is Life.UNKNOWN


def test_a_moving_counter_is_work_whatever_the_gauges_say():
    assert lived(engine(running=2), engine(running=2), engine(running=2, tokens=1)) is Life.WORKING


def test_a_node_is_frozen_when_an_engine_is_and_none_works():
    assert node_is_frozen([Life.FROZEN, Life.QUIET])
    assert not node_is_frozen([Life.FROZEN, Life.WORKING])
    assert not node_is_frozen([Life.QUIET, Life.UNKNOWN])


def test_gauges_that_repeat_to_the_last_digit_while_requests_finish_stand_still():
    pulses = Pulses()
    pages = GAUGE_PAGES_MIN + 1
    assert (pages - 1) * PERIOD_S >= GAUGE_AFTER_S
    for index in range(pages):
        pulses.add(engine(running=5, kv=0.3141592, tokens=100 * index, done=2 * index), index * PERIOD_S)
    assert pulses.gauges_stand_still()
    pulses.add(engine(running=5, kv=0.3141593, tokens=9_999, done=99), pages * PERIOD_S)
    assert not pulses.gauges_stand_still()


@pytest.mark.parametrize(
    "page",
    [
        engine(running=0, kv=0.0),  # short requests between the pages: 0 every time, and right
        engine(running=5, kv=0.0),  # told apart: the KV gauge is not wired, see inconsistent gauges
        engine(running=5, kv=None),
    ],
)
def test_gauges_at_rest_or_unsaid_do_not_stand_still(page: EngineReading):
    pulses = Pulses()
    for index in range(20):
        moved = engine(running=page.running, kv=page.kv_used_ratio, tokens=100 * index, done=2 * index)
        pulses.add(moved, index * PERIOD_S)
    assert not pulses.gauges_stand_still()


def test_one_long_request_with_constant_gauges_is_no_standstill():
    pulses = Pulses()
    for index in range(20):  # tokens come, nothing finishes: too little to judge
        pulses.add(engine(running=1, kv=0.5, tokens=100 * index), index * PERIOD_S)
    assert not pulses.gauges_stand_still()


# start times after 2020, in Unix seconds
A, B = 1_790_000_000.0, 1_790_000_500.0


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        ([A, B], False),  # a restart
        ([A, B, B, B], False),
        ([A, B, A], True),  # a process cannot come back
        ([A, A, B, B, A], True),
        ([A, B, B + 60, B + 120], False),  # a crash loop
    ],
)
def test_a_start_time_that_comes_back_is_a_second_process(starts: list[float], expected: bool):
    assert two_writers([Writer(start, 10) for start in starts]) is expected


def test_a_process_that_ran_before_the_last_page_was_read_is_another_one():
    old, new = Writer(A, 500), Writer(B, 900)
    assert not is_other_process(old, new, read_at_s=B - 5.0)  # began after the last page: a restart
    assert is_other_process(old, new, read_at_s=B + 3600.0)  # ran for an hour already when it was read
    assert not is_other_process(old, new, read_at_s=B + 60.0)  # a clock that is a minute apart
    assert is_other_process(new, old)  # began before the one before
    assert not is_other_process(Writer(None, 5), new)
    assert not is_other_process(Writer(1_000.0, 5), Writer(2_000.0, 5), read_at_s=B)  # simulated clocks
