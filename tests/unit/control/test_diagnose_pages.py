"""What counts as demand in a diagnosis: what callers' own limits refused does not."""

from __future__ import annotations

from control.diagnose_pages import Competing, PageSeries, competing
from fleet.diagnosis import diagnose
from fleet.diagnosis_evidence import Kind


def test_what_a_quota_refused_is_neither_demand_nor_refusal():
    # 100 at the door, 60 beyond their own quota, 10 refused for a full queue: 40 compete, 10 refused
    outcomes = {"completed": 30, "rejected_quota_rate": 60, "rejected_queue_full": 10}
    assert competing(100, None, outcomes) == Competing(40, 10, None)


def test_repetitions_are_taken_to_be_limited_as_far_as_they_can():
    # 70 of 100 are repetitions; up to 60 of them were the limited ones: 10 repetitions compete, 30 are new
    assert competing(100, 70, {"rejected_quota_rate": 60}) == Competing(40, 0, 30)
    assert competing(100, 20, {"rejected_quota_rate": 60}) == Competing(40, 0, 40)


def test_what_was_not_counted_stays_unknown():
    assert competing(None, 5, {}) == Competing(None, None, None)


def test_pages_that_are_no_metrics_leave_nothing_to_judge():
    series = PageSeries()
    for n in range(3):
        series.take(10.0 * n, {"a": b"<html>sign in</html>"}, b"<html>sign in</html>")
    verdict = diagnose(series.evidence())
    assert verdict.kind is Kind.UNKNOWN
    assert verdict.sentence == "Cannot say: no sample was ever stored."
