"""Every rho in words: intervals, what own limits refused, and nothing of a verdict that is old."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from control.queries_fleet import HealthView
from control.queries_rho import as_dict
from dashboard import viewmodels_fleet as fleet
from dashboard import viewmodels_rho as vm
from dashboard.data import FleetNow
from dashboard.viewmodels import SIGNS
from dashboard.viewmodels_overload import overload

AT = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
DETAIL = {
    "rho_slow": 0.58, "rho_slow_low": 0.5, "rho_slow_high": 0.7,
    "competing_rate": 6.0, "limited_rate": 14.0, "rho_limited": 1.4,
    "worst": "n2", "worst_rho": 0.9, "imbalance": 1.5, "time_to_drain_s": 20.0,
    "batch_used_ratio": 0.4, "batch_expected_ratio": 0.61,
    "rho_by_limit": {"slots": {"value": 0.6, "low": 0.5, "high": 0.7}, "kv": {"value": 0.3}},
    "mu_by_limit": {"slots": {"value": 10.0}, "kv": {"value": 20.0}},
    "explanation": ["rho = lambda / mu = 6 / 10 = 0.60"],
}  # fmt: skip
FLEET = HealthView(
    scope="fleet", name="", at=AT, age_s=4.0, is_stale=False, rho=0.6, rho_low=0.48, rho_high=0.75,
    grade="A", method="curve", binding="slots",
    service_rate=10.0, service_rate_low=8.0, service_rate_high=12.5,
    output_tokens_rate=3000.0, arrival_rate=20.0, throughput=6.0, flow_balance=1.0, flow_balance_z=0.0,
    saturated=False, headroom_rps=2.5, running=32, waiting=0, kv_used_ratio=0.2, partial=False,
    missing_nodes=(), detail=DETAIL,
)  # fmt: skip


def test_a_row_gives_every_rho_with_its_interval_and_what_own_limits_refused():
    row = {name: values[0] for name, values in vm.rows([FLEET]).items()}
    assert (row["rho"], row["interval"], row["grade"]) == (0.6, "0.48 to 0.75", "A")
    assert row["5 min"] == "0.58 (0.50 to 0.70)"
    assert row["worst"] == "0.90 n2, 1.5 times"
    # 20/s came, 14/s were refused by their callers' quotas: 6/s compete for 10/s
    assert (row["demand"], row["own limits"], row["capacity"]) == ("6 req/s", "14 req/s", "10 req/s")
    assert row["binding"] == "sequence slots"
    assert row["time"] == "drained in 20 s"


def test_an_old_verdict_has_an_age_and_no_numbers():
    row = {n: v[0] for n, v in vm.rows([replace(FLEET, is_stale=True, age_s=300.0)]).items()}
    assert "5 min ago" in row.pop("verdict")
    assert row.pop("subject") == "fleet"
    assert set(row.values()) == {None}
    assert vm.limit_rows(replace(FLEET, is_stale=True))["limit"] == []
    assert vm.why(replace(FLEET, is_stale=True, age_s=300.0))[0].startswith("This verdict is")


def test_limits_are_ranked_and_the_binding_one_is_named():
    assert vm.limit_rows(FLEET)["limit"] == ["sequence slots (binds)", "KV cache"]
    assert vm.limit_rows(FLEET)["interval"] == ["0.50 to 0.70", None]


def test_an_occupancy_comes_with_what_to_expect_of_it():
    assert vm.occupancy(FLEET) == (
        "Batch in use: 40 % of the operating batch; at rho 0.85 expect 61 %. Not utilization."
    )
    assert vm.occupancy(None) == "Batch in use: \u2014"


def test_the_fleet_s_card_says_what_own_limits_refused():
    card = fleet.rho_card(FLEET)
    assert card.value == "0.60"
    assert "without 1.40 that tenants' own limits refused" in card.note


def test_a_rho_without_what_gateways_refuse_and_hold_is_a_lower_bound_and_no_room():
    uncounted = replace(FLEET, detail={**DETAIL, "arrivals_from": "engines"})
    card = fleet.rho_card(uncounted, has_gateways=True)
    assert (card.value, card.word, card.tone) == ("\u2265 0.60", "at least", "unknown")
    assert "without what they refuse and hold" in card.note
    over = fleet.rho_card(replace(uncounted, rho=1.2, rho_low=1.1), has_gateways=True)
    assert (over.word, over.tone) == ("overloaded", "act")  # a lower bound proves overload
    assert fleet.rho_card(uncounted).tone == "good"  # no gateway: engines see all that comes
    counted = replace(FLEET, detail={**DETAIL, "arrivals_from": "gateways"})
    assert fleet.rho_card(counted, has_gateways=True).tone == "good"


def test_a_rho_on_a_capacity_that_nobody_measured_says_so() -> None:
    typed = fleet.rho_card(replace(FLEET, grade=None, method="configured"))
    assert "on a configured capacity, not a measured one" in typed.note
    assert "configured" not in fleet.rho_card(FLEET).note
    mixed = fleet.rho_card(replace(FLEET, grade=None, method="mixed"))
    assert "on capacities that were not all measured" in mixed.note
    unknown = fleet.rho_card(replace(FLEET, rho=None, grade=None, method="configured"))
    assert "on a configured" not in unknown.note  # then there is no rho that rests on it


def silent(rho: float, least: float) -> HealthView:
    said = {"arrivals_from": "gateways", "silent_gateways": {"gw-2": 40.0}, "rho_heard": least}
    return replace(FLEET, rho=rho, partial=True, detail={**DETAIL, **said})


def test_a_rho_with_the_last_demand_of_a_silent_gateway_is_no_exact_number() -> None:
    card = fleet.rho_card(silent(0.6, 0.3), has_gateways=True)
    assert (card.value, card.word, card.tone) == ("\u2265 0.30", "at least", "unknown")
    assert "gw-2 silent for 40 s: 0.60 with what was told last" in card.note
    assert "0.48 to 0.75" not in card.note  # the capacity's interval says nothing of the demand
    assert "some nodes unknown" not in card.note
    row = {name: values[0] for name, values in vm.rows([silent(0.6, 0.3)]).items()}
    assert (row["rho"], row["verdict"]) == (0.3, f"{SIGNS['unknown']} at least")
    assert row["interval"] is None  # the card above names the gateway; a cell would cut it
    said = as_dict(silent(0.6, 0.3))
    assert (said["partial"], said["rho_at_least"], said["silent_gateways"]) == (True, 0.3, {"gw-2": 40.0})


def test_an_overload_that_is_sure_whatever_a_silent_gateway_adds_is_said_as_one() -> None:
    card = fleet.rho_card(silent(2.0, 1.2), has_gateways=True)
    assert (card.value, card.word, card.tone) == ("\u2265 1.20", "overloaded", "act")
    now = FleetNow(silent(2.0, 1.2), (), (), (), (), (), {}, ())
    sure, maybe = overload(now), overload(replace(now, health=silent(2.0, 0.9)))
    assert sure is not None
    assert maybe is not None
    assert (sure.tone, maybe.tone) == ("act", "watch")
    assert "rho at least 1.20" in sure.text
    assert "may be overloaded: rho is at least 0.90; gw-2 silent for 40 s: 2.00 with" in maybe.text
