"""The Disciplines and Goodput pages: without a fleet, with one, stale, failing, and with bad input."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from streamlit.testing.v1 import AppTest

from tests.pages.conftest import column, text

Show = Callable[..., AppTest]
#: A few hundred requests: a second of the machine.
SMALL = {"disciplines_seconds": "30", "disciplines_rate": "6.0", "disciplines_nodes": "1"}


def failures(at: AppTest) -> list[str]:
    return [e.message for e in at.exception]


def test_cases_are_compared_for_everybody_and_the_address_reproduces_them(empty: Show) -> None:
    at = empty("disciplines", disciplines_compare="chunking", **SMALL)
    assert failures(at) == []
    assert column(at, "case")[0] == "whole prompts"
    assert {"size short", "tier interactive", "tenant acme"} <= set(map(str, column(at, "who")))
    assert "Longest gap between two tokens" in text(at)
    again = empty("disciplines", disciplines_compare="chunking", **SMALL)
    assert column(again, "p99") == column(at, "p99")


def test_too_much_traffic_for_a_page_is_refused_in_words(empty: Show) -> None:
    at = empty("disciplines", disciplines_seconds="3600", disciplines_rate="100.0")
    assert failures(at) == []
    assert "rhodeck estimate disciplines" in text(at)
    assert not at.dataframe


def test_the_disciplines_need_no_database(failing: Show) -> None:
    at = failing("disciplines", disciplines_compare="chunking", **SMALL)
    assert failures(at) == []


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
