"""Our verdicts as series for Prometheus, HPA and KEDA: rho, headroom, desired nodes, SLO attainment.

Ratios 0..1 (rho may exceed 1), rates per second. What is not known is absent, never 0, and so is
everything once the newest round is old or this process observes no more: an autoscaler then keeps what
it has. Prevents: a scale-down to zero because the controller restarted, and two controllers whose series
add up to twice the fleet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from control.assess import Assessment, Verdict
from control.flow_book import FlowState
from control.freshness import Freshness, stale_after_s
from fleet.clock import Clock
from fleet.cost import TARGET_RHO
from fleet.health_reading import Health

#: A desired number of nodes is never below this: a pool without nodes cannot be measured.
MIN_NODES = 1
LABELS = ("scope", "name", "pool")

#: Family -> what it says. The unit is in the name.
HELP: dict[str, str] = {
    "rhodeck_utilization_ratio": "rho = arrival rate / service rate over 60 s; above 1 the queue grows.",
    "rhodeck_utilization_low_ratio": "Lower end of the interval of rho.",
    "rhodeck_utilization_high_ratio": "Upper end of the interval of rho.",
    "rhodeck_arrival_requests_per_second": "lambda: everything at the door over 60 s, refused included.",
    "rhodeck_throughput_requests_per_second": "X: finished requests over 60 s. Never a capacity.",
    "rhodeck_service_requests_per_second": "mu: what could be finished at the present mix.",
    "rhodeck_service_low_requests_per_second": "Lower end of the interval of mu.",
    "rhodeck_service_high_requests_per_second": "Upper end of the interval of mu.",
    "rhodeck_headroom_requests_per_second": "Requests/s until rho is 0.85; 0 over it.",
    "rhodeck_headroom_tokens_per_second": "Output tokens/s until rho is 0.85.",
    "rhodeck_running_requests": "Requests in the engines' batches.",
    "rhodeck_waiting_requests": "Requests that wait: in engines, and at gateways where those count demand.",
    "rhodeck_saturated": "1 while requests wait and no slot is free, else 0.",
    "rhodeck_capacity_grade": "How well mu is known: A (measured at the limit) to D (a guess).",
    "rhodeck_active_nodes": "Nodes that take work.",
    "rhodeck_desired_nodes": "Nodes that would put rho at 0.85: ceil(nodes * rho / 0.85), at least 1.",
    "rhodeck_desired_high_nodes": "The same for the upper end of rho: scale by this to be safe.",
    "rhodeck_slo_attainment_low_ratio": "Share of the last hour's requests surely within the objective.",
    "rhodeck_slo_attainment_high_ratio": "Share of the last hour's requests at most within the objective.",
    "rhodeck_assessed_timestamp_seconds": "When the round behind these series began, Unix seconds.",
}


@dataclass(frozen=True, slots=True)
class Point:
    """One sample to export."""

    family: str
    labels: tuple[str, ...]
    value: float


class DerivedMetrics(Collector):
    """The newest verdicts as a collector for a registry. `take` on the loop, `collect` from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._points: tuple[Point, ...] = ()
        self._taken_s = 0.0
        self._limit_s = 0.0

    def take(self, assessment: Assessment, flow: Iterable[FlowState] = ()) -> None:
        """Export this round from now on, until it is stale."""
        self._points = tuple(points(assessment, flow))
        self._taken_s = self._clock.monotonic_s()
        self._limit_s = stale_after_s(assessment.period_s)

    def drop(self) -> None:
        """Export nothing: somebody else observes."""
        self._points = ()

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Nothing is known before a round; without this the registry would ask `collect`."""
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return the families that have a sample."""
        if self._clock.monotonic_s() - self._taken_s > self._limit_s:
            return
        families: dict[str, GaugeMetricFamily] = {}
        for point in self._points:
            family = families.get(point.family)
            if family is None:
                family = GaugeMetricFamily(point.family, HELP[point.family], labels=labels_of(point.family))
                families[point.family] = family
            family.add_metric(point.labels, point.value)
        yield from families.values()


