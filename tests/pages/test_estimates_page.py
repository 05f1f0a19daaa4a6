"""The Estimates and Strategies pages: the guide's case, a shared address, wrong inputs, a damaged link."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from control.comparison_documents import as_link, from_link, read_comparison
from control.database import session_scope
from control.estimate_runs import Precision, enqueue
from control.estimate_traces import keep_trace, remove_trace
from control.rate_profile_files import bundled_profile
from control.roles import Actor, Role
from dashboard import data_estimates, flow_inputs
from dashboard.report_page import report_page
from fleet.clock import SystemClock
from fleet.errors import InvalidInput
from fleet.rate_profiles import RateProfile
from tests.pages.fleet_rows import ADMIN
from tests.postgres_server import FreshDatabase

Show = Callable[..., AppTest]


def column(at: AppTest, name: str) -> list[object]:
    return next(list(d.value[name]) for d in at.dataframe if name in d.value.columns)


def sources_of(at: AppTest) -> dict[str, str]:
    """Where each input comes from, by the table that has them all."""
    tables = [d.value for d in at.dataframe if "input" in d.value.columns]
    whole = next(table for table in tables if "traffic" in list(table["input"]))
    return dict(zip(whole["input"], whole["source"], strict=True))


def said(at: AppTest) -> str:
    shown = (*at.markdown, *at.caption, *at.info, *at.error, *at.success, *at.warning)
    return " ".join(str(e.value) for e in shown).replace("\\", "")


def link(**document: Any) -> str:
    return as_link(read_comparison({"traffic": "A", **document}, bundled_profile).document)


def test_the_guide_s_case_stands_beside_the_autoscaler_it_leaves_out(empty: Show) -> None:
    at = empty("estimates")
    assert [e.message for e in at.exception] == []
    usd = dict(zip(column(at, "strategy"), column(at, "usd"), strict=True))
    # published for this traffic: the admission fleet, a real autoscaler, provisioning for the peak
    assert usd["Static + admission"] == "$100,800"
    assert usd["Reactive + admission"] == "$106,043"
    assert usd["Static peak"] == "$201,600"
    refused = dict(zip(column(at, "strategy"), column(at, "refused"), strict=True))
    assert refused["Static + admission"] == "6.24 %"
    assert "Reactive + admission costs least" in said(at)
    assert "is the wrong answer at 0.01 USD a refusal" in said(at)


def test_every_input_has_a_source_and_a_date(empty: Show) -> None:
    at = empty("estimates")
    sources = sources_of(at)
    for price in ("price", "reserved price", "spot price"):
        assert "2026-" in sources[price]
        assert sources[price].startswith("default: ")
    at.number_input(key="compare_spot_price").set_value(6.0).run()
    sources = sources_of(at)
    assert sources["spot price"] == "typed in"
    # published: two spot nodes at 6 USD
    usd = dict(zip(column(at, "strategy"), column(at, "usd"), strict=True))
    assert usd["Static + admission + spot"] == "$104,844"


def test_an_address_reproduces_its_result(empty: Show) -> None:
    five = [{"name": "five", "params": {"n": 5, "D": 1.5}}, {"name": "six", "params": {"n": 6, "D": 1.5}}]
    at = empty("estimates", e=link(strategies=five, price=30, refusal_usd=0.02))
    assert [e.message for e in at.exception] == []
    assert column(at, "strategy")[:2] == ["five", "six"]
    assert column(at, "usd")[:2] == ["$108,000", "$129,600"]  # 720 h of 5 and 6 nodes at 30 USD
    assert at.number_input(key="compare_price").value == 30
    assert at.number_input(key="compare_refusal_cents").value == 2


def test_what_was_changed_is_in_the_address(empty: Show) -> None:
    at = empty("estimates")
    at.number_input(key="compare_mu").set_value(6.0).run()
    written = at.query_params["e"]
    again = empty("estimates", e=written if isinstance(written, str) else written[0])
    assert column(again, "usd") == column(at, "usd")
    assert again.number_input(key="compare_mu").value == 6.0


def test_a_damaged_link_and_impossible_inputs_are_refused_in_words(empty: Show) -> None:
    at = empty("estimates", e="AAAA")
    assert [e.message for e in at.exception] == []
    assert "the link is damaged" in said(at)
    at = empty("estimates")
    at.number_input(key="compare_mu").set_value(0.0).run()
    assert [e.message for e in at.exception] == []
    assert "/mu is 0.0" in said(at)


def test_strategies_are_edited_and_compared(empty: Show) -> None:
    at = empty("strategies")
    assert [e.message for e in at.exception] == []
    assert "Reactive + admission costs least" in said(at)
    at.session_state["strategies_0"] = {
        "edited_rows": {"0": {"nodes": 12}},
        "added_rows": [],
        "deleted_rows": [2, 3, 4, 5],
    }
    at.run()
    assert [e.message for e in at.exception] == []
    usd = dict(zip(column(at, "strategy"), column(at, "usd"), strict=True))
    assert usd == {"Static peak": "$241,920", "Static + admission": "$100,800"}  # 12 x 28 x 720
    at.switch_page("app_pages/estimates.py").run()
    assert column(at, "usd")[:2] == ["$241,920", "$100,800"]


def test_nobody_may_be_refused(empty: Show) -> None:
    at = empty("estimates")
    at.checkbox(key="compare_acceptable").uncheck().run()
    assert "Predictive + admission serves everybody in time for $108,311" in said(at)
    assert "refusals are not acceptable" in said(at)


def test_an_uploaded_trace_is_kept_and_its_address_shows_it_again(empty: Show) -> None:
    body = ("t_s,rate_rps\n" + "".join(f"{600 * n},{6 + n % 7}\n" for n in range(144))).encode()
    at = empty("estimates")
    at.file_uploader(key="compare_file").set_value(("mine.csv", body, "text/csv")).run()
    assert [e.message for e in at.exception] == []
    sources = sources_of(at)
    assert "file mine.csv" in sources["traffic"]
    written = at.query_params["e"]
    again = empty("estimates", e=written if isinstance(written, str) else written[0])
    assert column(again, "usd") == column(at, "usd")


def test_weights_and_tenants_are_typed_and_written_into_the_address(empty: Show) -> None:
    at = empty("estimates")
    at.number_input(key="compare_weight_batch").set_value(50.0)
    at.text_area(key="compare_tenants").set_value("batch, acme, 80, 2\nbatch, beta, 20 %").run()
    assert [e.message for e in at.exception] == []
    written = at.query_params["e"]
    document = from_link(written if isinstance(written, str) else written[0])
    assert document["weights"] == {"interactive": 70, "batch": 50, "best_effort": 5}
    assert document["tenants"] == {"batch": {"acme": [0.8, 2.0], "beta": [0.2, 1.0]}}
    assert {"acme", "beta"} <= set(column(at, "tenant"))
    at.text_area(key="compare_tenants").set_value("batch, acme").run()
    assert "line 1 of the tenants" in " ".join(str(e.proto) for e in at.error)


def test_tenants_as_lines_are_read_back_as_they_were() -> None:
    tenants = {"interactive": {"acme": [0.75, 1.0], "4 others": [0.25, 4.0]}, "batch": {"b": [1.0, 0.5]}}
    assert flow_inputs.from_lines(flow_inputs.as_lines(tenants)) == tenants
    assert flow_inputs.from_lines("\n") == {}
    for text in ("batch, a, x", "batch", "batch, a, 1, 2, 3", "batch, a, 50\nbatch, a, 50"):
        with pytest.raises(InvalidInput):
            flow_inputs.from_lines(text)


def test_a_traffic_that_was_removed_is_gone_from_the_page_too(
    empty: Show, dashboard_on: FreshDatabase
) -> None:
    ada, now = Actor("ada", Role.ADMIN, "cli"), SystemClock().now()
    profile = RateProfile("mine", np.full(8_640, 6.0), "a test")
    with session_scope(dashboard_on.engine) as session:
        name = keep_trace(session, profile, actor=ada, now=now)
    written = as_link(read_comparison({"traffic": name}, lambda _: profile).document)
    at = empty("estimates", e=written)
    assert column(at, "usd")
    with session_scope(dashboard_on.engine) as session:
        remove_trace(session, name, actor=ada, now=now)
    st.cache_data.clear()  # the list of kept traffic is asked for again after seconds
    at.run()
    errors = " ".join(str(e.proto) for e in at.error)
    assert "These inputs have no answer" in errors
    assert "/traffic" in errors


def test_a_file_that_is_no_traffic_is_refused_in_words(empty: Show) -> None:
    at = empty("estimates")
    at.file_uploader(key="compare_file").set_value(("x.csv", b"a,b\n1,2\n", "text/csv")).run()
    assert [e.message for e in at.exception] == []
    assert "This traffic cannot be used" in " ".join(str(e.proto) for e in at.error)


def test_what_was_measured_takes_the_place_of_defaults_with_source_and_date(full: Show) -> None:
    at = full("estimates")
    assert [e.message for e in at.exception] == []
    before = sources_of(at)
    assert before["tenants"].startswith("default: ")
    at.button(key="use_measured").click().run()
    assert [e.message for e in at.exception] == []
    after = sources_of(at)
    assert after["weights"].startswith("policy revision 2 (20")
    for name in ("tiers", "tenants"):
        assert after[name].startswith("measured: ")
        assert "requests at the gateways since 20" in after[name]
    tenants = set(column(at, "tenant"))
    assert {"all", "acme"} <= tenants
    assert "by the policy's weights (" in said(at)
    # the address opens the same answer, without asking the fleet again
    written = at.query_params["e"]
    again = full("estimates", e=written if isinstance(written, str) else written[0])
    assert sources_of(again) == after
    assert column(again, "usd") == column(at, "usd")
    assert column(again, "share") == column(at, "share")
    report = report_page_of(again)
    assert "<td class=text>acme</td>" in report


def report_page_of(at: AppTest) -> str:
    """The printable report of the page's address."""
    written = at.query_params["e"]
    ready = data_estimates.ready(from_link(written if isinstance(written, str) else written[0]))
    return report_page(ready, ready.run(), [], "now")


