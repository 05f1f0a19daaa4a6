"""The Disciplines and Goodput pages: without a fleet, with one, stale, failing, and with bad input."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator

import pytest
from streamlit.testing.v1 import AppTest

from control.study_process import StudyDesk
from dashboard import data_studies
from fleet.clock import SystemClock
from tests.pages.conftest import column, text

Show = Callable[..., AppTest]
#: A few hundred requests: a second of the machine.
SMALL = {"disciplines_seconds": "30", "disciplines_rate": "6.0", "disciplines_nodes": "1"}


def answered(at: AppTest) -> AppTest:
    """Run the page again until its simulation has ended, as its own tick does."""
    clock, deadline_s = SystemClock(), SystemClock().monotonic_s() + 180
    while any(button.label == "Cancel" for button in at.button):
        assert clock.monotonic_s() < deadline_s, text(at)
        at.run()
    return at


def failures(at: AppTest) -> list[str]:
    return [e.message for e in at.exception]


def test_cases_are_compared_for_everybody_and_the_address_reproduces_them(empty: Show) -> None:
    at = answered(empty("disciplines", disciplines_compare="chunking", **SMALL))
    assert failures(at) == []
    assert column(at, "case")[0] == "whole prompts"
    assert {"size short", "tier interactive", "tenant acme"} <= set(map(str, column(at, "who")))
    assert "Longest gap between two tokens" in text(at)
    again = answered(empty("disciplines", disciplines_compare="chunking", **SMALL))
    assert column(again, "p99") == column(at, "p99")


#: Says how far it is, then works for ever: a simulation that is still running whenever one looks.
ENDLESS = (
    "import sys, time\n"
    "print('progress: order 2/5', file=sys.stderr, flush=True)\n"
    "while True: time.sleep(1)\n"
)


@pytest.fixture
def endless(empty: Show, monkeypatch: pytest.MonkeyPatch) -> Generator[Show]:
    desk = StudyDesk(SystemClock(), 600.0, (sys.executable, "-c", ENDLESS))
    monkeypatch.setattr(data_studies, "desk", lambda: desk)
    yield empty
    desk.close()


def test_a_long_comparison_shows_how_far_it_is_and_can_be_cancelled(endless: Show) -> None:
    at = endless("disciplines")
    clock, deadline_s = SystemClock(), SystemClock().monotonic_s() + 120
    while "order: 2 of 5" not in str(at.get("progress")[0].proto):
        assert clock.monotonic_s() < deadline_s
        at.run()
    assert failures(at) == []
    assert not at.dataframe  # the page stands although nothing is computed yet
    at.button(key="study_disciplines_cancel").click().run()
    assert failures(at) == []
    assert "Cancelled." in text(at)
    assert [button.label for button in at.button if "study" in str(button.key)] == ["Simulate again"]
    at.button(key="study_disciplines_again").click().run()
    assert at.get("progress")


def test_changed_inputs_end_the_study_of_the_old_ones(endless: Show) -> None:
    at = endless("disciplines")
    assert at.get("progress")
    at.number_input(key="disciplines_seed").set_value(2).run()
    assert failures(at) == []
    # the first one would never have ended: were it still there, this one would wait behind it
    clock, deadline_s = SystemClock(), SystemClock().monotonic_s() + 120
    while "order: 2 of 5" not in str(at.get("progress")[0].proto):
        assert clock.monotonic_s() < deadline_s
        at.run()


def test_goodput_is_confirmed_beside_the_page(empty: Show) -> None:
    at = answered(empty("goodput", goodput_itl_ms="80.0", goodput_simulate="true"))
    assert failures(at) == []
    assert "half as much again" in text(at)


def test_too_much_traffic_for_a_page_is_refused_in_words(empty: Show) -> None:
    at = empty("disciplines", disciplines_seconds="3600", disciplines_rate="100.0")
    assert failures(at) == []
    assert "rhodeck estimate disciplines" in text(at)
    assert not at.dataframe


def test_the_disciplines_need_no_database(failing: Show) -> None:
    at = answered(failing("disciplines", disciplines_compare="chunking", **SMALL))
    assert failures(at) == []
    assert column(at, "case")[0] == "whole prompts"


def test_a_typed_engine_is_advised_before_any_node_is_known(empty: Show) -> None:
    at = empty("goodput", goodput_itl_ms="80.0")
    assert failures(at) == []
    assert "advised" in column(at, "verdict")
    assert "max_num_seqs" in text(at)


@pytest.mark.parametrize("state", ["full", "stale"])
def test_a_fitted_engine_brings_its_curve_and_today(state: str, request: pytest.FixtureRequest) -> None:
    show: Show = request.getfixturevalue(state)
    at = show("goodput")
    assert failures(at) == []
    assert at.selectbox(key="goodput_engine").value == "n1"
    assert "Fitted to n1, grade B" in text(at)
    assert "in use" in [str(verdict) for verdict in column(at, "verdict")]


def test_without_a_database_a_typed_engine_still_has_an_answer(failing: Show) -> None:
    at = failing("goodput")
    assert failures(at) == []
    assert at.error
    assert "Set this" in text(at)


def test_objectives_nobody_can_keep_say_so(empty: Show) -> None:
    at = empty("goodput", goodput_itl_ms="1.0")
    assert failures(at) == []
    assert "No rate keeps the objectives" in text(at)