def labels_of(family: str) -> tuple[str, ...]:
    """Return a family's label names."""
    if family == "rhodeck_assessed_timestamp_seconds":
        return ()
    return (*LABELS, "grade") if family == "rhodeck_capacity_grade" else LABELS


def points(assessment: Assessment, flow: Iterable[FlowState] = ()) -> Iterator[Point]:
    """Return every sample a round gives. What is unknown gives none."""
    pool_of = {state.node.name: state.node.pool for state in assessment.nodes}
    active: dict[str, int] = {}
    fresh: dict[str, int] = {}
    for state in assessment.nodes:
        if state.node.takes_work:
            is_fresh = state.freshness is Freshness.FRESH
            for key in (state.node.pool, ""):
                active[key] = active.get(key, 0) + 1
                fresh[key] = fresh.get(key, 0) + is_fresh
    for verdict in assessment.verdicts:
        pool = pool_of.get(verdict.name, "") if verdict.scope == "node" else ""
        labels = (verdict.scope, verdict.name, pool)
        yield from _verdict(verdict, labels)
        if verdict.scope in ("pool", "fleet"):
            yield from _nodes(verdict, labels, active.get(verdict.name, 0), fresh.get(verdict.name, 0))
    for state in flow:
        share = None if state.good is None else state.good.share
        if share is not None:
            labels = (*state.subject, "")
            yield Point("rhodeck_slo_attainment_low_ratio", labels, share.low)
            yield Point("rhodeck_slo_attainment_high_ratio", labels, share.high)
    yield Point("rhodeck_assessed_timestamp_seconds", (), assessment.at.timestamp())


def _verdict(verdict: Verdict, labels: tuple[str, ...]) -> Iterator[Point]:
    health = verdict.health
    values: dict[str, float | None] = {
        "rhodeck_utilization_ratio": health.rho.value,
        "rhodeck_utilization_low_ratio": health.rho.low,
        "rhodeck_utilization_high_ratio": health.rho.high,
        "rhodeck_arrival_requests_per_second": health.arrival_rate,
        "rhodeck_throughput_requests_per_second": health.throughput,
        "rhodeck_service_requests_per_second": health.mu.value,
        "rhodeck_service_low_requests_per_second": health.mu.low,
        "rhodeck_service_high_requests_per_second": health.mu.high,
        "rhodeck_headroom_requests_per_second": health.headroom,
        "rhodeck_headroom_tokens_per_second": health.headroom_tokens,
        "rhodeck_running_requests": verdict.running,
        "rhodeck_waiting_requests": health.waiting,
        "rhodeck_saturated": None if health.saturated is None else float(health.saturated),
    }
    for family, value in values.items():
        if value is not None and math.isfinite(value):
            yield Point(family, labels, float(value))
    if health.rho.grade is not None:
        yield Point("rhodeck_capacity_grade", (*labels, health.rho.grade.value), 1.0)


def _nodes(verdict: Verdict, labels: tuple[str, ...], active: int, fresh: int) -> Iterator[Point]:
    yield Point("rhodeck_active_nodes", labels, float(active))
    rho = verdict.health.rho
    for family, ratio in (("rhodeck_desired_nodes", rho.value), ("rhodeck_desired_high_nodes", rho.high)):
        wanted = desired_nodes(verdict.health, ratio, fresh, arrivals_from=verdict.arrivals_from)
        if wanted is not None:
            yield Point(family, labels, float(wanted))


def desired_nodes(health: Health, rho: float | None, fresh: int, *, arrivals_from: str) -> int | None:
    """Return how many nodes like the present ones would put rho at 0.85, at least `MIN_NODES`.

    rho is lambda over what the `fresh` nodes can do, so lambda / (0.85 mu of one node) is
    fresh * rho / 0.85. None (unknown) without rho, without fresh nodes, and where demand is counted at
    the engines while some are missing: what they get is not in lambda.
    """
    if rho is None or not math.isfinite(rho) or fresh < 1:
        return None
    if arrivals_from == "engines" and health.is_partial:
        return None
    # 1e-9: a node more because 3 * 0.85 / 0.85 is 3.0000000000000004 would be one too many
    return max(MIN_NODES, math.ceil(fresh * rho / TARGET_RHO - 1e-9))
