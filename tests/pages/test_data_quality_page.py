"""The data-quality page full, filtered, empty, stale and failing; and the ways to it."""

from __future__ import annotations

import pytest

from control.database import session_scope
from fleet.clock import SystemClock
from tests.pages.conftest import Show, column, text
from tests.pages.quality_rows import fill_findings
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres


@pytest.fixture
def findings(full: Show, dashboard_on: FreshDatabase) -> Show:
    with session_scope(dashboard_on.engine) as session:
        fill_findings(session, SystemClock().now())
    return full


def test_it_lists_what_stands_worst_first_and_what_ended(findings: Show) -> None:
    at = findings("data_quality")
    assert not at.exception
    assert "2 faults and 2 warnings stand" not in text(at)
    assert "3 faults and 2 warnings stand" in text(at)
    assert column(at, "severity") == ["✖ fault"] * 3 + ["▲ warning"] * 2 + ["• note"]
    standing, ended = (table.value for table in at.dataframe)
    assert "lasted" not in standing.columns
    said = text(at)
    assert "In full, and what to do" in said
    assert sorted(zip(ended["what"], ended["lasted"], strict=True)) == [
        ("Restarted: engine 0", "0 s"),
        ("Rounds missed", "10 s"),
    ]
    kv = standing[standing["what"] == "Metric missing: kv_used_ratio"].iloc[0]
    assert "KV use" in kv["affects"]
    assert kv["source"] == "/node?node=n1#n1"


def test_a_source_can_be_chosen_in_the_address(findings: Show) -> None:
    at = findings("data_quality", source="gw-1")
    assert column(at, "what") == ["Clock differs from ours"]
    assert "0 faults and 1 warning stand" in text(at)
    assert "Nothing ended in this range." in text(at)


def test_without_a_round_it_says_that_nothing_was_judged(empty: Show) -> None:
    at = empty("data_quality")
    assert not at.exception
    assert "Nothing was judged yet" in text(at)
    assert "nothing contradicts itself" not in text(at)


def test_old_rounds_are_no_word_about_the_present(stale: Show) -> None:
    at = stale("data_quality")
    assert "what stands below is as of then" in text(at)
    assert "nothing contradicts itself" not in text(at)


def test_without_a_database_it_says_so(failing: Show) -> None:
    at = failing("data_quality")
    assert not at.exception
    assert "Not up to date" in text(at) or "cannot show" in text(at) or at.error


def test_a_node_shows_its_own_findings(findings: Show) -> None:
    at = findings("node", node="n1")
    assert not at.exception
    assert "Metric missing (kv_used_ratio), since" in text(at)
    assert "Clock differs" not in text(at)


def test_rows_with_unknown_numbers_lead_to_their_explanation(findings: Show) -> None:
    at = findings("fleet")
    nodes = next(table.value for table in at.dataframe if "rho bar" in table.value.columns)
    by_node = dict(zip(nodes["node"], nodes["why"], strict=True))
    assert by_node["/node?node=n3"] == "/data_quality?source=n3"
