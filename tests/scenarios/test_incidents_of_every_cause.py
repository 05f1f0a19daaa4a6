"""One fleet in trouble for each cause that the described fleets do not cover: named, and nothing else.

The figures over many seeds are in benchmarks/diagnosis.py; this is the same judgement on one seed that no
threshold was set on.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.diagnosis import Outcome, judge, scores
from benchmarks.incident_evidence import evidence_of
from fleet.diagnosis import diagnose
from fleet.diagnosis_evidence import Cause, Evidence, Kind, Launch
from simfleet.incident_makers import make

SEED = 20_000
KINDS = (
    "fifo_mixed_sizes", "static_batching", "token_budget", "kv_oversubscription", "retry_storm",
    "prefill_interference", "priority_ignored", "engine_frozen", "metrics_inconsistent",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_cause_is_named_and_no_other(kind: str):
    outcome = judge((kind, SEED))
    assert outcome.missed == set()
    assert outcome.wrong == set()


def unregistered(evidence: Evidence) -> Evidence:
    """Return the evidence as it would be of a pool whose launch settings nobody registered."""
    return replace(evidence, engines=tuple(replace(e, launch=Launch()) for e in evidence.engines))


def test_an_unregistered_launch_lowers_the_confidence_and_is_asked_for():
    evidence = evidence_of(make("priority_ignored", SEED))
    known = diagnose(evidence).findings
    unknown = diagnose(unregistered(evidence)).findings
    sure = next(f for f in known if f.cause is Cause.PRIORITY_IGNORED)
    less = next(f for f in unknown if f.cause is Cause.PRIORITY_IGNORED)
    assert less.confidence < sure.confidence
    assert "scheduling_policy (register it with the pool)" in less.missing


def test_engines_that_heed_priorities_are_not_accused():
    # the same traffic on engines that run the priority policy: the interactive tier overtakes
    incident = make("priority_ignored", SEED)
    profile = replace(incident.profile, scheduling_policy="priority")
    evidence = evidence_of(replace(incident, profile=profile))
    for told in (evidence, unregistered(evidence)):
        assert Cause.PRIORITY_IGNORED not in [f.cause for f in diagnose(told).findings]


def test_scores_count_what_was_right_wrong_and_missed():
    def outcome(truth: set[Cause], named: tuple[Cause, ...], also: set[Cause] | None = None) -> Outcome:
        return Outcome("x", 1, frozenset(truth), frozenset(also or ()), named, Kind.UNKNOWN)

    found = scores(
        [
            outcome({Cause.HOT_NODE}, (Cause.HOT_NODE,)),
            outcome({Cause.HOT_NODE}, ()),
            outcome(set(), (Cause.HOT_NODE,)),
            outcome({Cause.CAPACITY}, (Cause.CAPACITY, Cause.HOT_NODE), also={Cause.HOT_NODE}),
        ]
    )
    # hot node: one right, one missed, one wrong; where it is present by construction it counts neither way
    hot = found["hot_node"]
    assert (hot.right, hot.wrong, hot.missed, hot.precision, hot.recall) == (1, 1, 1, 0.5, 0.5)
    assert found["all"].right == 2
