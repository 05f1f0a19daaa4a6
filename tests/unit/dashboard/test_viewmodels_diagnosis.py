"""The diagnosis in words: units, confidence, links to knobs, and gaps drawn as gaps."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from control.queries_fleet import HealthView
from dashboard import viewmodels_diagnosis as vm
from dashboard.times import UTC_ZONE
from fleet.diagnosis_evidence import Cause, Curve, Finding, Kind, Number, Series, Verdict
from tests.unit.dashboard.test_viewmodels import gateway

T0 = 1_800_000_000.0


def finding(confidence: float = 0.9, link: str = "policy:admission.order", *series: Series) -> Finding:
    return Finding(
        Cause.FIFO_MIXED_SIZES, confidence, "short answers wait", "Half of them.",
        (Number("wait for a place, p95", 0.42, "s"), Number("KV cache", None, "ratio")),
        "Queue shortest first", link, "The wait falls.", series=series,
    )  # fmt: skip


def test_numbers_carry_their_unit_and_the_unknown_is_a_dash():
    view = vm.finding(finding(), 1, UTC_ZONE)
    assert view.numbers == {
        "evidence": ["wait for a place, p95", "KV cache"],
        "value": ["420 ms", "\u2014"],
    }
    assert vm.shown(Number("share", 0.28, "ratio")) == "28 %"
    assert vm.shown(Number("rho", 1.05, "ratio")) == "1.05"
    assert vm.shown(Number("attempts per request", 2.5, "times")) == "2.5 \u00d7"
    assert vm.shown(Number("in flight", 64.0, "requests")) == "64 requests"


@pytest.mark.parametrize(
    ("confidence", "word"), [(0.9, "sure, 90 %"), (0.7, "probable, 70 %"), (0.55, "possible, 55 %")]
)
def test_confidence_is_a_word_and_a_number(confidence: float, word: str):
    assert vm.finding(finding(confidence), 1, UTC_ZONE).word == word


def test_every_kind_of_knob_leads_somewhere():
    policy = vm.finding(finding(0.9, "policy:admission.order"), 1, UTC_ZONE)
    assert (policy.page, policy.link) == ("app_pages/policy.py", "Open the policy: admission.order")
    node = vm.finding(finding(0.9, "node:gpu-03"), 1, UTC_ZONE)
    assert (node.page, node.query) == ("app_pages/node.py", {"node": "gpu-03"})
    tenant = vm.finding(finding(0.9, "tenant:evals"), 1, UTC_ZONE)
    assert tenant.page == "app_pages/policy.py"
    assert "evals" in tenant.link
    flag = vm.finding(finding(0.9, "flag:--max-num-seqs"), 1, UTC_ZONE)
    assert flag.url.startswith("https://docs.vllm.ai/")
    assert flag.page == ""
    assert vm.finding(finding(0.9, "page:estimates"), 1, UTC_ZONE).page == "app_pages/estimates.py"


def test_a_missing_round_is_a_gap_and_one_point_is_no_chart():
    series = Series("waiting", "requests", ((T0, 1.0), (T0 + 10, 2.0), (T0 + 40, 5.0)))
    figure = vm.line(series, UTC_ZONE)
    assert figure is not None
    assert figure.spec["data"][0]["y"] == [1.0, 2.0, None, None, 5.0]
    assert vm.line(Series("waiting", "requests", ((T0, 1.0),)), UTC_ZONE) is None
    assert vm.line(Series("waiting", "requests", ()), UTC_ZONE) is None


def test_the_cards_say_unknown_where_nothing_is_known():
    cards = {card.label: card for card in vm.cards(Verdict(Kind.UNKNOWN, "Cannot say."))}
    assert cards["Verdict"].value == "Cannot say"
    assert (cards["Use of the hardware"].value, cards["Use of the hardware"].tone) == ("\u2014", "unknown")
    assert cards["Rho"].word == "unknown"
    keys = [card.key for card in cards.values()]
    assert len(set(keys)) == len(keys)


def test_the_window_and_the_place_of_measurement_stand_beside_the_numbers_and_so_does_now():
    numbers = (
        Number("rho", 0.6149, "ratio"),
        Number("refused", 0.034, "ratio"),
        Number("first token, p95", 1.9, "s"),
        Number("first token, measured at", "gateways"),
    )
    health = HealthView(
        scope="fleet", name="", at=datetime.fromtimestamp(T0, UTC), age_s=5.0, is_stale=False, rho=2.56,
        rho_low=2.1, rho_high=3.4, grade="B", method="curve", binding="kv", service_rate=10.0,
        service_rate_low=8.0, service_rate_high=12.0, output_tokens_rate=None, arrival_rate=25.6,
        throughput=10.0, flow_balance=2.56, flow_balance_z=None, saturated=True, headroom_rps=0.0,
        running=9, waiting=9, kv_used_ratio=0.9, partial=False, missing_nodes=(),
    )  # fmt: skip
    cards = {c.label: c for c in vm.cards(Verdict(Kind.CAPACITY, "x", numbers=numbers), "15 min", health)}
    assert cards["Rho, 15 min"].value == "0.61"
    assert cards["Rho, 15 min"].note == "now 2.56, as on the Fleet page"
    assert cards["First token p95, 15 min"].note == "at the gateways"
    refused = cards["Refused for want of room, 15 min"]  # what tenants' own limits refused is not in it
    assert (refused.value, "own limits refused is not in it" in refused.help) == ("3.4 %", True)
    told = {"arrivals_from": "gateways", "silent_gateways": {"gw-2": 40.0}, "rho_heard": 0.3}
    part = vm.cards(Verdict(Kind.HEALTHY, "x"), "15 min", replace(health, partial=True, detail=told))
    assert part[2].note == "now at least 0.30, as on the Fleet page"
    unknown = {c.label: c for c in vm.cards(Verdict(Kind.UNKNOWN, "x"), "1 h", None)}
    assert unknown["Rho, 1 h"].note == "now: not known"
    assert unknown["First token p95, 1 h"].note == ""


def test_low_use_is_worth_a_look_and_high_use_is_not():
    def card(p50: float) -> vm.Card:
        verdict = Verdict(Kind.SCHEDULING, "x", utilization=Curve(p50 / 2, p50, p50, 10))
        return next(c for c in vm.cards(verdict) if c.label == "Use of the hardware")

    assert (card(0.28).value, card(0.28).tone, card(0.28).note) == ("28 %", "watch", "p10 14 %, p90 28 %")
    assert card(0.6).tone == "plain"


def test_well_is_said_only_where_every_gateway_is_heard() -> None:
    well, lacking = Verdict(Kind.HEALTHY, "x"), Verdict(Kind.CAPACITY, "x")
    assert vm.not_heard((gateway("converged"), gateway("behind"))) is None
    gone = (gateway("converged"), replace(gateway("unreachable"), name="gw-2", age_s=130.0))
    assert str(vm.not_heard(gone)).startswith("gw-2 (heard 2 min ago): no present word")
    assert "never heard" in str(vm.not_heard((replace(gateway("unknown"), age_s=None),)))
    assert (vm.tone_of(well), vm.tone_of(well, is_partial=True)) == ("good", "unknown")
    assert vm.tone_of(lacking, is_partial=True) == "act"  # what is wrong stays so, whatever the rest adds
    assert vm.cards(well, is_partial=True)[0].tone == "unknown"
