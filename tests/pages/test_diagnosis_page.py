"""The diagnosis page on real rows: a verdict with its evidence, and honest words where there is none."""

from __future__ import annotations

import pytest

from fleet.clock import SystemClock
from simfleet import check_cases
from tests.incident_fleet import store
from tests.pages.conftest import Show, column, run_page, text
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("state", ["full", "empty", "stale", "failing"])
def test_the_page_shows_no_exception_in_any_state(state: str, request: pytest.FixtureRequest) -> None:
    at = request.getfixturevalue(state)("diagnosis")
    assert [e.message for e in at.exception] == []
    assert [t.value for t in at.title] == ["Diagnosis"]


def test_without_samples_it_says_that_it_cannot_say(empty: Show) -> None:
    assert "Cannot say: no sample was ever stored" in text(empty("diagnosis"))


def test_a_database_that_is_away_is_no_verdict(failing: Show) -> None:
    said = text(failing("diagnosis"))
    assert "the database does not answer" in said
    assert "healthy" not in said


def test_a_verdict_says_when_nothing_was_measured_since(stale: Show) -> None:
    assert "No scrape round for" in text(stale("diagnosis"))


def test_a_stale_node_is_not_said_to_have_every_sample(stale: Show) -> None:
    said = text(stale("node", node="n1"))
    assert "No sample for" in said
    assert "Nothing to remark" not in said


def test_a_capped_front_is_named_with_its_numbers_and_its_knob(dashboard_on: FreshDatabase) -> None:
    store(dashboard_on.engine, check_cases.capped_front(nodes=4), SystemClock().now())
    at = run_page("diagnosis", {})
    said = text(at)
    assert [e.message for e in at.exception] == []
    assert "A scheduling problem, not a lack of hardware" in said
    assert "1. A cap of 21 requests in flight holds back 4 engines" in said
    assert "long contexts block the short requests" in said
    assert "admit by KV room" in said
    assert "in flight while others queued" in column(at, "evidence")
    assert "21 requests" in column(at, "value")
