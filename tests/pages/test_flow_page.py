"""The flow page: what it says of a tail that doubles, of nothing, of old states, and without a database."""

from __future__ import annotations

from datetime import timedelta

import pytest

from control.database import session_scope
from fleet.clock import SystemClock
from tests.pages.conftest import Show, column, text
from tests.pages.flow_rows import add_flow
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres


@pytest.fixture
def flowing(full: Show, dashboard_on: FreshDatabase) -> Show:
    with session_scope(dashboard_on.engine) as session:
        add_flow(session, SystemClock().now())
    return full


def test_a_tail_that_doubles_under_a_still_median_is_said_in_words(flowing: Show) -> None:
    at = flowing("flow")
    said = text(at)
    assert [e.message for e in at.exception] == []
    assert "unstable" in said
    assert "15 min" in said
    assert "p50 is still: the tail alone grows" in said
    # 582 of 620 within the objective: 93.9 %, 38 / 620 / 5 % = 1.2 times too fast
    assert "93.9 %" in said
    assert "1.2x" in said
    assert "missed" in said
    assert "goodput 9.7 req/s" in said
    assert "overspent" in said  # 1 - 1.2
    assert column(at, "signal") == ["flow", "age", "trend", "backlog"]
    assert "p99 of end-to-end latency doubles every 15 minutes" in str(column(at, "evidence")[2])
    assert "trend: p99 of end-to-end latency doubles every 15 minutes, p50 is still" in said


def test_little_and_tails_are_named_for_what_they_are(flowing: Show) -> None:
    at = flowing("flow")
    assert column(at, "stage") == ["decode"]
    assert column(at, "residual") == ["5"]  # five places more than those who left account for
    quantiles = [str(value) for value in column(at, "quantile")]
    assert quantiles == ["p50", "p95", "p99", "p99.9"] * 2
    # the slowest 1 % of 10 req/s hold 10 x 1 % x their mean, 8 s x 2^(39/15) = 48.5 s: 4.85 places; the
    # budget lambda W is a hundred times that. Buckets are 1.2 wide.
    tail = next(d.value for d in at.dataframe if "budget" in d.value.columns)
    row = tail[(tail["of"] == "end to end") & (tail["quantile"] == "p99")].iloc[0]
    low, high = (float(part) for part in row["held"].split(" to "))
    assert low <= 4.85 <= high
    low, high = (float(part) for part in row["budget"].split(" to "))
    assert low <= 485 <= high


def test_what_is_nearest_to_bad_comes_first_and_the_unknown_last(flowing: Show) -> None:
    at = flowing("flow")
    above, rest = (d.value for d in at.dataframe if "rule" in d.value.columns)
    # 0.80 of a limit of 0.5 is nearer to bad than 2.1 of 1.5
    assert list(zip(above["rule"], above["value"], strict=True)) == [
        ("unfairness", "0.80"),
        ("hot node", "2.10"),
    ]
    assert list(zip(rest["rule"], rest["value"], strict=True)) == [("burst", "\u2014")]
    assert "2 of 3 above the limit; 1 not known." in text(at)
    assert column(at, "tenant") == ["acme", "globex"]


def test_a_queue_is_chosen_by_the_address(flowing: Show) -> None:
    at = flowing("flow", subject="tier interactive")
    assert at.selectbox(key="subject").value == "tier interactive"
    assert "queue wait" in [str(value) for value in column(at, "of")]


def test_an_old_state_is_no_present_balance(stale: Show, dashboard_on: FreshDatabase) -> None:
    with session_scope(dashboard_on.engine) as session:
        add_flow(session, SystemClock().now() - timedelta(minutes=5))
    at = stale("flow")
    assert "last known" in text(at)
    queues = next(d.value for d in at.dataframe if "minutes" in d.value.columns)
    assert queues["state"].tolist() == ["? not known"] * 2
    assert column(at, "signal") == ["flow", "age", "trend", "backlog"]
    signals = next(d.value for d in at.dataframe if "signal" in d.value.columns)
    assert set(signals["state"]) == {"? not known"}
    assert "15 min" not in text(at)  # what doubled then
    assert "1.2x" not in text(at)
    rules = [d.value for d in at.dataframe if "rule" in d.value.columns]
    assert rules == []
    assert "Not known: nothing was judged in the last minutes." in text(at)


def test_a_tail_of_too_few_minutes_is_not_said_to_be_still(full: Show, dashboard_on: FreshDatabase) -> None:
    with session_scope(dashboard_on.engine) as session:
        add_flow(session, SystemClock().now(), count=5)
    at = full("flow")
    assert "does not double" not in text(at)
    assert "It takes 12 minutes with requests" in text(at)
    assert column(at, "doubling") == ["\u2014"] * 2


@pytest.mark.parametrize("state", ["empty", "failing", "stale", "full"])
def test_without_minutes_the_page_says_so_and_shows_no_exception(
    state: str, request: pytest.FixtureRequest
) -> None:
    at = request.getfixturevalue(state)("flow")
    assert [e.message for e in at.exception] == []
    if state != "failing":
        assert "Balance is judged from whole minutes" in text(at)
