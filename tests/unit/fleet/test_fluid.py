"""The fluid simulation against an independent reference's table, its plain twin and conservation."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.rate_profile_files import bundled_profile
from fleet.errors import InvalidInput
from fleet.fluid import BIN_S, MONTH_BINS, simulate
from fleet.month_result import NodeClass, as_columns
from fleet.strategies import read_strategy

REFERENCE = Path(__file__).parents[2] / "data" / "cost" / "reference.csv"


def reference_rows() -> list[dict[str, str]]:
    with REFERENCE.open(newline="") as handle:
        return [row for row in csv.DictReader(handle) if row["kind"] == "fluid"]


@pytest.fixture(scope="module")
def months() -> dict[str, Any]:
    return {name: bundled_profile(name).month() for name in "ABCD"}


@pytest.mark.parametrize("row", reference_rows(), ids=lambda row: f"{row['profile']}-{row['strategy']}")
def test_a_strategy_costs_and_refuses_what_the_reference_says(
    row: dict[str, str], months: dict[str, Any]
) -> None:
    found = as_columns(simulate(months[row["profile"]], read_strategy(json.loads(row["params"]))))
    tolerance = 1e-6 if "auto" in row["params"] or "burst" in row["params"] else 1e-9
    for column, value in found.items():
        assert value == pytest.approx(float(row[column]), rel=tolerance, abs=tolerance), column


#: Any strategy on any traffic, small enough to run many.
NODES = st.integers(1, 6)
PARAMS = st.fixed_dictionaries(
    {"n": NODES},
    optional={
        "D": st.sampled_from([0.0, 1.5, 30.0]),
        "ctl_s": st.sampled_from([10, 30, 60]),
        "window_s": st.sampled_from([10, 60, 300]),
        "auto": st.fixed_dictionaries(
            {
                "mode": st.sampled_from(["reactive", "predictive", "scheduled"]),
                "rho": st.sampled_from([0.6, 0.85, 1.0]),
                "min": st.integers(1, 3),
                "max": st.integers(3, 9),
                "stab_s": st.sampled_from([0, 45, 300]),
                "cold_s": st.sampled_from([0, 25, 240]),
                "plan": st.just([[0, 1.5, 2], [1.5, 24, 4]]),
            }
        ).map(
            lambda auto: auto if auto["mode"] == "scheduled" else {k: auto[k] for k in auto if k != "plan"}
        ),
        "burst": st.fixed_dictionaries(
            {
                "n": st.integers(0, 3),
                "price": st.just(16),
                "warm_s": st.sampled_from([0, 30, 180]),
                "up": st.just(0.9),
                "down": st.just(0.75),
                "cooldown_s": st.sampled_from([0, 300]),
            },
            optional={"interrupt_h": st.sampled_from([0.05, 0.3])},
        ),
    },
)
RATES = st.lists(st.floats(0, 40), min_size=30, max_size=200).filter(lambda rates: sum(rates) > 1)


@settings(max_examples=150)
@given(PARAMS, RATES)
def test_every_request_is_served_refused_lost_or_still_queued(
    params: dict[str, Any], rates: list[float]
) -> None:
    r = simulate(rates, read_strategy(params))
    queued = r.offered - r.served - r.lost_in_flight - r.refused
    longest_queue = r.wait_s_by_bin[-1] * 2 * 3.0 * 20  # (before + after) / (2 capacity), at most 20 nodes
    assert -1e-6 <= queued <= longest_queue + 1e-6
    assert 0 <= r.refused_share <= 1
    if "D" not in params:
        assert r.refused == 0


@settings(max_examples=60)
@given(RATES, NODES, st.sampled_from([0.0, 1.5, 30.0]))
def test_a_longer_wait_never_refuses_more(rates: list[float], nodes: int, wait_s: float) -> None:
    short = simulate(rates, read_strategy({"n": nodes, "D": wait_s}))
    longer = simulate(rates, read_strategy({"n": nodes, "D": wait_s + 1}))
    assert longer.refused <= short.refused + 1e-9


def test_a_constant_overload_refuses_what_flow_balance_says() -> None:
    r = simulate([15.0] * 10_000, read_strategy({"n": 4, "D": 1.5}))
    assert r.refused_share == pytest.approx(1 - 12 / 15, abs=1e-3)  # 1 - 1/rho, but for the first fill
    assert r.wait_p99_s == pytest.approx(1.5)


def test_a_cold_start_is_billed_and_serves_nothing() -> None:
    rates = [1.0] * 6 + [12.0] * 30
    auto = {"mode": "reactive", "rho": 1.0, "min": 1, "max": 4, "stab_s": 300, "cold_s": 120}
    r = simulate(rates, read_strategy({"n": 1, "D": 0, "auto": auto}))
    # Demand is seen at bin 9 (window mean over 6 bins: 3 of 12 -> 6.5 needs 3), at bin 12 all of it.
    launched = np.flatnonzero(np.diff(r.nodes_by_bin))
    served = rates * np.array(BIN_S) - r.refused_by_bin
    assert r.nodes_by_bin[9] == 3
    assert r.nodes_by_bin[12] == 4
    assert launched[0] == 8
    assert served[20] == pytest.approx(30.0)  # launched at 9, ready at 21
    assert served[21] == pytest.approx(90.0)
    assert served[24] == pytest.approx(120.0)


def test_what_needs_no_warm_up_serves_from_the_next_bin_on() -> None:
    # The order of a bin: nodes become ready, then controllers act. Bin 0 has what there was: one node.
    auto = {"mode": "reactive", "rho": 1.0, "min": 1, "max": 4, "stab_s": 0, "cold_s": 0}
    r = simulate([12.0] * 12, read_strategy({"n": 1, "D": 0, "auto": auto}))
    assert r.nodes_by_bin[0] == 4  # billed from launch
    assert r.refused_by_bin.tolist() == [90.0] + [0.0] * 11
    burst = {"n": 3, "price": 6, "warm_s": 0, "up": 0.9, "down": 0.1, "cooldown_s": 300}
    r = simulate([12.0] * 12, read_strategy({"n": 1, "D": 0, "burst": burst}))
    assert r.refused_by_bin.tolist() == [90.0] + [0.0] * 11
    assert r.burst_hours == pytest.approx(3 * 12 * BIN_S / 3600)


def test_interrupted_burst_nodes_lose_what_they_hold() -> None:
    rates = [6.0] * 400
    burst = {"n": 1, "price": 6, "warm_s": 0, "up": 0.9, "down": 0.1, "cooldown_s": 300, "interrupt_h": 0.5}
    r = simulate(rates, read_strategy({"n": 1, "D": 1.5, "burst": burst}))
    assert r.lost_in_flight == 72  # after 180 bins, and again
    assert r.burst_hours == pytest.approx(400 * BIN_S / 3600)


def test_spot_hours_cost_their_own_price() -> None:
    burst = {"n": 2, "price": 6, "warm_s": 180, "up": 0.0, "down": 0.0, "cooldown_s": 0}
    r = simulate([1.0] * 360, read_strategy({"n": 1, "burst": burst}), NodeClass(usd_per_hour=Decimal(28)))
    assert r.cost_usd == pytest.approx(28 + 12)


TWIN = """
import json, sys
from fleet.fluid import simulate
from fleet.month_result import as_columns
from fleet.strategies import read_strategy
print(json.dumps([as_columns(simulate(r, read_strategy(p))) for p, r in json.load(sys.stdin)]))
"""


def test_compiled_and_plain_python_agree() -> None:
    rng = np.random.default_rng(7)
    cases: list[tuple[dict[str, Any], list[float]]] = []
    for row in reference_rows()[:13]:
        # Twice a short "day" so that controllers, cold starts and interruptions all happen.
        rates = (12 + 11 * np.sin(np.arange(600) / 40) + rng.uniform(0, 6, 600)).tolist()
        cases.append((json.loads(row["params"]), rates))
    plain = subprocess.run(
        [sys.executable, "-c", TWIN],
        input=json.dumps(cases),
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    compiled = [as_columns(simulate(rates, read_strategy(params))) for params, rates in cases]
    assert json.loads(plain.stdout) == compiled


@pytest.mark.parametrize(
    ("params", "pointer"),
    [
        ({}, "/params/n"),
        ({"n": 0}, "/params/n"),
        ({"n": 2.5}, "/params/n"),
        ({"n": True}, "/params/n"),
        ({"n": 5, "d": 1.5}, "/params/d"),
        ({"n": 5, "D": float("nan")}, "/params/D"),
        ({"n": 5, "D": "1.5"}, "/params/D"),
        ({"n": 5, "auto": {"mode": "psychic", "min": 1, "max": 2}}, "/params/auto/mode"),
        ({"n": 5, "auto": {"mode": "reactive", "min": 3, "max": 2}}, "/params/auto/max"),
        ({"n": 5, "auto": {"mode": "scheduled", "min": 1, "max": 2}}, "/params/auto/plan"),
        (
            {"n": 5, "auto": {"mode": "scheduled", "min": 1, "max": 2, "plan": [[0, 8, 1]]}},
            "/params/auto/plan",
        ),
        ({"n": 5, "burst": {"n": 2}}, "/params/burst/price"),
        ({"n": 5, "burst": [2]}, "/params/burst"),
        ({"n": 10**400}, "/params/n"),
        ({"n": 5, "D": float("inf")}, "/params/D"),
        ({"n": 5, "ctl_s": 10, "window_s": 86_400}, "/params/ctl_s"),
        (
            {"n": 5, "ctl_s": 10, "auto": {"mode": "reactive", "min": 1, "max": 2, "stab_s": 86_400}},
            "/params/ctl_s",
        ),
        ({"n": 5, "auto": {"mode": "predictive", "min": 1, "max": 2, "cold_s": 86_400}}, "/params/ctl_s"),
        (
            {"n": 5, "auto": {"mode": "scheduled", "min": 1, "max": 2, "plan": [[0, 24, 1]] * 289}},
            "/params/auto/plan",
        ),
    ],
)
def test_a_wrong_parameter_is_named(params: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_strategy(params)
    assert caught.value.field == pointer


@pytest.mark.parametrize("rates", [[], [0.0, 0.0], [1.0, float("nan")], [1.0, -1.0], [float("inf")]])
def test_impossible_traffic_is_refused(rates: list[float]) -> None:
    with pytest.raises(InvalidInput):
        simulate(rates, read_strategy({"n": 1}))


def test_the_bundled_profiles_fill_a_month_of_mean_12(months: dict[str, Any]) -> None:
    for name, rates in months.items():
        assert rates.size == MONTH_BINS
        # C has 14 days: the month holds them twice and two days more.
        assert rates.mean() == pytest.approx(12.0, rel=0.03 if name == "C" else 1e-6)
