"""Replays through the real gate: conservation, quotas, exact engine times, and queueing theory."""

from __future__ import annotations

import math
import random
from collections import Counter
from heapq import heappop, heappush
from typing import Any

import pytest

from fleet.engine_profile import EngineProfile
from fleet.errors import InvalidInput
from fleet.gate_replay import PROGRESS_EVERY, Arrival, ReplayResult, replay
from fleet.offers import Request
from fleet.outcomes import SHED, Outcome, Tier
from fleet.policy import Policy, parse
from fleet.queueing import calculate
from fleet.replay_outcomes import (
    Objectives,
    by_tenant,
    by_tenant_and_tier,
    by_tier,
    overall,
    weighted_quantile,
)
from fleet.replay_servers import ReplayNode

NO_LIMIT = 10**12
ENGINE = EngineProfile(name="plain", alpha_s=0.010, beta_s=0.001, gamma_s=1e-5, max_num_seqs=8)


def policy(timeout_s: float = 600.0, order: str = "fifo", **quotas: dict[str, Any]) -> Policy:
    limits = {
        "tier": "interactive",
        "allowed_tiers": ["interactive", "batch", "best_effort"],
        "tokens_per_minute": NO_LIMIT,
        "burst_tokens": NO_LIMIT,
        "max_in_flight_tokens": NO_LIMIT,
        "max_concurrent_requests": 1_000_000,
    }
    tier = {"queue_timeout_s": timeout_s, "max_queued_requests": 100_000}
    return parse(
        {
            "tiers": {
                "interactive": {**tier, "weight": 70},
                "batch": {**tier, "weight": 25},
                "best_effort": {**tier, "weight": 5},
            },
            "tenants": {"a": limits} | {name: limits | quota for name, quota in quotas.items()},
            "admission": {"order": order},
        }
    )


def asked(
    number: int,
    at_s: float,
    tenant: str = "a",
    prompt: int = 500,
    output: int = 300,
    service_s: float | None = None,
    tier: Tier | None = None,
) -> Arrival:
    request = Request(f"r{number}", tenant, tier, "m", "chat", prompt, output)
    return Arrival(at_s, request, output, service_s)


def seats(count: int, each: int = 1) -> list[ReplayNode]:
    return [ReplayNode(f"n{n}", kv_capacity_tokens=10**9, max_num_seqs=each) for n in range(count)]


def poisson(rate: float, mu: float, count: int, seed: int) -> list[Arrival]:
    rng = random.Random(seed)
    found: list[Arrival] = []
    at_s = 0.0
    for number in range(count):
        at_s += rng.expovariate(rate)
        found.append(asked(number, at_s, service_s=rng.expovariate(mu)))
    return found


def mean(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known)


def waits_of_five_servers(arrivals: list[Arrival]) -> float:
    """Return the mean wait by the recursion of Kiefer and Wolfowitz: the earliest free server is next."""
    free_s, waited_s = [0.0] * 5, 0.0
    for arrival in arrivals:
        start_s = max(heappop(free_s), arrival.at_s)
        waited_s += start_s - arrival.at_s
        heappush(free_s, start_s + (arrival.service_s or 0.0))
    return waited_s / len(arrivals)


def test_waits_in_the_gates_queue_are_those_of_five_servers() -> None:
    arrivals = poisson(12, 3, 20_000, 4)
    result = replay(policy(), arrivals, seats(5))
    assert result.is_complete
    assert mean(result.queued_s) == pytest.approx(waits_of_five_servers(arrivals), rel=1e-9)


def test_an_overloaded_gate_refuses_what_no_node_can_serve() -> None:
    # 20 requests/s on 15/s of capacity with short patience: about 1 - 15/20 of them, no fewer.
    exact = calculate("mmc_D", {"lam": 20, "mu": 3, "c": 5, "D": 1.5}, "p_timeout").value
    found = overall(replay(policy(timeout_s=1.5), poisson(20, 3, 12_000, 2), seats(5)))
    assert exact == pytest.approx(0.25, abs=0.01)
    assert found.refused_share == pytest.approx(exact, abs=0.03)
    assert max(found.queued_s.p99 or 0, 0) <= 1.5 + 1e-9


