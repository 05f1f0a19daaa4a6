"""An overload is said first, and a fleet's rho above its nodes' is explained."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from control.freshness import Freshness
from control.queries_fleet import HealthView, RoundView
from control.queries_nodes import NodeRowView
from control.queries_policy import GatewayState
from dashboard import viewmodels_fleet as fleet
from dashboard.data import FleetNow, RolloutNow
from dashboard.times import UTC_ZONE
from dashboard.viewmodels import DIAGNOSIS_PAGE, last_known
from dashboard.viewmodels_attention import attention, nothing
from dashboard.viewmodels_overload import overload, two_rhos
from dashboard.viewmodels_quality import cards as quality_cards
from dashboard.viewmodels_rollout import cards as rollout_cards
from dashboard.viewmodels_rollout import gateway_rows, not_everywhere
from fleet.messages import QueueState
from fleet.outcomes import Tier
from tests.unit.dashboard.test_viewmodels import alert, gateway, rollout, traffic

AT = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
#: 57 requests/s compete for 16: rho 57 / 16 = 3.56; 20 of them reach two nodes of 8 each: 10 / 8 = 1.25.
FLEET = HealthView(
    scope="fleet", name="", at=AT, age_s=4.0, is_stale=False, rho=3.56, rho_low=3.2, rho_high=4.0,
    grade="A", method="curve", binding="slots",
    service_rate=16.0, service_rate_low=14.0, service_rate_high=18.0,
    output_tokens_rate=3000.0, arrival_rate=60.0, throughput=16.0, flow_balance=1.0, flow_balance_z=0.0,
    saturated=True, headroom_rps=0.0, running=128, waiting=300, kv_used_ratio=0.4, partial=False,
    missing_nodes=(), detail={"competing_rate": 57.0, "arrivals_from": "gateways"},
)  # fmt: skip


def node(name: str, rho: float | None, *, waiting: int | None = 3) -> NodeRowView:
    return NodeRowView(
        name=name, pool="main", base_url="http://n", price_class="on_demand", state="active",
        freshness=Freshness.FRESH, seen_at=AT, age_s=3.0, models=("m",), engines=1, rho=rho, rho_low=rho,
        rho_high=rho, grade="A", binding="slots", saturated=True, arrival_rate=10.0, throughput=8.0,
        service_rate=8.0, running=64, waiting=waiting, kv_used_ratio=0.4, kv_used_tokens=1,
        kv_capacity_tokens=2, flags=(), last_failure_at=None, last_failure_reason=None,
        last_failure_detail=None,
    )  # fmt: skip


NODES = (node("n1", 1.25), node("n2", 1.2))
NOW = FleetNow(FLEET, NODES, (), (), (), (), {}, ())


def test_an_overload_is_the_first_thing_that_wants_attention_and_leads_to_its_cause() -> None:
    loud = (alert(1, "node_silent", "node", "n9"), alert(2, "rho_high", "fleet", ""))
    found = attention(replace(NOW, alerts=loud, traffic=(traffic(100, 70),)), AT, UTC_ZONE)
    assert (found[0].word, found[0].tone, found[0].page) == ("overloaded", "act", DIAGNOSIS_PAGE)
    assert "rho 3.56. 57 req/s compete for a capacity of 16 req/s" in found[0].text
    assert {"critical", "refusing"} <= {n.word for n in found[1:]}


def test_up_to_a_rho_of_one_and_in_an_old_verdict_there_is_no_overload() -> None:
    assert overload(replace(NOW, health=replace(FLEET, rho=1.0))) is None
    assert overload(replace(NOW, health=replace(FLEET, rho=None))) is None
    assert overload(replace(NOW, health=replace(FLEET, is_stale=True))) is None
    assert overload(replace(NOW, health=None)) is None


def test_without_gateways_nothing_is_said_of_refusals() -> None:
    found = overload(replace(NOW, health=replace(FLEET, detail={"arrivals_from": "engines"})))
    assert found is not None
    assert found.text.endswith("the rest waits")
    assert "60 req/s compete" in found.text  # what reached engines: nobody counted another demand


def test_a_fleets_rho_above_its_nodes_says_why_both_are_true() -> None:
    said = two_rhos(NOW)
    assert said is not None
    assert "(1.20 to 1.25) counts what reached them (20 req/s)" in said
    assert "(3.56) counts what competes for them at the gateways (57 req/s)" in said


def test_where_the_two_agree_or_one_is_not_known_there_is_nothing_to_join() -> None:
    assert two_rhos(replace(NOW, health=replace(FLEET, rho=1.3))) is None
    assert two_rhos(replace(NOW, health=replace(FLEET, is_stale=True))) is None
    assert two_rhos(replace(NOW, health=replace(FLEET, detail={"arrivals_from": "engines"}))) is None
    assert two_rhos(replace(NOW, nodes=(node("n1", None),))) is None
    assert (
        two_rhos(replace(NOW, gateways=(gateway("unreachable"),))) is None
    )  # its demand is not the present
    assert two_rhos(replace(NOW, nodes=tuple(replace(n, freshness=Freshness.STALE) for n in NODES))) is None


def door(queued: int) -> GatewayState:
    return replace(
        gateway("converged"), queues={Tier.BATCH: QueueState(requests=queued, tokens=9, oldest_wait_s=1)}
    )


def test_what_waits_at_a_gateway_is_counted_once() -> None:
    # the fleet's own `waiting` (300) holds the gateways' 290: 290 there + 2 x 3 in engines is all there is
    card = fleet.cards(replace(NOW, gateways=(door(290),)))[3]
    assert (card.label, card.value, card.word) == ("Queued now", "296", "waiting")
    assert card.note == "gateways 290, engines 6"


def test_an_engine_that_does_not_say_what_waits_is_not_taken_for_empty() -> None:
    quiet = replace(NOW, nodes=(node("n1", 1.0), node("n2", 1.0, waiting=None)), gateways=(door(5),))
    card = fleet.cards(quiet)[3]
    assert (card.value, card.word) == ("\u2265 5", "partial")
    assert "engines unknown" in card.note


def test_a_dead_gateway_comes_before_the_alerts_it_may_have_caused() -> None:
    gone = gateway("unreachable", message="no answer within 5 s")
    calm = replace(FLEET, rho=0.5)
    now = replace(NOW, health=calm, gateways=(gone, door(5)), alerts=(alert(1, "slo_burn", "fleet", ""),))
    assert [n.word for n in attention(now, AT, UTC_ZONE)] == ["unreachable", "critical"]
    card = fleet.cards(now)[3]
    assert (card.value, card.word) == ("\u2265 11", "partial")  # 5 at the other gateway, 2 x 3 in engines
    assert card.note == "gateways 5 and 1 unknown, engines 6"


def test_a_paused_rollout_waits_for_somebody_s_word() -> None:
    paused = replace(rollout("paused"), reason="too little traffic to judge")
    (found,) = attention(replace(NOW, health=None, rollout=paused), AT, UTC_ZONE)
    assert (found.word, found.link) == ("paused", "Rollout")
    assert "Revision 2 is paused at gw-1" in found.text
    assert "too little traffic to judge" in found.since
    assert attention(replace(NOW, health=None, rollout=rollout("baking")), AT, UTC_ZONE) == []


def test_that_nothing_is_wrong_is_said_only_where_somebody_looked() -> None:
    assert nothing(FleetNow(None, (), (), (), (), (), {}, ())).startswith("Nothing is watched yet")
    assert nothing(NOW).startswith("Nobody has looked yet")
    seen = replace(NOW, rounds=(RoundView(AT, 10.0, 0.2, 0.0, 2, 2, {}),))
    assert nothing(seen).startswith("Nothing: no alert is open, every active node is fresh, no gateway is")
    assert nothing(replace(seen, gateways=(door(0),), nodes=())).endswith(
        "no node is registered, every gateway converged."
    )
    assert {card.value for card in quality_cards([], is_judged=False)} == {"\u2014"}
    assert {card.value for card in quality_cards([])} == {"0"}
    assert {card.note for card in quality_cards([])} == {""}  # "0, numbers are unknown" says both


def test_a_policy_says_where_it_is_not_in_force() -> None:
    first, second = gateway("converged"), replace(gateway("converged", observed=1), name="gw-2")
    said = not_everywhere(RolloutNow(rollout("paused"), (first, second), None))
    assert said == "Revision 2 (paused) is confirmed by 1 of 2 gateways; not by: gw-2 on revision 1"
    away = replace(gateway("unreachable"), name="gw-2")
    said = not_everywhere(RolloutNow(rollout("live"), (first, away), None))
    assert said == "Revision 2 (live) is confirmed by 1 of 2 gateways; not by: gw-2 unreachable"
    assert not_everywhere(RolloutNow(rollout("live"), (first,), None)) is None
    assert not_everywhere(RolloutNow(None, (first,), None)) is None


def test_a_stage_that_was_reached_is_in_force_only_where_every_gateway_says_so_now() -> None:
    first, second = gateway("converged"), replace(gateway("converged"), name="gw-2")

    def stage(state: str, *found: GatewayState) -> tuple[str, str, str]:
        card = rollout_cards(RolloutNow(rollout(state), found, None), AT, UTC_ZONE)[1]
        return card.value, card.word, card.tone

    assert stage("live", first, second) == ("live", "in force", "good")
    away = replace(gateway("unreachable"), name="gw-2")
    assert stage("live", first, away) == ("live", "not everywhere now", "watch")
    assert stage("live") == ("live", "not everywhere now", "watch")  # no gateway: in force nowhere
    confirmed = rollout_cards(RolloutNow(rollout("live"), (), None), AT, UTC_ZONE)[2]
    assert (confirmed.value, confirmed.tone) == ("\u2014", "unknown")  # "0 of 0" is no count


def test_an_answer_of_before_an_outage_gives_no_verdict_about_now() -> None:
    first = replace(gateway("converged"), age_s=1.0)
    rows = gateway_rows([first], old_s=50.0)
    assert (rows["condition"], rows["heard"]) == (["? converged"], ["51 s ago"])
    assert gateway_rows([first])["heard"] == ["1 s ago"]
    cards = rollout_cards(RolloutNow(rollout("live"), (first,), None), AT, UTC_ZONE)
    assert {card.tone for card in last_known(cards)} == {"unknown"}
    assert [card.value for card in last_known(cards)] == [card.value for card in cards]
