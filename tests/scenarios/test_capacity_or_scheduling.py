"""Five fleets that people describe, from engine steps over metrics pages to the verdict.

Engines run in virtual time; the diagnosis reads the pages they would serve, through the same reader and
windows as a scrape round. The symptom of each story is asserted first: a verdict on a fleet that does not
show it would prove nothing.
"""

from __future__ import annotations

import pytest

from benchmarks.incident_evidence import evidence_of
from fleet.diagnosis import diagnose
from fleet.diagnosis_evidence import Cause, Evidence, Finding, Kind, Verdict
from simfleet import check_cases


def number(verdict: Verdict | Finding, label: str) -> float:
    (value,) = [n.value for n in verdict.numbers if n.label == label]
    assert isinstance(value, float)
    return value


def judged(evidence: Evidence) -> tuple[Verdict, list[Cause]]:
    verdict = diagnose(evidence)
    return verdict, [finding.cause for finding in verdict.findings]


def test_64_places_in_front_of_12_nodes_at_28_percent_are_a_scheduling_problem():
    verdict, causes = judged(evidence_of(check_cases.capped_front()))
    assert verdict.utilization is not None
    assert verdict.utilization.p50 == pytest.approx(0.28, abs=0.03)
    assert 8.0 < number(verdict, "first token, p99") < 15.0
    assert verdict.kind is Kind.SCHEDULING
    assert causes[:2] == [Cause.CONCURRENCY_CAP, Cause.HEAD_OF_LINE]
    assert number(verdict.findings[0], "in flight while others queued") == 64
    # 8 % of the prompts were drawn around 12,000 tokens, the others around 400
    assert number(verdict.findings[1], "long prompts, share of requests") == pytest.approx(0.08, abs=0.02)
    assert verdict.findings[1].knob_link == "policy:admission.size_classes"


def test_64_places_inside_engines_that_would_carry_more_are_a_scheduling_problem_too():
    verdict, causes = judged(evidence_of(check_cases.capped_engines()))
    assert verdict.utilization is not None
    assert verdict.utilization.p50 < 0.45
    assert number(verdict, "rho") > 1.0  # the places are all taken: a verdict by rho alone would buy nodes
    assert verdict.kind is Kind.SCHEDULING
    assert causes[:2] == [Cause.CONCURRENCY_CAP, Cause.HEAD_OF_LINE]
    assert number(verdict.findings[0], "running while others waited") == 64
    assert verdict.findings[0].knob_link == "flag:--max-num-seqs"


def test_a_tenant_whose_evaluations_push_the_others_aside_is_named():
    verdict, causes = judged(evidence_of(check_cases.evaluation_batches()))
    assert verdict.kind is Kind.SCHEDULING
    assert causes[0] is Cause.TENANT_CROWDING
    crowd = verdict.findings[0]
    assert crowd.subjects == ("evals",)
    assert crowd.knob_link == "tenant:evals"
    assert number(crowd, "others' first token p95 otherwise") < 0.5
    assert 8.0 < number(crowd, "others' first token p95 while it is busy") < 20.0


def test_24_nodes_at_105_percent_lack_capacity():
    verdict, causes = judged(evidence_of(check_cases.true_overload()))
    assert number(verdict, "rho") == pytest.approx(1.05, abs=0.05)
    assert verdict.kind is Kind.CAPACITY
    assert causes == [Cause.CAPACITY]
    # 24 nodes at rho 1.05: 24 x 1.05 / 0.85 = 29.6, so 30 nodes, 6 more
    assert "Add 5 engines" in verdict.findings[0].knob or "Add 6 engines" in verdict.findings[0].knob


def test_two_nodes_made_hot_by_sticky_sessions_are_named():
    verdict, causes = judged(evidence_of(check_cases.sticky_sessions()))
    assert verdict.kind is Kind.SCHEDULING
    assert causes == [Cause.HOT_NODE]
    assert verdict.findings[0].subjects == ("gpu-01", "gpu-02")
    assert verdict.utilization is not None
    assert verdict.utilization.p50 < 0.4


def test_a_healthy_fleet_has_no_finding():
    verdict, causes = judged(evidence_of(check_cases.healthy_fleet()))
    assert verdict.kind is Kind.HEALTHY
    assert causes == []