def test_every_arrival_ends_in_exactly_one_outcome() -> None:
    arrivals = poisson(25, 3, 5_000, 8)
    result = replay(policy(timeout_s=1.5), arrivals, seats(5))
    found = Counter(result.outcomes)
    assert None not in found
    assert sum(found.values()) == len(arrivals)
    everybody = overall(result)
    assert everybody.completed + sum(everybody.refused.values()) == everybody.offered == len(arrivals)
    parts = by_tier(result)["interactive"], by_tenant(result)["a"]
    assert all(part.offered == len(arrivals) for part in parts)
    assert list(by_tenant_and_tier(result)) == [("a", "interactive")]


def test_a_quota_refuses_its_own_tenant_and_nobody_else() -> None:
    # t sends 800 tokens a second, 48,000 a minute, with 24,000 a minute allowed: over 600 s it gets
    # 240,000 + the burst of 8,000 of 480,000 tokens: 310 of 600 requests.
    quota = {"tokens_per_minute": 24_000, "burst_tokens": 8_000}
    arrivals = [
        asked(2 * n + k, n + k / 2, tenant, service_s=1.0)
        for n in range(600)
        for k, tenant in enumerate(("t", "a"))
    ]
    found = by_tenant(replay(policy(t=quota), arrivals, seats(1, each=100)))
    assert found["a"].refused == {}
    assert found["t"].refused.keys() == {Outcome.REJECTED_QUOTA_RATE}
    assert 600 - 310 - 1 <= found["t"].refused[Outcome.REJECTED_QUOTA_RATE] <= 600 - 310 + 1


def test_a_tenant_without_policy_is_refused_and_named() -> None:
    result = replay(policy(), [asked(1, 0.0, "stranger", service_s=1.0)], seats(1))
    assert result.outcomes == [Outcome.REJECTED_TIER]
    assert by_tier(result)["unknown"].refused_share == 1.0


def test_a_request_alone_takes_the_engines_own_times() -> None:
    # 500 prompt tokens in one step: 10 ms + 5 ms; then 299 steps of one decoder: 11 ms each.
    result = replay(policy(), [asked(1, 5.0)], [ReplayNode("n", ENGINE)])
    assert result.first_s[0] == pytest.approx(0.015)
    assert result.e2e_s[0] == pytest.approx(0.015 + 299 * 0.011)
    assert result.output_tokens == 300
    assert weighted_quantile(result.gaps_s, 0.99) == pytest.approx(0.011)


def test_a_prefill_node_gives_the_first_token_and_the_decode_node_the_rest() -> None:
    # The prompt's 500 tokens hold 31 full blocks: 4 tokens of the last are computed again on the decode
    # node together with the token that came over; its first step gives token 2.
    nodes = [
        ReplayNode("p", ENGINE, is_prefill_only=True, transfer_s_per_token=1e-4),
        ReplayNode("d", ENGINE),
    ]
    result = replay(policy(), [asked(1, 0.0)], nodes)
    assert result.first_s[0] == pytest.approx(0.015)
    again = 501 - 500 // 16 * 16
    assert result.e2e_s[0] == pytest.approx(0.015 + 500e-4 + 0.010 + again * 1e-5 + 298 * 0.011)


def test_what_never_fits_the_engine_fails_and_holds_nothing() -> None:
    engine = EngineProfile(name="short", alpha_s=0.01, beta_s=0.001, gamma_s=1e-5, max_model_len=1000)
    result = replay(
        policy(), [asked(1, 0.0, prompt=900, output=300), asked(2, 0.1)], [ReplayNode("n", engine)]
    )
    assert result.outcomes == [Outcome.UPSTREAM_ERROR, Outcome.COMPLETED]
    assert Outcome.UPSTREAM_ERROR not in SHED


def recalling() -> Policy:
    document = policy().as_document()
    document["tiers"]["batch"]["max_requeues"] = 2
    return parse(document)


