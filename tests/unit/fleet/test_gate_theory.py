"""The gate in virtual time against single-server theory, path by path.

One node with one sequence slot is a single server: rates per second, times in seconds, a job of s seconds
asks for 1,000 * s tokens. Arrivals are Poisson, service exponential, so that closed forms exist too.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass
from statistics import fmean, stdev

import pytest
from gate_world import assignment, node, open_gate, request, state

from fleet.gate import Dispatch, Lease, Started
from fleet.outcomes import TIERS, Outcome, Tier

JOBS = 6_000
TOKENS_PER_S = 1_000


@dataclass(frozen=True)
class Job:
    """One arrival."""

    at_s: float
    tokens: int
    tier: Tier


def jobs(load: float, seed: int, count: int = JOBS) -> list[Job]:
    """Return arrivals at `load` erlangs of jobs of 1 s on average, equally of each tier."""
    rng = random.Random(seed)
    at_s, made = 0.0, []
    for _ in range(count):
        at_s += rng.expovariate(load)
        made.append(Job(at_s, 1 + int(rng.expovariate(1 / TOKENS_PER_S)), rng.choice(TIERS)))
    return made


def waits_at_the_gate(
    path: list[Job],
    admission: dict[str, object],
    *,
    one_tier: bool,
    weights: tuple[int, int, int] = (70, 25, 5),
) -> list[float]:
    """Return each job's wait (s) when one slot serves what the gate starts. None is refused at the door."""
    tiers = {
        tier.value: {"queue_timeout_s": 600, "weight": weight}
        for tier, weight in zip(TIERS, weights, strict=True)
    }
    made = assignment(
        nodes=[node("n1", max_num_seqs=1, kv_capacity_tokens=10**6)],
        tiers=tiers,
        admission=admission,
        limiters={"expected_wait": "off"},
    )
    gate = open_gate(made)
    waits = [-1.0] * len(path)
    ends: list[tuple[float, int, Lease]] = []

    def run(lease: Lease, now_s: float) -> None:
        waits[int(lease.request.request_id[1:])] = lease.queued_s
        heapq.heappush(ends, (now_s + lease.tokens / TOKENS_PER_S, lease.lease_id, lease))

    def end_until(until_s: float) -> None:
        while ends and ends[0][0] <= until_s:
            now_s, _, lease = heapq.heappop(ends)
            gate.observe([state("n1", now_s)], now_s)
            gate.release(lease, prompt_tokens=0, output_tokens=0, outcome=Outcome.CLIENT_GONE, now_s=now_s)
            for event in gate.poll(now_s):
                assert isinstance(event, Started)
                run(event.lease, now_s)

    for number, job in enumerate(path):
        end_until(job.at_s)
        gate.observe([state("n1", job.at_s)], job.at_s)
        gate.poll(job.at_s)
        tier = Tier.BATCH if one_tier else job.tier
        asked = request(number, tier=tier, prompt_tokens=job.tokens, max_tokens=0)
        decision = gate.offer(asked, job.at_s)
        if isinstance(decision, Dispatch):
            run(decision.lease, job.at_s)
    end_until(float("inf"))
    assert min(waits) >= 0
    return waits


def waits_first_come(path: list[Job]) -> list[float]:
    """Return the waits of a single first-come server. Source: Lindley's recursion (1952)."""
    waits, free_at_s = [], 0.0
    for job in path:
        start_s = max(job.at_s, free_at_s)
        waits.append(start_s - job.at_s)
        free_at_s = start_s + job.tokens / TOKENS_PER_S
    return waits


def waits_shortest_first(path: list[Job]) -> list[float]:
    """Return the waits of a single server that always takes the shortest job that is there."""
    waits = [0.0] * len(path)
    there: list[tuple[int, int]] = []
    now_s, following = 0.0, 0
    for _ in path:
        if not there:
            now_s = max(now_s, path[following].at_s)
        while following < len(path) and path[following].at_s <= now_s:
            heapq.heappush(there, (path[following].tokens, following))
            following += 1
        tokens, number = heapq.heappop(there)
        waits[number] = now_s - path[number].at_s
        now_s += tokens / TOKENS_PER_S
    return waits


def test_fifo_waits_are_lindleys():
    path = jobs(0.85, seed=1)
    got = waits_at_the_gate(path, {"order": "fifo"}, one_tier=True)
    assert got == pytest.approx(waits_first_come(path), abs=1e-6)


def test_shortest_first_without_aging_waits_as_a_shortest_first_server():
    path = jobs(0.85, seed=2)
    got = waits_at_the_gate(path, {"order": "sjf_aging", "aging_rate": 0}, one_tier=True)
    want = waits_shortest_first(path)
    # keys add the arrival to size * 1000 s, so jobs within one token of each other may swap
    assert sum(got) == pytest.approx(sum(want), rel=1e-3)
    first_come = waits_first_come(path)
    # mean wait at rho 0.85: 2.36 against 5.67 first-come, a ratio of 0.416
    assert sum(got) / sum(first_come) == pytest.approx(0.416, abs=0.12)


