"""The metrics page is read back by an independent parser and says what was counted."""

from __future__ import annotations

import itertools

import pytest
from prometheus_client.parser import text_string_to_metric_families

from admission.metrics import EDGES_S, Family, GatewayMetrics
from fleet.outcomes import Outcome
from fleet.policy import default_policy


def test_the_page_says_what_was_counted() -> None:
    metrics = GatewayMetrics(123.5)
    flow = ('odd"tenant\\', "batch")
    counts = metrics.of(flow)
    counts.offered += 3
    counts.ended(Outcome.COMPLETED)
    counts.used(10, 20)
    for seconds in (0.0005, 0.001, 5.0, 500.0):
        counts.ttft.observe(seconds)
    gauge = Family("rhodeck_gateway_nodes", "Nodes.", ("state",), {("open",): 2})
    families = {f.name: f for f in text_string_to_metric_families(metrics.page([gauge]).decode())}
    [offered] = families["rhodeck_gateway_offered"].samples
    assert offered.value == 3
    assert offered.labels == {"tenant": flow[0], "tier": "batch"}
    [outcome] = families["rhodeck_gateway_requests"].samples
    assert outcome.labels["outcome"] == "completed"
    tokens = {s.labels["kind"]: s.value for s in families["rhodeck_gateway_tokens"].samples}
    assert tokens == {"prompt": 10, "output": 20}
    assert families["rhodeck_gateway_nodes"].samples[0].value == 2
    assert families["process_start_time_seconds"].samples[0].value == 123.5
    ttft = families["rhodeck_gateway_ttft_seconds"].samples
    buckets = {s.labels["le"]: s.value for s in ttft if s.name.endswith("_bucket")}
    assert buckets["0.001"] == 2  # an edge belongs to its bucket
    assert buckets["120.0"] == 3
    assert buckets["+Inf"] == 4
    [total] = [s.value for s in ttft if s.name.endswith("_sum")]
    assert total == pytest.approx(505.0015)


def test_a_page_of_a_thousand_tenants_comes_in_parts_that_hold_nobody_up() -> None:
    metrics = GatewayMetrics(0.0)
    for number in range(1_000):
        metrics.of((f"tenant-{number}", "batch")).ttft.observe(1.0)
    lines = 0
    for index, part in enumerate(metrics.parts([])):
        metrics.of((f"late-{index}", "batch")).ttft.observe(1.0)  # counting goes on between two parts
        assert part.count(b"\n") <= 500
        lines += part.count(b"\n")
    assert lines >= 1_000 * 30  # 28 buckets, sum and count


def test_edges_are_log_spaced_from_a_millisecond_to_two_minutes_with_the_default_objective() -> None:
    # 25 equal steps from 0.001 to 120: each edge is 120,000 to the power 1/25, 1.597, times the last.
    spaced = [edge for edge in EDGES_S if edge != default_policy().slo.ttft_s]
    assert (spaced[0], spaced[-1], len(spaced)) == (0.001, 120.0, 26)
    steps = [b / a for a, b in itertools.pairwise(spaced)]
    assert steps == pytest.approx([1.597] * 25, rel=0.01)
    assert list(EDGES_S) == sorted({*spaced, default_policy().slo.ttft_s})
