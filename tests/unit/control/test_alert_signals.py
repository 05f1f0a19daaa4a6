"""Flow signals and capacity as what alert rules see: units, unknowns, and who is still a subject."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from control.alert_signals import AlertFacts, from_flow
from control.assess import Assessment, NodeState
from control.fleet_facts import Node
from control.freshness import Freshness
from control.gateway_scrape import FlowWindow
from control.rounds import GatewayResult, Round
from fleet.alert_rules import RULES
from fleet.flow_signals import UNITS, FlowRule, FlowSignal
from fleet.readings import Reason

T0 = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def assessment(*nodes: str) -> Assessment:
    states = tuple(
        NodeState(Node(name, "h100", f"http://{name}/", "active", T0), Freshness.FRESH, 0.0, (), None, "")
        for name in nodes
    )
    return Assessment(T0, 10.0, (), states)


def round_of(*gateways: GatewayResult) -> Round:
    return Round(T0, 10.0, 0.1, 0.0, (), gateways)


def signal(rule: FlowRule, value: float | None, scope: str = "fleet", subject: str = "") -> FlowSignal:
    return FlowSignal(rule, scope, subject, value, f"{rule.value} {value}")


def seen(
    *signals: FlowSignal, gateways: tuple[GatewayResult, ...] = ()
) -> dict[tuple[str, str], float | None]:
    found = from_flow(signals, assessment("n1"), round_of(*gateways))
    return {(o.rule, o.subject): o.value for o in found}


def test_every_signal_is_the_value_of_a_rule_that_watches_its_scope() -> None:
    for rule in UNITS:
        name = "slo_burn" if rule.value.startswith("slo_burn") else rule.value
        assert name in RULES


@pytest.mark.parametrize(
    ("fast", "slow", "value"),
    [
        (14.4, 3.0, 1.0),  # each over its own limit: 14.4/14.4 and 3/6
        (7.2, 9.0, 1.5),
        (28.8, None, 2.0),  # one pair surely burns: enough to open
        (1.0, None, None),  # the other may burn: nobody knows
        (None, None, None),
        (0.0, 0.0, 0.0),
    ],
)
def test_two_burn_rates_are_one_value_against_their_limits(
    fast: float | None, slow: float | None, value: float | None
) -> None:
    found = seen(signal(FlowRule.SLO_BURN_FAST, fast), signal(FlowRule.SLO_BURN_SLOW, slow))
    assert found == {("slo_burn", ""): value if value is None else pytest.approx(value)}


def test_a_tier_nobody_uses_starves_nobody_once_all_gateways_were_heard() -> None:
    idle = GatewayResult("g1", ())
    busy = GatewayResult("g2", (FlowWindow("acme", "batch", 10.0, offered=1),))
    deaf = GatewayResult("g3", None, Reason.TIMEOUT, "late")
    waits = signal(FlowRule.STARVATION, 0.95, "tier", "batch")
    found = seen(waits, gateways=(idle, busy))
    assert found["starvation", "batch"] == 0.95
    assert found["starvation", "interactive"] == 0.0
    assert ("starvation", "interactive") not in seen(waits, gateways=(idle, deaf))
    assert ("starvation", "interactive") not in seen(waits)


def test_nodes_keep_their_pool_so_that_they_are_told_together() -> None:
    (found,) = from_flow([signal(FlowRule.KV_EXHAUSTION, 1.2, "node", "n1")], assessment("n1"), round_of())
    assert (found.pool, found.value) == ("h100", 1.2)


def test_facts_nobody_has_read_for_a_minute_are_unknown() -> None:
    facts = AlertFacts()
    assert facts.observations(T0) == []
    facts._gateways = [
        found for found in from_flow([signal(FlowRule.BURST, 3.0)], assessment(), round_of())
    ]
    facts._read_at = T0
    assert [o.value for o in facts.observations(T0 + timedelta(seconds=60))] == [3.0]
    assert [o.value for o in facts.observations(T0 + timedelta(seconds=61))] == [None]
