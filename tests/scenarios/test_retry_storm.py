"""A retry storm: five times what engines can carry, from clients that ignore what they are told.

Virtual time, the real gate, meter and engines (`benchmarks.storm`). Public incidents of the kind: services
that stay down after the cause is gone, because all they do is work that nobody waits for any more
(Bronson et al., "Metastable failures in distributed systems", HotOS 2021).
"""

from __future__ import annotations

import pytest

from benchmarks.storm import QUEUE_REQUESTS, QUEUE_TIMEOUT_S, StormResult, capacity_rps, sweep

LOADS = (1.0, 2.0, 3.0, 5.0)


@pytest.fixture(scope="module")
def guarded() -> list[StormResult]:
    return sweep(LOADS, seconds=30.0)


def test_goodput_at_five_times_the_load_is_nine_tenths_of_its_peak(guarded: list[StormResult]) -> None:
    peak = max(result.goodput_rps for result in guarded)
    assert peak > 0.8 * capacity_rps(2)  # and the peak is what the engines can carry
    assert guarded[-1].load == 5.0
    assert guarded[-1].goodput_rps >= 0.9 * peak


def test_queues_stay_within_their_bounds_in_number_and_in_time(guarded: list[StormResult]) -> None:
    for result in guarded:
        assert 0 < result.longest_queue <= QUEUE_REQUESTS
        assert result.longest_wait_s < QUEUE_TIMEOUT_S


def test_the_meter_counts_attempts_per_original_as_the_clients_do(guarded: list[StormResult]) -> None:
    storm = guarded[-1]
    assert storm.attempts_per_original > 4.0  # refused four times of five, up to four more tries
    for result in guarded:
        assert result.counted_repeats == result.attempts - result.originals


def test_without_bounds_deadline_and_node_budgets_the_same_storm_ends_in_collapse() -> None:
    results = sweep((1.0, 5.0), is_open=True, seconds=15.0)
    storm = results[-1]
    assert storm.goodput_rps < 0.9 * max(result.goodput_rps for result in results)
    assert storm.goodput_rps < 0.5 * capacity_rps(2)
    assert storm.hung_up > storm.answered  # engines work for clients that have gone
    assert storm.counted_repeats == storm.attempts - storm.originals  # and the meter still says it
