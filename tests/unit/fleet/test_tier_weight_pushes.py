"""A push of new tier weights: tiers that wait share by them at once, and nobody's place in a flow moves."""

from __future__ import annotations

import itertools

import pytest
from gate_world import Server, assignment, open_gate, request, tenant

from fleet.messages import Assignment
from fleet.offers import Dispatch, Queued
from fleet.outcomes import TIERS, Tier

SMALL, LARGE = 1_000, 60_000  # tokens of the requests; the node holds just below 85,000
TENANTS = ("acme", "beta")


def weighted(weights: tuple[int, int, int], generation: int = 1) -> Assignment:
    """Return an assignment with weights of interactive, batch and best effort; all wait for ten minutes."""
    tiers = {
        tier.value: {"weight": weight, "queue_timeout_s": 600}
        for tier, weight in zip(TIERS, weights, strict=True)
    }
    return assignment(dict.fromkeys(TENANTS, tenant()), tiers=tiers, generation=generation)


def owing(owes: Tier, weights: tuple[int, int, int]) -> Server:
    """Return a gate where every tier waits with small requests, and one has just started a large one."""
    server = Server(open_gate(weighted(weights)))
    other = next(tier for tier in TIERS if tier is not owes)
    for number in range(24):
        server.offer(request(number, tier=other))
    large = request(24, tier=owes, prompt_tokens=LARGE - 900)
    assert isinstance(server.offer(large), Dispatch)
    for number in range(25, 1_525):
        for tier in TIERS:
            server.offer(request(number, tenant=TENANTS[number % 2], tier=tier))
    server.started.clear()
    return server


def run(server: Server, tokens: int) -> list[tuple[Tier, int]]:
    """Return (tier, tokens) of what starts next, in order, until it is so many tokens in all."""
    while sum(one.tokens for one in server.started) < tokens:
        server.step(0.01)
        waiting = server.gate.snapshot(server.now_s).queues
        assert all(waiting[tier].requests for tier in TIERS)
    return [(one.tier, one.tokens) for one in server.started]


@pytest.mark.parametrize("owes", TIERS)
@pytest.mark.parametrize(
    ("before", "after"),
    [((70, 25, 5), (20, 20, 60)), ((5, 25, 70), (60, 20, 20)), ((70, 5, 25), (10, 80, 10))],
)
def test_after_a_push_of_weights_no_tier_is_further_ahead_than_the_new_ones_allow(
    owes: Tier, before: tuple[int, int, int], after: tuple[int, int, int]
) -> None:
    """In whatever follows, tokens by weight differ by one largest request of each by its weight.

    Goyal, Vin, Cheng (SIGCOMM 1996), theorem 1; the large request started before the push is one of those.
    """
    server = owing(owes, before)
    server.gate.apply(weighted(after, generation=2), server.now_s)
    weight = dict(zip(TIERS, after, strict=True))
    largest = {tier: LARGE if tier is owes else SMALL for tier in TIERS}
    started = dict.fromkeys(TIERS, 0)
    for tier, tokens in run(server, 900_000):
        started[tier] += tokens
        for one, other in itertools.combinations(TIERS, 2):
            gap = started[one] / weight[one] - started[other] / weight[other]
            bound = largest[one] / weight[one] + largest[other] / weight[other]
            assert abs(gap) <= bound * (1 + 1e-9), (one, other, started)


def test_once_what_was_owed_is_made_up_tiers_share_by_the_new_weights() -> None:
    # Best effort owes 60,000 tokens: at 60 of 100 the others start 40,000 before it has its turn.
    server = owing(Tier.BEST_EFFORT, (70, 25, 5))
    server.gate.apply(weighted((20, 20, 60), generation=2), server.now_s)
    run(server, 60_000 * 40 // 60 + 3 * SMALL)
    server.started.clear()
    started = run(server, 1_000_000)
    total = sum(tokens for _, tokens in started)
    for tier, weight in zip(TIERS, (20, 20, 60), strict=True):
        share = sum(tokens for one, tokens in started if one is tier) / total
        assert share == pytest.approx(weight / 100, abs=0.02), tier


@pytest.mark.parametrize("owes", TIERS)
def test_weights_pushed_there_and_back_forgive_nobody_and_move_nobody(owes: Tier) -> None:
    there, here = (4, 32, 64), (64, 32, 4)  # powers of two: no rounding breaks a tie
    plain, pushed = owing(owes, here), owing(owes, here)
    for generation in range(2, 8):
        pushed.gate.apply(weighted((there, here)[generation % 2], generation), pushed.now_s)
    assert run(pushed, 600_000) == run(plain, 600_000)
    assert [one.request.request_id for one in pushed.started] == [
        one.request.request_id for one in plain.started
    ]


def test_a_push_of_weights_moves_nobody_inside_a_flow() -> None:
    server = owing(Tier.BATCH, (70, 25, 5))
    server.gate.apply(weighted((10, 80, 10), generation=2), server.now_s)
    late = server.offer(request(9_999, tenant="acme", tier=Tier.BATCH))
    assert isinstance(late, Queued)
    run(server, 1_200_000)
    for tier, name in itertools.product(TIERS, TENANTS):
        numbers = [
            int(one.request.request_id[1:])
            for one in server.started
            if one.tier is tier and one.account == name
        ]
        assert numbers == sorted(numbers)
