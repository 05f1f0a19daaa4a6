"""The simulated engine against queueing theory, hand calculation and an independent simulator's truth."""

import dataclasses
import math
import random
from itertools import pairwise

import pytest

from fleet.engine import Engine
from fleet.engine_profile import H100_70B_FP8, EngineProfile, profile_named, throughput_at_batch
from fleet.engine_request import EngineRequest, EventKind, FinishReason
from fleet.engine_tally import token_edges
from fleet.errors import Conflict, InvalidInput, NotFound

LINEAR = EngineProfile("linear", alpha_s=0.012, beta_s=1e-4, gamma_s=1.2e-5, max_num_seqs=256)
MEAN_IN, MEAN_OUT = 500, 300


def lognormal_outputs(seed: int, cv: float = 0.8):
    """Output lengths with mean 300, capped where the profile's context ends."""
    rng = random.Random(seed)
    variance = math.log(1 + cv * cv)
    mu = math.log(MEAN_OUT) - variance / 2
    while True:
        yield min(4000, max(1, round(rng.lognormvariate(mu, math.sqrt(variance)))))


def saturated_token_rate(profile: EngineProfile, clients: int, until_s: float) -> float:
    """Output tokens/s with `clients` requests always inside, the first quarter left out."""
    engine, outputs = Engine(profile), lognormal_outputs(seed=1)
    made = 0
    for made in range(clients):
        engine.submit(EngineRequest(str(made), MEAN_IN, next(outputs)), 0.0)
    start: tuple[float, int] | None = None
    now = 0.0
    while now < until_s:
        now = engine.next_step_end_s or until_s
        for event in engine.advance(now):
            if event.kind is EventKind.FINISHED:
                made += 1
                engine.submit(EngineRequest(str(made), MEAN_IN, next(outputs)), event.at_s)
        if start is None and now > until_s / 4:
            start = (now, engine.tally.generation_tokens)
    assert start is not None
    return (engine.tally.generation_tokens - start[1]) / (now - start[0])


def run_open_loop(engine: Engine, rate: float, until_s: float, seed: int = 1) -> int:
    """Poisson arrivals at `rate`; return how many were sent by `until_s`."""
    rng, outputs, now, sent = random.Random(seed), lognormal_outputs(seed), 0.0, 0
    while (now := now + rng.expovariate(rate)) < until_s:
        engine.submit(EngineRequest(str(sent), MEAN_IN, next(outputs)), now)
        sent += 1
    engine.advance(until_s)
    return sent


@pytest.mark.parametrize("rate", [8.0, 12.0, 16.0])
def test_mean_decode_batch_lies_on_the_load_line(rate):
    # m = beta + gamma I/O = 1e-4 + 1.2e-5 * 500/300 = 1.2e-4; b = lambda O alpha / (1 - lambda O m).
    # The offered tokens are counted, so that the luck of the draw is not in the comparison.
    engine, until_s = Engine(LINEAR), 1800.0
    run_open_loop(engine, rate, until_s)
    token_rate = engine.tally.generation_tokens / until_s
    expected = token_rate * 0.012 / (1 - token_rate * 1.2e-4)
    itl = engine.tally.histograms["itl_s"]
    assert itl.sum / until_s == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "service_rate"),
    [
        # service rates of an independent step-level simulator, requests/s at 500 in + 300 out
        ({}, 20.004),
        ({"max_num_seqs": 64}, 10.8798),
        ({"num_gpu_blocks": 3751}, 11.899),  # 60,000 KV tokens: preempting
    ],
)
def test_saturated_throughput_equals_the_known_service_rate(changes, service_rate):
    profile = dataclasses.replace(LINEAR, **changes)
    rate = saturated_token_rate(profile, clients=profile.max_num_seqs + 40, until_s=900.0) / MEAN_OUT
    assert rate == pytest.approx(service_rate, rel=0.02)


def test_saturated_throughput_follows_the_second_slope_past_the_knee():
    # tau(256) = 12 ms + 64 * 0.1 ms + 192 * 0.3 ms + 256 * 5/3 * 12 us = 81.12 ms, X = 10.52/s
    profile = dataclasses.replace(LINEAR, knee_seqs=64, beta_past_knee_s=3e-4)
    assert throughput_at_batch(profile, 256, MEAN_IN, MEAN_OUT) == pytest.approx(10.52, abs=0.01)
    assert saturated_token_rate(profile, 300, 900.0) / MEAN_OUT == pytest.approx(10.52, rel=0.02)


def test_h100_profile_serves_three_requests_a_second():
    # 3 req/s * (500 + 300) = 2,400 total tokens/s a node
    assert throughput_at_batch(H100_70B_FP8, 64, MEAN_IN, MEAN_OUT) == pytest.approx(3.0, rel=0.001)
    output_rate = saturated_token_rate(H100_70B_FP8, clients=100, until_s=3600.0)
    assert output_rate * (1 + MEAN_IN / MEAN_OUT) == pytest.approx(2400, rel=0.02)


