"""The contract of the diagnosis: what it says of missing, short, old and contradictory evidence.

Windows are made by hand here, one signature at a time, so that each number can be checked in sight;
whole fleets are in tests/scenarios.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fleet.curve_fit import StepCurve
from fleet.diagnosis import diagnose, without_series
from fleet.diagnosis_engine_facts import EngineFacts
from fleet.diagnosis_engines import cap_gain
from fleet.diagnosis_evidence import (
    Cause,
    EngineCapacity,
    EngineEvidence,
    Evidence,
    FlowEvidence,
    FlowSlice,
    Kind,
    Launch,
    QuietNode,
)
from fleet.diagnosis_facts import above
from fleet.diagnosis_prefill import step_model
from fleet.diagnosis_queue import long_prompts
from fleet.health_reading import TimedWindow
from fleet.readings import EngineWindow, Histogram

TTFT = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0)
STEPS = 36


def histogram(edges: tuple[float, ...], value: float, count: int) -> Histogram:
    counts = [0] * (len(edges) + 1)
    counts[sum(edge < value for edge in edges)] = count
    return Histogram(edges, tuple(counts), value * count)


def window(**known: object) -> EngineWindow:
    """A calm window of 10 s: 20 requests of 500 + 300 tokens, 9 decoding, 10 running, nobody waiting."""
    plain: dict[str, object] = {
        "engine": "0", "model": "m", "length_s": 10.0, "restarted": False, "arrivals": 20, "completed": 20,
        "errors": 0, "aborted": 0, "prompt_tokens": 10_000, "prompt_tokens_computed": 10_000,
        "generation_tokens": 6_000, "preemptions": 0, "prefix_cache_hits": 0, "prefix_cache_queries": 0,
        "running": 10, "waiting": 0, "waiting_capacity": 0, "kv_used_ratio": 0.3,
        "kv_capacity_tokens": 131_072,
        "histograms": {
            "ttft_s": histogram(TTFT, 0.08, 20),
            "itl_s": histogram((0.01, 0.025, 0.05, 0.15, 1.0), 0.015, 6_000),
        },
    }  # fmt: skip
    return EngineWindow(**(plain | known))  # type: ignore[arg-type]


CAPACITY = EngineCapacity(
    requests_per_s=4.0,
    low_requests_per_s=3.8,
    high_requests_per_s=4.2,
    decode_events=300.0,
    curve=StepCurve(0.010, 0.0005),
    reached=40.0,
    kv_batch=170.0,
    grade="A",
)


def engine(name: str, *windows: EngineWindow, capacity: EngineCapacity | None = CAPACITY) -> EngineEvidence:
    timed = tuple(TimedWindow(10.0 * n, w) for n, w in enumerate(windows, 1))
    return EngineEvidence(name, "0", "main", timed, Launch(max_num_seqs=64), capacity)


def evidence(*engines: EngineEvidence, flows: tuple[FlowEvidence, ...] = ()) -> Evidence:
    end = max((e.windows[-1].ended_at_s for e in engines if e.windows), default=None)
    return Evidence(0.0, end or 0.0, engines, flows, last_sample_s=end)


def test_a_calm_fleet_is_healthy_and_says_what_it_could_not_look_for():
    verdict = diagnose(evidence(engine("a", *[window()] * STEPS), engine("b", *[window()] * STEPS)))
    assert verdict.kind is Kind.HEALTHY
    assert verdict.findings == ()
    assert "tenants, retries and priorities: no gateway counted requests" in verdict.cannot_tell
    # 2 requests/s each; the hardware without settings: 170 places, 10 + 0.5 x 170 = 95 ms a step,
    # 170 / 0.095 / 300 = 5.96 requests/s: 34 %
    assert verdict.utilization is not None
    assert verdict.utilization.p50 == pytest.approx(2.0 / (170 / 0.095 / 300), rel=1e-6)


def test_no_samples_old_samples_and_few_samples_are_no_verdict():
    assert diagnose(Evidence(0.0, 900.0)).sentence == "Cannot say: no sample was ever stored."
    old = replace(evidence(engine("a", *[window()] * STEPS)), until_s=360.0 + 600.0)
    assert diagnose(old).sentence == "Cannot say: no samples for 10 minutes."
    few = diagnose(evidence(engine("a", *[window()] * 5)))
    assert few.kind is Kind.UNKNOWN
    assert few.sentence == "Cannot say yet: 50 s of samples are too few, 120 s are needed."
    almost = replace(window(), length_s=119.7 / 12)  # rounded it would read as enough
    assert "119 s of samples are too few" in diagnose(evidence(engine("a", *[almost] * 12))).sentence


def test_latency_that_nobody_exports_is_unknown_and_not_healthy():
    mute = window(histograms={}, kv_used_ratio=None)
    verdict = diagnose(evidence(engine("a", *[mute] * STEPS)))
    assert verdict.kind is Kind.UNKNOWN
    assert "KV oversubscription: the use of the KV cache is not exported" in verdict.cannot_tell


def test_an_engine_that_finished_nothing_for_three_windows_is_frozen_and_two_are_not_enough():
    still = window(arrivals=0, completed=0, prompt_tokens=0, generation_tokens=0, histograms={})
    for many, is_found in ((2, False), (3, True)):
        rows = [*[window()] * 20, *[still] * many, *[window()] * 10]
        verdict = diagnose(evidence(engine("a", *rows), engine("b", *[window()] * len(rows))))
        assert [f.cause for f in verdict.findings] == ([Cause.ENGINE_FROZEN] if is_found else [])
    assert verdict.kind is Kind.FAULT
    assert verdict.findings[0].subjects == ("a",)
    assert verdict.findings[0].numbers[0].value == 30.0  # three windows of 10 s


def test_more_decoding_than_running_is_a_contradiction():
    # 6,000 gaps of 15 ms in 10 s: 9 sequences decode on average; a gauge of 2 cannot be
    verdict = diagnose(evidence(engine("a", *[window(running=2)] * STEPS)))
    assert [f.cause for f in verdict.findings] == [Cause.METRICS_INCONSISTENT]
    numbers = {n.label: n.value for n in verdict.findings[0].numbers}
    assert numbers["decoding, from inter-token times"] == pytest.approx(9.0)
    assert numbers["running, mean of the gauge"] == 2.0


def test_preemptions_under_a_full_cache_are_oversubscription_and_one_is_not():
    full = window(preemptions=2, kv_used_ratio=0.99)
    verdict = diagnose(evidence(engine("a", *[full] * STEPS)))
    assert Cause.KV_OVERSUBSCRIPTION in [f.cause for f in verdict.findings]
    once = [window(preemptions=1, kv_used_ratio=0.99), *[window(kv_used_ratio=0.99)] * (STEPS - 1)]
    assert diagnose(evidence(engine("a", *once))).findings == ()


def test_a_node_that_fell_silent_is_named_with_its_age_and_the_last_try():
    living, dead = engine("a", *[window()] * STEPS), engine("b", *[window()] * 12)
    quiet = (QuietNode("b", 120.0, "refused: nothing listens", missed=24),)
    verdict = diagnose(replace(evidence(living, dead), quiet=quiet))
    assert verdict.kind is Kind.FAULT
    found = verdict.findings[0]
    assert (found.cause, found.subjects, found.knob_link) == (Cause.NODE_SILENT, ("b",), "node:b")
    # 36 rounds of 10 s end at 360; its last sample is of 120: 4 minutes
    assert found.title == "b gives no metrics, for 4 min"
    numbers = {n.label: n.value for n in found.numbers}
    assert numbers["without metrics"] == 240.0
    assert numbers["last try"] == "refused: nothing listens"
    assert [value for _, value in found.series[0].points] == [10.0] * 12
    # it was there for a third of the time: 4 + 4 / 3 requests/s
    assert {n.label: n.value for n in verdict.numbers}["capacity"] == pytest.approx(4.0 + 4.0 / 3)
    assert diagnose(evidence(living, dead)).findings == ()  # nobody says that it was asked in vain


def test_where_every_node_is_silent_they_are_named_and_one_never_seen_is_not_given_an_age():
    quiet = tuple(QuietNode(f"n{n}", None, "timeout", 90) for n in range(5))
    verdict = diagnose(Evidence(0.0, 900.0, quiet=quiet))
    assert verdict.kind is Kind.FAULT
    assert verdict.sentence == "Something is broken: n0, n1, n2 and 2 more give no metrics, and never did."
    assert {n.label: n.value for n in verdict.findings[0].numbers}["without metrics"] is None


def test_what_is_broken_is_not_called_a_scheduling_problem_beside_one():
    still = window(arrivals=0, completed=0, prompt_tokens=0, generation_tokens=0, histograms={})
    broken = [*[window()] * (STEPS - 6), *[still] * 6]
    full = [window(preemptions=2, kv_used_ratio=0.99)] * STEPS
    verdict = diagnose(evidence(engine("a", *broken), engine("b", *full)))
    assert {f.cause for f in verdict.findings} == {Cause.ENGINE_FROZEN, Cause.KV_OVERSUBSCRIPTION}
    titles = {f.cause: f.title for f in verdict.findings}
    assert verdict.sentence.startswith(f"Something is broken: {titles[Cause.ENGINE_FROZEN]}. Beside it")
    assert titles[Cause.KV_OVERSUBSCRIPTION] in verdict.sentence
    assert "not a lack of hardware" not in verdict.sentence


def test_the_gain_of_more_places_takes_the_slope_beyond_what_was_seen_twice_as_steep():
    # 40 seen: tau(40) = 30 ms; 80 under twice the slope: 30 + 2 x 0.5 x 40 = 70 ms
    # (80 / 70) / (40 / 30) = 0.857: nothing is gained
    facts = EngineFacts(engine("a", window()))
    assert cap_gain(facts, 40.0) == pytest.approx((80 / 0.070) / (40 / 0.030))
    # a flat engine: 10 ms + 0.01 ms b: (80 / 11.2) / (40 / 10.4) = 1.857
    flat = replace(CAPACITY, curve=StepCurve(0.010, 0.00001))
    assert cap_gain(EngineFacts(engine("a", window(), capacity=flat)), 40.0) == pytest.approx(
        (80 / 0.0112) / (40 / 0.0104)
    )


def test_a_curve_through_one_load_gives_no_capacity():
    same = EngineFacts(engine("a", *[window()] * STEPS, capacity=None))
    assert same.capacity.curve is None
    assert same.capacity.requests_per_s is None


def test_the_cost_of_a_prompt_token_is_found_from_windows_of_different_load():
    # itl = 12 ms + 0.4 ms b + 20 us x prefill tokens a step
    rng, rows = np.random.default_rng(7), []
    for _ in range(40):
        batch, prefill = rng.uniform(4, 40), rng.uniform(0, 400)
        itl = 0.012 + 0.0004 * batch + 20e-6 * prefill
        gaps = round(batch * 10 / itl)
        steps = round(10 / itl)
        rows.append(
            window(
                histograms={
                    "itl_s": Histogram((0.05,), (gaps, 0), gaps * itl),
                    "iteration_tokens": Histogram((512.0,), (steps, 0), steps * (batch + prefill)),
                },
                prompt_tokens_computed=round(prefill * steps),
            )
        )
    model = step_model([EngineFacts(engine("a", *rows))])
    assert model is not None
    assert model.per_token_s == pytest.approx(20e-6, rel=0.05)


def test_long_prompts_are_told_by_length_and_only_when_they_are_few():
    edges = (500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0, 20_000.0)
    few = long_prompts(Histogram(edges, (900, 0, 0, 0, 0, 100, 0), 900 * 400 + 100 * 15_000))
    assert few is not None
    # 100 of 1,000; 1.5 M of 1.86 M tokens, the short ones taken at their bucket's middle of 250
    assert few.request_share == pytest.approx(0.1)
    assert few.token_share == pytest.approx(1 - 900 * 250 / (900 * 400 + 100 * 15_000))
    assert long_prompts(Histogram(edges, (600, 0, 0, 0, 0, 400, 0), 600 * 400 + 400 * 15_000)) is None
    assert long_prompts(Histogram(edges, (1_000, 0, 0, 0, 0, 0, 0), 400_000)) is None


def test_a_share_above_a_threshold_counts_only_what_is_surely_above():
    h = Histogram((0.5, 1.0), (6, 3, 1), 5.0)
    assert above(h, 0.5) == pytest.approx(0.4)
    assert above(h, 0.7) == pytest.approx(0.1)  # (0.5, 1] may be below 0.7
    assert above(None, 0.5) is None


def flow(tenant: str, *slices: FlowSlice) -> FlowEvidence:
    return FlowEvidence(tenant, "interactive", slices)


def test_a_retry_storm_needs_the_count_of_repetitions_and_is_not_guessed_without():
    def counted(originals: int | None) -> FlowEvidence:
        return flow(
            "acme",
            *(
                FlowSlice(10.0 * n, 10.0, offered=100, dispatched=30, refused=70, originals=originals)
                for n in range(1, STEPS + 1)
            ),
        )

    base = engine("a", *[window()] * STEPS)
    known = diagnose(evidence(base, flows=(counted(30),)))
    storm = next(f for f in known.findings if f.cause is Cause.RETRY_STORM)
    assert storm.numbers[0].value == pytest.approx(100 / 30)
    assert Cause.CAPACITY not in [f.cause for f in known.findings]  # 3 new requests/s fit mu 4
    unknown = diagnose(evidence(base, flows=(counted(None),)))
    assert Cause.RETRY_STORM not in [f.cause for f in unknown.findings]
    assert "retry storm: attempts per request are not exported" in unknown.cannot_tell


def test_chart_lines_can_be_left_out():
    still = window(arrivals=0, completed=0, prompt_tokens=0, generation_tokens=0, histograms={})
    verdict = diagnose(evidence(engine("a", *[window()] * 20, *[still] * 5)))
    assert verdict.findings[0].series
    assert without_series(verdict).findings[0].series == ()
