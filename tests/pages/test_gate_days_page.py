"""The Strategies page: days through the real gate are asked for, watched, and shown by tier."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import streamlit as st
from sqlalchemy import update
from streamlit.testing.v1 import AppTest

from control.database import session_scope
from control.tables import EstimateRunRow
from dashboard.routes import compile_estimates
from dashboard.words import UNKNOWN
from fleet import fluid_kernel
from fleet.clock import SystemClock
from fleet.fluid import simulate
from fleet.strategies import read_strategy
from tests.postgres_server import FreshDatabase

Show = Callable[..., AppTest]

MONTH: dict[str, Any] = {
    "cost_usd": 3_360.0,
    "refused_share": 0.0689,
    "wait_p95_s": 0.57,
    "wait_p99_s": 1.23,
    "slo_attainment": 0.931,
    "events": {
        "refused_share": 0.0656, "wait_p95_s": 1.44, "wait_p99_s": 1.49, "slo_attainment": 0.934
    },
    "tiers": {
        "interactive": {"refused_share": 0.05, "first_p95_s": 0.6},
        "batch": {"refused_share": 0.084},
    },
    "tenants": [
        {"tier": "interactive", "tenant": "acme", "offered": 600_000, "refused_share": 0.048,
         "mean_wait_s": 0.07, "slo_attainment": 0.952}
    ],
    "difference": ["It refuses at the door.", "It divides by weights."],
}  # fmt: skip


def gate_days(at: AppTest) -> dict[str, list[Any]]:
    """The table of the gate's days."""
    return next(
        e.value.to_dict("list") for e in at.dataframe if "refused events" in e.value and "batch" in e.value
    )


def test_days_through_the_gate_are_asked_for_and_shown_by_tier(
    empty: Show, dashboard_on: FreshDatabase
) -> None:
    at = empty("strategies")
    at.session_state["simulation_method"] = "Real gate, 1 day"
    at.run()
    at.button(key="simulate").click().run()
    assert [e.message for e in at.exception] == []
    at.toggle(key="gate_days_all").set_value(True).run()  # a table is sent the columns it shows
    assert set(gate_days(at)["state"]) == {"waits"}
    now = SystemClock().now()
    r = EstimateRunRow
    with session_scope(dashboard_on.engine) as session:
        session.execute(update(r).where(r.id == 1).values(state="done", days_done=1, months={"1": MONTH}))
        session.execute(
            update(r)
            .where(r.id == 2)
            .values(
                state="running", worker="w", beat_at=now, days=2, days_done=1,
                started_at=now - timedelta(minutes=10),
            )
        )  # fmt: skip
        gate = session.get_one(r, 2).spec["gate"]
        assert (gate["days"], gate["kv_tokens"]) == (1, None)
        assert gate["engine"]["name"] == "h100-70b-fp8"  # engines unless somebody asks for drawn times
    st.cache_data.clear()
    shown = gate_days(at.run())
    assert shown["state"][0] == "done"
    assert (shown["refused"][0], shown["interactive"][0], shown["batch"][0]) == (
        "6.89 %",
        "5.00 %",
        "8.40 %",
    )
    assert shown["first p95"][:2] == ["600 ms", UNKNOWN]
    by_tenant = next(e.value.to_dict("list") for e in at.dataframe if "mean wait" in e.value)
    assert (by_tenant["tenant"], by_tenant["refused"]) == (["acme"], ["4.80 %"])
    assert shown["best_effort"][0] == "none"  # nobody sent any
    assert shown["difference"][0] == "It refuses at the door. It divides by weights."
    assert "about 10 minutes left" in shown["state"][1]  # one of two days took ten


def test_drawn_service_times_are_another_question(empty: Show, dashboard_on: FreshDatabase) -> None:
    at = empty("strategies")
    at.session_state["simulation_method"] = "Real gate, 1 day"
    at.session_state["simulation_behind"] = "Drawn service times"
    at.run()
    at.button(key="simulate").click().run()
    assert [e.message for e in at.exception] == []
    with session_scope(dashboard_on.engine) as session:
        spec = session.get_one(EstimateRunRow, 1).spec
    assert spec["gate"] == {"days": 1, "kv_tokens": None}
    assert spec["slots"] == 36


def test_what_is_compiled_at_the_start_is_what_pages_call() -> None:
    compile_estimates()
    before = len(fluid_kernel.run_bins.signatures)
    auto = {"mode": "predictive", "min": 1, "max": 3}
    simulate([1.0, 2.0], read_strategy({"n": 2, "D": 1.5, "auto": auto, "burst": {"n": 1, "price": 6}}))
    assert len(fluid_kernel.run_bins.signatures) == before > 0