def test_one_request_takes_what_its_steps_take():
    # prefill 12 ms + 100 * 12 us = 13.2 ms gives token 1; four decode steps of 12.1 ms give the rest
    engine = Engine(LINEAR)
    engine.submit(EngineRequest("a", 100, 5, max_tokens=5), 10.0)
    assert engine.next_step_end_s == pytest.approx(10.0132)
    first, last = engine.advance(11.0)
    assert (first.kind, last.kind) == (EventKind.FIRST_OUTPUT, EventKind.FINISHED)
    assert first.at_s == pytest.approx(10.0132)
    assert last.at_s == pytest.approx(10.0132 + 4 * 0.0121)
    assert (last.output_tokens, last.reason) == (5, FinishReason.LENGTH)
    reading = engine.reading()
    assert (reading.prompt_tokens, reading.generation_tokens) == (100, 5)
    assert reading.histograms["itl_s"].count == 4
    assert reading.histograms["tpot_s"].sum == pytest.approx(0.0121)
    assert reading.histograms["ttft_s"].sum == pytest.approx(0.0132)
    assert reading.histograms["params_n"].count == 1
    assert (reading.running, reading.waiting, reading.kv_used_ratio) == (0, 0, 0.0)


def test_a_long_prompt_is_prefilled_in_chunks_that_share_steps_with_decoding():
    # budget 2,048: one decoder takes 1 token, so 5,000 prompt tokens need ceil(5000/2047) = 3 steps
    engine = Engine(dataclasses.replace(LINEAR, max_num_batched_tokens=2048))
    engine.submit(EngineRequest("short", 10, 100), 0.0)
    engine.advance(engine.next_step_end_s or 0.0)
    engine.submit(EngineRequest("long", 5000, 2), 0.0125)
    engine.advance(engine.next_step_end_s or 0.0)  # the step already running; the long one enters the next
    before = engine.steps
    while engine.output_tokens("long") == 0:
        engine.advance(engine.next_step_end_s or 0.0)
    assert engine.steps - before == 3
    assert engine.output_tokens("short") == 1 + 1 + 3  # decode first: it never missed a step


def test_kv_shortage_preempts_and_recomputes_without_losing_or_inventing_tokens():
    # 40 usable blocks = 640 tokens; three sequences grow to 300 each, 900 in all
    engine = Engine(dataclasses.replace(LINEAR, num_gpu_blocks=41))
    for name in "abc":
        engine.submit(EngineRequest(name, 100, 200), 0.0)
    finished = [e.request_id for e in engine.advance(600.0) if e.kind is EventKind.FINISHED]
    reading = engine.reading()
    assert finished == ["a", "b", "c"]  # the latest is preempted first
    assert (reading.preemptions or 0) > 0
    assert (reading.prompt_tokens, reading.generation_tokens) == (300, 600)
    assert reading.histograms["itl_s"].count == 3 * 199
    assert reading.kv_used_ratio == 0.0


def test_the_lowest_priority_is_preempted_and_admitted_last_under_the_priority_policy():
    profile = dataclasses.replace(LINEAR, num_gpu_blocks=41, scheduling_policy="priority")
    engine = Engine(profile)
    for name, priority in (("batch", 10), ("chat", 0), ("normal", 5)):
        engine.submit(EngineRequest(name, 100, 200, priority=priority), 0.0)
    finished = [e.request_id for e in engine.advance(600.0) if e.kind is EventKind.FINISHED]
    assert finished == ["chat", "normal", "batch"]


def test_a_full_engine_queues_in_arrival_order_and_says_so():
    engine = Engine(dataclasses.replace(LINEAR, max_num_seqs=2))
    for n in range(5):
        engine.submit(EngineRequest(str(n), 100, 50), 0.001 * n)
    engine.advance(0.05)
    assert (engine.running, engine.waiting) == (2, 3)
    finished = [e.request_id for e in engine.advance(100.0) if e.kind is EventKind.FINISHED]
    assert finished == ["0", "1", "2", "3", "4"]


def test_an_abort_frees_everything_and_is_counted_in_no_success_counter():
    engine = Engine(LINEAR)
    engine.submit(EngineRequest("a", 1000, 500), 0.0)
    engine.advance(1.0)
    produced = engine.output_tokens("a")
    assert produced
    assert engine.kv_used_ratio > 0
    assert engine.abort("a", 1.0)
    assert not engine.abort("a", 1.0)
    assert (engine.running, engine.waiting, engine.kv_used_ratio) == (0, 0, 0.0)
    reading = engine.reading()
    assert sum(reading.finished.values()) == 0
    assert reading.generation_tokens == produced
    assert reading.histograms["e2e_s"].count == 0
    assert reading.histograms["ttft_s"].count == 1