def test_every_request_is_asked_for_once_and_can_be_cancelled(empty: Show) -> None:
    at = empty("strategies")
    assert "Nobody asked for it yet" in said(at)
    at.button(key="simulate").click().run()
    assert [e.message for e in at.exception] == []
    assert set(column(at, "state")) == {"waits"}
    assert at.button(key="simulate").disabled
    at.button(key="cancel_runs").click().run()
    assert set(column(at, "state")) == {"cancelled"}
    assert not at.button(key="simulate").disabled


def test_a_simulation_that_nobody_goes_on_with_says_so(empty: Show, dashboard_on: FreshDatabase) -> None:
    ready = read_comparison({"traffic": "A"}, bundled_profile)
    asked_at = SystemClock().now() - timedelta(hours=3)
    with session_scope(dashboard_on.engine) as session:
        enqueue(session, ready, "Static peak", Precision(), actor=ADMIN, now=asked_at)
    at = empty("strategies")
    assert [e.message for e in at.exception] == []
    assert "Nobody has simulated for 3.0 h" in said(at)
    assert "is `rhodeck control` running?" in said(at)


def edited(at: AppTest, *, version: int, rows: dict[str, dict[str, Any]]) -> None:
    """Type into the table of strategies."""
    at.session_state[f"strategies_{version}"] = {
        "edited_rows": rows,
        "added_rows": [],
        "deleted_rows": [2, 3, 4, 5],
    }
    at.run()
    assert [e.message for e in at.exception] == []


def test_edits_outlive_another_group_of_columns_and_a_visit_to_another_page(empty: Show) -> None:
    at = empty("strategies")
    edited(at, version=0, rows={"0": {"nodes": 12}})
    at.segmented_control(key="strategies_group").set_value("Autoscaler").run()
    assert column(at, "usd") == ["$241,920", "$100,800"]  # 12 x 28 x 720, and the 5 that admission needs
    at.switch_page("app_pages/spend.py").run()
    at.switch_page("app_pages/strategies.py").run()
    assert column(at, "usd") == ["$241,920", "$100,800"]


def test_a_row_that_cannot_be_compared_keeps_its_columns_in_sight(empty: Show) -> None:
    at = empty("strategies")
    edited(at, version=0, rows={"0": {"nodes": None}})
    assert "row 1 says no 'nodes'" in said(at)
    at.segmented_control(key="strategies_group").set_value("Autoscaler").run()
    assert at.segmented_control(key="strategies_group").value == "Nodes"
    assert "row 1 says no 'nodes'" in said(at)  # nothing typed was lost by trying