def test_whatever_the_order_no_work_is_gained_or_lost():
    # The integral of unfinished work is the sum of S*W + S*S/2 over jobs, and the same on a path for
    # every work-conserving order without preemption, so the sum of S*W is too.
    # Source: Kleinrock, Queueing Systems vol. 2 (1976), 3.4 (conservation law)
    path = jobs(0.85, seed=3)
    got = waits_at_the_gate(path, {"order": "sjf_aging"}, one_tier=False)
    want = waits_first_come(path)
    assert sum(job.tokens * wait for job, wait in zip(path, got, strict=True)) == pytest.approx(
        sum(job.tokens * wait for job, wait in zip(path, want, strict=True)), rel=1e-9
    )


def test_a_higher_tier_waits_less_and_the_lowest_is_not_starved():
    # Cobham at rho 0.85 in three equal classes, W0 = 0.85: strict priority gives 1.19, 2.74, 13.1 s.
    # Weights lie between first-come for all (5.67) and that.
    path = jobs(0.85, seed=4)
    waits = waits_at_the_gate(path, {"order": "fifo"}, one_tier=False)
    mean = {
        tier: sum(wait for job, wait in zip(path, waits, strict=True) if job.tier is tier)
        / sum(job.tier is tier for job in path)
        for tier in TIERS
    }
    first_come = sum(waits_first_come(path)) / len(path)
    assert mean[Tier.INTERACTIVE] < mean[Tier.BATCH] < mean[Tier.BEST_EFFORT]
    assert mean[Tier.INTERACTIVE] < first_come < mean[Tier.BEST_EFFORT] < 13.1 / 5.67 * first_come * 1.2


def waits_by_priority(path: list[Job]) -> list[float]:
    """Return the waits of a single server that takes the highest tier first, first come inside it."""
    waits = [0.0] * len(path)
    there: list[tuple[int, int]] = []
    now_s, following = 0.0, 0
    for _ in path:
        if not there:
            now_s = max(now_s, path[following].at_s)
        while following < len(path) and path[following].at_s <= now_s:
            heapq.heappush(there, (TIERS.index(path[following].tier), following))
            following += 1
        _, number = heapq.heappop(there)
        waits[number] = now_s - path[number].at_s
        now_s += path[number].tokens / TOKENS_PER_S
    return waits


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Return the mean and its standard error by 20 batch means: neighbours' waits are not independent.

    Source: Law, Simulation Modeling and Analysis (5th ed., 2015), 9.5.3.
    """
    length = len(values) // 20
    means = [fmean(values[n * length : (n + 1) * length]) for n in range(20)]
    return fmean(values), stdev(means) / math.sqrt(20)


def test_at_98_to_1_two_tiers_wait_as_cobham_says():
    # lambda (0.2, 0.6), mu 1: residual work 0.8; W1 = 0.8/0.8 = 1; W2 = 0.8/(0.8 * 0.2) = 5.
    # Source: Cobham, "Priority assignment in waiting line problems" (Operations Research 2, 1954)
    rng = random.Random(1)
    at_s, path = 0.0, list[Job]()
    for _ in range(10_000):
        at_s += rng.expovariate(0.8)
        tier = Tier.INTERACTIVE if rng.random() < 0.25 else Tier.BATCH
        path.append(Job(at_s, 1 + int(rng.expovariate(1 / TOKENS_PER_S)), tier))
    got = waits_at_the_gate(path, {"order": "fifo"}, one_tier=False, weights=(98, 1, 1))
    strict = waits_by_priority(path)
    for tier, theory_s in ((Tier.INTERACTIVE, 1.0), (Tier.BATCH, 5.0)):
        mine = [wait for job, wait in zip(path, got, strict=True) if job.tier is tier]
        by_priority = [wait for job, wait in zip(path, strict, strict=True) if job.tier is tier]
        assert sum(mine) == pytest.approx(sum(by_priority), rel=0.01)  # path by path
        mean, error = mean_and_error(mine)
        assert abs(mean - theory_s) <= 3 * error


def test_shortest_first_gains_what_the_integral_says():
    # M/M/1 at rho 0.85: the integral of W0/(1 - rho(x))^2 dF is 2.3638 s against 5.6667 s first come.
    # Source: Phipps, "Machine repair as a priority waiting-line problem" (Operations Research 4, 1956)
    path = jobs(0.85, seed=6, count=10_000)
    got = waits_at_the_gate(path, {"order": "sjf_aging", "aging_rate": 0}, one_tier=True)
    mean, error = mean_and_error(got)
    assert abs(mean - 2.363773697) <= 3 * error
    first_come, first_come_error = mean_and_error(waits_first_come(path))
    assert abs(first_come - 5.0 - 2 / 3) <= 3 * first_come_error