def test_little_holds_on_the_engines_own_counters():
    # L from gauges sampled every 50 ms; lambda W from the latency histogram; 1 h, so edges hardly matter
    engine, rng, outputs = Engine(LINEAR), random.Random(5), lognormal_outputs(5)
    until_s, rate, now, sent = 3600.0, 10.0, 0.0, 0
    sample_at, in_system, samples = 0.0, 0, 0
    while now < until_s:
        now += rng.expovariate(rate)
        while sample_at < now:
            engine.advance(sample_at)
            in_system += engine.running + engine.waiting
            samples += 1
            sample_at += 0.05
        engine.submit(EngineRequest(str(sent), MEAN_IN, next(outputs)), now)
        sent += 1
    e2e = engine.tally.histograms["e2e_s"].snapshot()
    assert in_system / samples == pytest.approx((e2e.sum or 0.0) / until_s, rel=0.01)


def test_results_do_not_depend_on_how_often_the_engine_is_asked():
    def run(ask_every_s: float | None):
        engine, outputs, rng, now = Engine(LINEAR), lognormal_outputs(3), random.Random(3), 0.0
        for n in range(400):
            arrival = now + rng.expovariate(12.0)
            while ask_every_s is not None and now + ask_every_s < arrival:
                now += ask_every_s
                engine.advance(now)
            now = arrival
            engine.submit(EngineRequest(str(n), MEAN_IN, next(outputs)), arrival)
        engine.advance(now + 1000)
        return engine.reading()

    assert run(None) == run(0.007)


def test_cached_prefixes_save_prefill_time_in_whole_blocks():
    # 100 tokens at ratio 0.5: 50 tokens are 3 whole blocks of 16, so 48 hit and 52 are computed
    engine = Engine(dataclasses.replace(LINEAR, prefix_hit_ratio=0.5))
    engine.submit(EngineRequest("a", 100, 1), 0.0)
    (event, _) = engine.advance(1.0)
    assert event.at_s == pytest.approx(0.012 + 52 * 1.2e-5)
    reading = engine.reading()
    assert (reading.prefix_cache_queries, reading.prefix_cache_hits) == (100, 48)
    assert (reading.prompt_tokens, reading.prompt_tokens_computed) == (100, 52)


def test_blocks_taken_away_force_preemption_and_giving_them_back_heals():
    engine = Engine(LINEAR)
    for n in range(20):
        engine.submit(EngineRequest(str(n), 500, 1000), 0.0)
    engine.advance(2.0)
    assert engine.running == 20
    engine.hold_blocks(LINEAR.usable_blocks - 200, 2.0)  # 200 blocks = 3,200 tokens: about 5 fit
    engine.advance(3.0)
    assert engine.running <= 6
    assert engine.waiting == 20 - engine.running
    assert engine.tally.preemptions >= 14
    engine.hold_blocks(0, 3.0)
    engine.advance(600.0)
    assert engine.reading().finished["length"] == 20


def test_what_can_never_fit_is_refused_at_the_door():
    engine = Engine(profile_named("tiny"))
    with pytest.raises(InvalidInput, match="1024"):
        engine.submit(EngineRequest("a", 1000, 25), 0.0)
    engine.submit(EngineRequest("b", 10, 25), 0.0)
    with pytest.raises(Conflict):
        engine.submit(EngineRequest("b", 10, 25), 0.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"alpha_s": -1.0},
        {"alpha_s": 0.0, "beta_s": 0.0},
        {"knee_seqs": 4},
        {"max_num_seqs": 0},
        {"max_num_batched_tokens": 8},
        {"prefix_hit_ratio": 1.0},
    ],
)
def test_impossible_profiles_are_refused(changes):
    with pytest.raises(InvalidInput):
        dataclasses.replace(LINEAR, **changes)


def test_unknown_profile_names_the_known_ones():
    with pytest.raises(NotFound) as caught:
        profile_named("gb300")
    assert "h100-70b-fp8" in caught.value.hint


def test_token_edges_are_the_capped_one_two_five_series():
    assert token_edges(1024) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    assert all(a < b for a, b in pairwise(token_edges(131_072)))
    assert token_edges(131_072)[-1] == 100_000


def test_the_waiting_gauge_is_the_schedulers_and_never_negative():
    # arrivals during a step are met at the next one, as in vLLM; those who leave before were never in it
    engine = Engine(dataclasses.replace(LINEAR, max_num_seqs=1))
    for name in "abcd":
        engine.submit(EngineRequest(name, 10, 50), 0.0)
    assert (engine.running, engine.waiting) == (1, 0)
    engine.abort("c", 0.001)
    engine.abort("b", 0.002)
    assert engine.waiting == 0
    engine.advance(0.02)
    assert (engine.running, engine.waiting) == (1, 1)
