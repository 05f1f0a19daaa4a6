"""The published directions of disciplines and engines, as ranges, by our own gate and engines."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

from fleet.discipline_results import CaseResult, ComparisonResult
from fleet.discipline_study import (
    COMPARISONS,
    STUDY_ENGINE,
    StudySettings,
    run_comparison,
    study_policy,
)
from fleet.errors import InvalidInput
from fleet.gate_replay import Arrival
from fleet.outcomes import Outcome, Tier
from fleet.replay_traffic import MIXED, Bursts, RequestKind, mixed_traffic

SETTINGS = StudySettings(nodes=2)
RATE = 27.0  # two nodes: busy, over their capacity in bursts


@cache
def traffic(seed: int = 1, seconds: float = 180.0) -> tuple[Arrival, ...]:
    return tuple(mixed_traffic(random.Random(seed), RATE, seconds, MIXED, Bursts()))


@cache
def result(key: str) -> ComparisonResult:
    return compared(key, traffic())


def compared(
    key: str, arrivals: tuple[Arrival, ...], settings: StudySettings = SETTINGS
) -> ComparisonResult:
    tenants = sorted({one.request.tenant for one in arrivals})
    found = run_comparison(COMPARISONS[key](settings, tenants), arrivals, settings)
    assert found is not None
    return found


def first_two(key: str, arrivals: tuple[Arrival, ...]) -> ComparisonResult:
    tenants = sorted({one.request.tenant for one in arrivals})
    comparison = COMPARISONS[key](SETTINGS, tenants)
    found = run_comparison(replace(comparison, cases=comparison.cases[:2]), arrivals, SETTINGS)
    assert found is not None
    return found


def p99(value: float | None) -> float:
    assert value is not None
    return value


def test_continuous_batching_gives_three_to_five_times_the_tokens_on_variable_lengths() -> None:
    # The longest of 64 lognormal answers of cv 0.8 is about 4.2 means long; a static batch lasts as long.
    static, continuous = result("batching").results
    assert 3.0 <= continuous.tokens_per_s / static.tokens_per_s <= 5.0


def test_continuous_batching_gains_little_where_all_answers_are_equally_long() -> None:
    kind = RequestKind("same", 1.0, Tier.BATCH, (("acme", 1.0),), 300, 150, 0.0, 0.0)
    equal = tuple(mixed_traffic(random.Random(1), RATE, 60, (kind,)))
    static, continuous = compared("batching", equal).results
    assert 0.8 <= continuous.tokens_per_s / static.tokens_per_s <= 1.5


def test_shortest_first_with_aging_lowers_p99_by_about_two_fifths_and_long_contexts_pay() -> None:
    changes: list[float] = []
    for seed in range(1, 5):
        fifo, shortest = first_two("order", traffic(seed, 240.0)).results
        changes.append(p99(shortest.all.ttft_s.p99) / p99(fifo.all.ttft_s.p99) - 1)
        assert p99(shortest.by_class["short"].ttft_s.p99) < p99(fifo.by_class["short"].ttft_s.p99)
        assert p99(shortest.by_class["long"].ttft_s.p99) > p99(fifo.by_class["long"].ttft_s.p99)
    assert all(-0.75 <= change <= -0.1 for change in changes)
    assert -0.55 <= sum(changes) / len(changes) <= -0.25


def test_fair_queues_keep_a_quiet_tenant_from_waiting_behind_a_loud_one() -> None:
    fifo, _, fair, *_ = result("order").results
    quiet, loud = (p99(fair.by_tenant[name].ttft_s.p99) for name in ("globex", "acme"))
    assert quiet < 0.7 * loud
    assert quiet < 0.5 * p99(fifo.by_tenant["globex"].ttft_s.p99)


def test_chunks_take_long_prompts_out_of_the_way_of_who_decodes() -> None:
    whole, large, small = result("chunking").results
    longest = max(one.request.prompt_tokens for one in traffic())
    engine = STUDY_ENGINE
    assert p99(whole.gap_max_s) >= engine.gamma_s * longest
    assert p99(large.gap_max_s) <= engine.step_time_s(engine.max_num_seqs, engine.max_num_batched_tokens)
    assert p99(small.gap_max_s) <= engine.step_time_s(engine.max_num_seqs, 2048)


def test_decode_nodes_of_their_own_have_even_steps_and_a_slower_tail_of_first_tokens() -> None:
    settings = replace(SETTINGS, nodes=3)
    together, apart, *_ = compared("pools", traffic(), settings).results
    assert p99(apart.gap_p999_s) < p99(together.gap_p999_s)
    assert p99(apart.by_class["short"].ttft_s.p95) > p99(together.by_class["short"].ttft_s.p95)


def test_only_an_oversubscribed_cache_preempts() -> None:
    within, pushed, ranked = result("preemption").results
    assert within.preemptions == 0
    assert pushed.preemptions > 0
    assert p99(pushed.by_tier["interactive"].ttft_s.p99) > p99(within.by_tier["interactive"].ttft_s.p99)
    assert ranked.all.completed == within.all.completed == len(traffic())


def test_a_full_queue_gives_way_to_interactive_requests_from_the_lowest_tier_up() -> None:
    # 80/s on two nodes that serve about 55: the queue is full most of the time
    crowd = tuple(mixed_traffic(random.Random(3), 80.0, 40.0, MIXED))
    line, apart, displacing = compared("displacement", crowd).results

    def lost(case: CaseResult, tier: str, *why: Outcome) -> int:
        refused = case.by_tier[tier].refused
        return sum(count for outcome, count in refused.items() if not why or outcome in why)

    assert lost(line, "interactive") > 0
    assert lost(apart, "interactive") > 0
    assert lost(displacing, "interactive", Outcome.EVICTED_DISPLACED) == 0
    assert lost(displacing, "interactive") < lost(line, "interactive")
    assert lost(displacing, "batch", Outcome.EVICTED_DISPLACED) > 0
    low, middle, high = (
        displacing.by_tier[tier].refused_share for tier in ("best_effort", "batch", "interactive")
    )
    assert low >= middle >= high
    for case in (line, apart):
        assert not any(Outcome.EVICTED_DISPLACED in group.refused for group in case.by_tier.values())


def test_everybody_is_told_what_changes() -> None:
    notice = result("order").notices[0]
    said = " ".join(notice.lines)
    assert (notice.case, notice.against) == ("SJF + aging", "FIFO")
    for who in ("size long", "tier interactive", "tenant acme"):
        assert who in said


def test_a_comparison_can_be_stopped_between_cases() -> None:
    told: list[int] = []

    def stop_after_one(done: int, _of: int) -> bool:
        told.append(done)
        return done < 1

    few = traffic()[:200]
    assert run_comparison(COMPARISONS["order"](SETTINGS, ["acme"]), few, SETTINGS, stop_after_one) is None
    assert told == [0, 1]


def test_no_traffic_is_no_answer() -> None:
    with pytest.raises(InvalidInput):
        run_comparison(COMPARISONS["order"](SETTINGS, []), (), SETTINGS)
    with pytest.raises(InvalidInput):
        mixed_traffic(random.Random(1), 0.0, 10)


def test_made_traffic_has_the_rate_and_the_bursts_it_was_asked_for() -> None:
    bursts = Bursts(60, 10, 4)
    arrivals = mixed_traffic(random.Random(2), 50, 600, MIXED, bursts)
    assert len(arrivals) == pytest.approx(50 * 600, rel=0.03)
    inside = sum(bursts.is_on(one.at_s) for one in arrivals)
    # A sixth of the time at four times the rate: 4/6 against 5/6 of base traffic.
    assert inside / len(arrivals) == pytest.approx(4 / 9, abs=0.02)


def test_a_study_policy_caps_long_contexts_only_when_asked() -> None:
    assert study_policy(["a"]).admission.size_classes == ()
    assert [c.kv_share_ratio for c in study_policy(["a"], long_share=0.3).admission.size_classes] == [
        1.0,
        0.3,
    ]