def test_a_request_taken_back_ends_at_its_node_and_is_served_again() -> None:
    # Four seats, four batch requests of 10 s. The newest has no token (after 51 ms) when an interactive one
    # of 5 s comes at 0.060; it starts again when that one ends, at 5.060.
    batch = [asked(n, at_s, service_s=10.0, tier=Tier.BATCH) for n, at_s in enumerate((0, 0, 0, 0.05))]
    arrivals = [*batch, asked(4, 0.06, service_s=5.0, tier=Tier.INTERACTIVE)]
    result = replay(recalling(), arrivals, seats(1, 4))
    assert result.outcomes == [Outcome.COMPLETED] * 5
    assert result.queued_s == pytest.approx([0, 0, 0, 5.0, 0])
    assert result.e2e_s == pytest.approx([10, 10, 10, 15.01, 5])


def test_a_request_that_answers_is_not_taken_back() -> None:
    batch = [asked(n, 0.0, service_s=10.0, tier=Tier.BATCH) for n in range(4)]
    result = replay(recalling(), [*batch, asked(4, 1.0, tier=Tier.INTERACTIVE)], seats(1, 4))
    assert result.queued_s == pytest.approx([0, 0, 0, 0, 9.0])


@pytest.mark.parametrize("prefill", [0, 1])
def test_engines_stop_what_is_taken_back(prefill: int) -> None:
    # A step with a prompt of 500 takes 16 ms: the interactive request that comes 8 ms after eight of batch
    # finds none with a token. An answer takes 300 steps of 18 ms at most, so each burst finds all idle.
    nodes = [
        ReplayNode(f"n{n}", ENGINE, max_num_seqs=8, is_prefill_only=n < prefill) for n in range(1 + prefill)
    ]
    rng = random.Random(3)
    arrivals: list[Arrival] = []
    for number in range(400):
        tier = Tier.INTERACTIVE if number % 10 == 8 else Tier.BATCH
        at_s = number // 10 * 20.0 + number % 10 * 0.001
        arrivals.append(asked(number, at_s, output=rng.randint(1, 300), tier=tier))
    found = {allowed: replay(made, arrivals, nodes) for allowed, made in ((0, policy()), (1, recalling()))}
    for result in found.values():
        assert result.outcomes == [Outcome.COMPLETED] * 400
        assert result.output_tokens == sum(one.output_tokens for one in arrivals)
    assert all(found[0].queued_s[n] > 0 for n in range(8, 400, 10))
    assert all(found[1].queued_s[n] == 0 for n in range(8, 400, 10))
    assert all(found[1].queued_s[n] > 0 for n in range(7, 400, 10))  # each time the newest made room


def test_a_replay_can_be_stopped_and_says_so() -> None:
    arrivals = poisson(12, 3, PROGRESS_EVERY + 500, 1)
    told: list[tuple[int, int]] = []

    def stop(done: int, of: int) -> bool:
        told.append((done, of))
        return False

    result = replay(policy(), arrivals, seats(5), on_progress=stop)
    assert told == [(PROGRESS_EVERY, len(arrivals))]
    assert not result.is_complete
    assert overall(result).offered == PROGRESS_EVERY


def test_the_same_seed_gives_the_same_end() -> None:
    def run() -> ReplayResult:
        return replay(policy(timeout_s=1.5), poisson(18, 3, 3_000, 3), seats(5), seed=9)

    assert run().outcomes == run().outcomes


def test_objectives_count_refused_requests_as_bad() -> None:
    # One seat, two requests at once that take 2 s, one of which cannot wait: half of the offered are good.
    arrivals = [asked(n, 0.0, service_s=2.0) for n in range(2)]
    found = overall(replay(policy(timeout_s=0.5), arrivals, seats(1)), Objectives(ttft_s=0.5))
    assert (found.good, found.offered, found.good_share) == (1, 2, 0.5)


@pytest.mark.parametrize(
    ("nodes", "arrivals", "field"),
    [
        ([], [asked(1, 0.0)], "nodes"),
        ([ReplayNode("n")], [asked(1, 0.0)], "nodes"),
        ([ReplayNode("n", ENGINE), ReplayNode("m", kv_capacity_tokens=9)], [asked(1, 0.0)], "nodes"),
        ([ReplayNode("n", ENGINE, is_prefill_only=True)], [asked(1, 0.0)], "nodes"),
        ([ReplayNode("n", ENGINE)], [asked(1, 2.0), asked(2, 1.0)], "arrivals"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    nodes: list[ReplayNode], arrivals: list[Arrival], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        replay(policy(), arrivals, nodes)
    assert refused.value.field == field
