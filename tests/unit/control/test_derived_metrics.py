"""What is exported for autoscalers: the arithmetic of desired nodes, and nothing for what nobody knows."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from control.assess import Assessment, NodeState, Verdict
from control.derived_metrics import HELP, DerivedMetrics, desired_nodes
from control.fleet_facts import Node
from control.flow_book import FlowState
from control.freshness import Freshness
from fleet.capacity import Grade
from fleet.clock import ManualClock
from fleet.health_reading import Health, Interval, Rho, Scope
from fleet.slo_windows import GoodCount

T0 = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"


def node(name: str, state: str = "active", freshness: Freshness = Freshness.FRESH) -> NodeState:
    return NodeState(Node(name, "chat", "http://n:1/metrics", state, T0), freshness, 0.0, (), None, "")


UNKNOWN = Rho()


def pool(rho: Rho = UNKNOWN, **known) -> Verdict:
    return Verdict(
        "pool", "chat", Health("chat", Scope.POOL, T0.timestamp(), rho=rho, **known), 7, "gateways"
    )


def exported(assessment: Assessment, flow: tuple[FlowState, ...] = ()) -> CollectorRegistry:
    registry = CollectorRegistry()
    derived = DerivedMetrics(ManualClock(T0))
    registry.register(derived)
    derived.take(assessment, flow)
    return registry


def value(registry: CollectorRegistry, family: str, **labels: str) -> float | None:
    wanted = {"scope": "pool", "name": "chat", "pool": ""} | labels
    return registry.get_sample_value(family, wanted)


@pytest.mark.parametrize(
    ("nodes", "rho", "wanted"),
    [
        (4, 0.85, 4),  # at the target: exactly what is there
        (4, 0.86, 5),  # 4 * 0.86 / 0.85 = 4.05
        (4, 1.70, 8),  # twice the target
        (10, 0.40, 5),  # 4.7
        (3, 0.0, 1),  # idle: the floor, never zero
    ],
)
def test_desired_nodes_put_rho_at_its_target(nodes: int, rho: float, wanted: int):
    health = Health("chat", Scope.POOL, 0.0)
    assert desired_nodes(health, rho, nodes, arrivals_from="gateways") == wanted


def test_desired_nodes_are_unknown_where_rho_or_demand_is():
    whole = Health("chat", Scope.POOL, 0.0)
    partial = Health("chat", Scope.POOL, 0.0, stale=("n3",))
    assert desired_nodes(whole, None, 4, arrivals_from="gateways") is None
    assert desired_nodes(whole, 0.5, 0, arrivals_from="gateways") is None
    # what a silent node is asked for is in the gateways' counts, and not in its neighbours'
    assert desired_nodes(partial, 0.5, 4, arrivals_from="engines") is None
    assert desired_nodes(partial, 0.5, 4, arrivals_from="gateways") == 3  # 4 * 0.5 / 0.85 = 2.4


def test_an_unknown_pool_exports_its_nodes_and_no_zeros():
    states = (node("a"), node("b", "draining"), node("c", freshness=Freshness.SILENT))
    registry = exported(Assessment(T0, 10.0, (pool(),), states))
    text = generate_latest(registry).decode()
    assert value(registry, "rhodeck_active_nodes") == 2
    for absent in ("utilization", "headroom", "desired", "service_requests", "slo", "saturated", "grade"):
        assert f"\nrhodeck_{absent}" not in text


def test_a_known_pool_exports_every_family_and_strict_readers_take_the_page():
    rho = Rho(value=0.68, low=0.6, high=0.8, grade=Grade.B)
    known = pool(
        rho,
        mu=Interval(10.0, 9.0, 11.0),
        arrival_rate=6.8,
        throughput=6.5,
        headroom=1.7,
        headroom_tokens=340.0,
        waiting=0,
        saturated=False,
    )
    unread: Any = None
    good = FlowState(("pool", "chat"), unread, 60, None, None, None, 0.0, good=GoodCount(200, 180, 190))
    registry = exported(Assessment(T0, 10.0, (known,), (node("a"), node("b"))), (good,))
    assert value(registry, "rhodeck_desired_nodes") == 2  # 2 * 0.68 / 0.85 = 1.6
    assert value(registry, "rhodeck_desired_high_nodes") == 2  # 2 * 0.8 / 0.85 = 1.9
    assert value(registry, "rhodeck_saturated") == 0  # measured, and so not absent
    assert value(registry, "rhodeck_waiting_requests") == 0
    assert value(registry, "rhodeck_capacity_grade", grade="B") == 1
    assert value(registry, "rhodeck_slo_attainment_low_ratio") == 0.9
    assert value(registry, "rhodeck_slo_attainment_high_ratio") == 0.95
    page = generate_openmetrics(registry).decode()
    assert {family.name for family in text_string_to_metric_families(page)} == HELP.keys()


def test_nothing_is_exported_once_the_round_is_stale_or_another_observes():
    clock = ManualClock(T0)
    derived = DerivedMetrics(clock)
    derived.take(Assessment(T0, 10.0, (pool(Rho(value=0.5)),), (node("a"),)))
    clock.advance(29.0)
    assert list(derived.collect())
    clock.advance(2.0)  # three rounds of 10 s have passed
    assert not list(derived.collect())
    derived.take(Assessment(T0, 10.0, (pool(Rho(value=0.5)),), (node("a"),)))
    derived.drop()
    assert not list(derived.collect())


def test_every_exported_family_is_documented():
    text = DOCS.read_text()
    assert [family for family in HELP if f"`{family}`" not in text] == []
