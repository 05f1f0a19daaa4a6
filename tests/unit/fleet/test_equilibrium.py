"""A queue that leaves equilibrium is told from one that is merely noisy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.equilibrium import KINDS, delay_min, flat_day
from fleet.equilibrium import Balance, Minute, assess_equilibrium


def minutes(p99: list[float], p50: list[float] | None = None, **changes) -> list[Minute]:
    middle = p50 or [0.4] * len(p99)
    return [
        Minute(at_min=float(i), p50_s=a, p99_s=b, **changes)
        for i, (a, b) in enumerate(zip(middle, p99, strict=True))
    ]


def raised(found) -> set[str]:
    return {signal.name for signal in found.signals if signal.is_raised}


def test_p99_doubling_every_15_minutes_under_a_still_p50_is_reported_with_its_time():
    found = assess_equilibrium(minutes([2 * 2 ** (i / 15) for i in range(31)]))
    assert raised(found) == {"trend"}
    assert found.p99_doubling_min == pytest.approx(15, rel=1e-6)
    assert "every 15 minutes" in found.signals[2].evidence


def test_p99_that_rises_with_p50_is_load_not_instability():
    growth = [2 ** (i / 15) for i in range(31)]
    found = assess_equilibrium(minutes([2 * g for g in growth], [0.4 * g for g in growth]))
    assert raised(found) == set()


def test_it_takes_two_signals_to_leave_equilibrium():
    # 13 minutes of a rise: 2^(8/15) = 1.4 between the first and the last third is a vote, no certainty
    growing = [2 * 2 ** (i / 15) for i in range(13)]
    # 400 in, 300 out: z = 100 / sqrt(700) = 3.8 in each minute
    found = assess_equilibrium(minutes(growing, arrivals=400, departures=300))
    assert raised(found) == {"flow", "trend"}
    assert found.is_left
    assert found.balance is Balance.UNSTABLE
    assert not assess_equilibrium(minutes(growing)).is_left


def test_flow_names_filling_and_draining():
    flat = [2.0] * 20
    assert assess_equilibrium(minutes(flat, arrivals=400, departures=300)).balance is Balance.FILLING
    assert assess_equilibrium(minutes(flat, arrivals=300, departures=400)).balance is Balance.DRAINING
    # 330 against 300: z = 30 / sqrt(630) = 1.2, Poisson noise
    assert assess_equilibrium(minutes(flat, arrivals=330, departures=300)).balance is Balance.EQUILIBRIUM


def test_age_is_the_part_of_l_that_completions_do_not_explain():
    # 5/s leaving after 6 s explain 30 of 40 places: 25 % are growing old
    held = {"arrivals": 300, "departures": 300, "mean_in_system": 40.0, "time_mean_s": 6.0}
    found = assess_equilibrium(minutes([2.0] * 20, **held))
    assert raised(found) == {"age"}
    few = held | {"departures": 30, "arrivals": 30, "mean_in_system": 4.0}
    # 0.5/s of 6 s explain 3 of 4 places; of 30 requests 3 / sqrt(30) = 55 % is chance
    assert raised(assess_equilibrium(minutes([2.0] * 20, **few))) == set()
    held["mean_in_system"] = 31.0  # 3 %
    assert raised(assess_equilibrium(minutes([2.0] * 20, **held))) == set()


def test_an_empty_system_has_no_ages_and_one_that_nobody_leaves_only_ages():
    empty = {"arrivals": 0, "departures": 0, "mean_in_system": 0.0}
    age = assess_equilibrium(minutes([2.0] * 3, **empty)).signals[1]
    assert age.is_raised is False
    # nobody left: L is all age, but no request ended to judge by: 3 / sqrt(1) is never passed
    stuck = {"arrivals": 5, "departures": 0, "mean_in_system": 9.0}
    assert assess_equilibrium(minutes([2.0] * 3, **stuck)).signals[1].is_raised is False


def test_a_backlog_is_more_than_can_start_in_time():
    # 1.5 s at 20/s: 30 may wait
    assert "backlog" in raised(assess_equilibrium([], waiting=31, mu=20.0))
    assert "backlog" not in raised(assess_equilibrium([], waiting=30, mu=20.0))


def test_a_short_queue_alone_does_not_prove_balance():
    assert assess_equilibrium([], waiting=0, mu=20.0).balance is None
    calm = minutes([2.0] * 2, arrivals=300, departures=300)
    assert assess_equilibrium(calm, waiting=0, mu=20.0).balance is Balance.EQUILIBRIUM


def test_rho_above_one_at_its_low_end_is_unstable_at_once_and_nothing_known_is_none():
    assert assess_equilibrium([], rho_low=1.01).balance is Balance.UNSTABLE
    assert assess_equilibrium([], rho_low=0.99).balance is None
    assert assess_equilibrium([]).balance is None


def test_a_doubling_of_requests_tails_is_certain_within_30_minutes_and_a_flat_day_is_not():
    """The benchmark's own days, made of requests counted into the gateway's buckets, with 15 % noise."""
    rng = np.random.default_rng(17)
    delays = [delay_min(rng, KINDS[0]) for _ in range(12)]
    assert all(delay is not None for delay in delays), delays
    # the growth between thirds of 30 minutes passes 1.8 after 20 min x log2(1.8) / 15 min = 17 minutes
    assert min(delay for delay in delays if delay is not None) >= 12
    assert [flat_day(rng, KINDS[0])[0] for _ in range(4)] == [False] * 4


def test_one_look_that_is_significant_is_a_vote_and_no_alarm():
    # 30 % growth in 30 minutes without noise: p is tiny, but the tail has not grown by 1.8
    found = assess_equilibrium(minutes([2 * 2 ** (i / 59) for i in range(30)]))
    assert raised(found) == {"trend"}
    assert found.balance is Balance.EQUILIBRIUM
    assert found.p99_doubling_min is None
    assert "not yet certain" in found.signals[2].evidence


def test_a_doubling_in_50_minutes_is_certain_over_a_longer_window():
    rising = minutes([2 * 2 ** (i / 50) for i in range(100)])
    found = assess_equilibrium(rising)
    assert found.p99_doubling_min == pytest.approx(50, rel=1e-6)
    # 20 minutes of it are 2^(20/50) = 1.3 between thirds of half an hour: not yet
    assert assess_equilibrium(rising[:31]).p99_doubling_min is None


def test_growth_that_is_over_is_not_called_for_ever():
    risen = [2 * 2 ** (min(i, 40) / 15) for i in range(140)]
    assert assess_equilibrium(minutes(risen[:41])).balance is Balance.UNSTABLE
    assert assess_equilibrium(minutes(risen)).balance is Balance.EQUILIBRIUM


def test_a_doubling_that_nobody_has_measured_for_minutes_is_not_the_present():
    risen = minutes([2 * 2 ** (i / 15) for i in range(31)])
    quiet = [Minute(at_min=31.0 + i, arrivals=3, departures=3) for i in range(10)]  # too few for a p99
    assert assess_equilibrium(risen + quiet[:4]).balance is Balance.UNSTABLE
    found = assess_equilibrium(risen + quiet)
    assert found.balance is Balance.EQUILIBRIUM
    assert found.signals[2].is_raised is None


def test_time_to_first_token_that_doubles_under_long_answers_is_seen():
    rows = [
        replace(m, ttft_p50_s=0.2, ttft_p99_s=0.5 * 2 ** (i / 15))
        for i, m in enumerate(minutes([60.0] * 40, [20.0] * 40))
    ]
    found = assess_equilibrium(rows)
    assert found.balance is Balance.UNSTABLE
    assert "p99 of time to first token doubles every 15 minutes" in found.signals[2].evidence


def test_flow_and_ages_with_room_to_spare_are_a_queue_on_its_way_to_its_next_level():
    # 400 in, 300 out, 400 / 60 x 6 s explain 30 of 60 places
    rising = {"arrivals": 400, "departures": 300, "mean_in_system": 60.0, "time_mean_s": 6.0}
    rows = minutes([2.0] * 20, **rising)
    assert assess_equilibrium(rows, rho_low=0.5, rho_high=0.8).balance is Balance.FILLING
    assert assess_equilibrium(rows, rho_low=0.9, rho_high=1.1).balance is Balance.UNSTABLE
    assert assess_equilibrium(rows).balance is Balance.UNSTABLE  # nobody knows how far it may fill
