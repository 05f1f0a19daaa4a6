"""Latency over time: what was hardly measured, or lies beyond the last bucket, is a gap and no number."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from control.flow_store import FlowNow
from control.queries_history import LatencyPoint
from control.queries_latency import latency_view
from control.queries_nodes import CapacityView
from dashboard import viewmodels_flow, viewmodels_node
from dashboard.times import UTC_ZONE
from dashboard.viewmodels_latency import first_token_figure
from fleet.readings import Histogram

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def test_a_bucket_without_enough_requests_is_a_gap() -> None:
    def point(number: int, *counts: int) -> LatencyPoint:
        view = latency_view("ttft_s", [Histogram((0.1, 0.2), counts, None)])
        return LatencyPoint(NOW + timedelta(minutes=number), view)

    # 1,000 evenly in (0.1, 0.2]: p50 at 150 ms, p95 at 195 ms; then nobody, four requests, all beyond 0.2 s
    points = [point(0, 0, 1_000, 0), point(1, 0, 0, 0), point(2, 0, 4, 0), point(3, 0, 0, 1_000)]
    p50, p95 = first_token_figure(points, UTC_ZONE).spec["data"]
    assert p50["y"] == [pytest.approx(150), None, None, None]
    assert p95["y"] == [pytest.approx(195), None, None, None]


def test_an_engines_line_says_how_much_slower_tokens_are_at_the_target() -> None:
    # tau(b) = 10 + 0.5 b ms, 100 at once: X = b / tau; 0.85 of X(100) = 1.667/ms is 1.417/ms at b = 48.6:
    # tau(48.6) = 34.3 ms, 3.4 times the 10 ms of one alone
    view = CapacityView(
        engine="0", at=NOW, age_s=5.0, service_rate=4.0, service_rate_low=None, service_rate_high=None,
        grade="A", method="curve", binding="slots", reach_ratio=None,
        detail={
            "operating_batch": 100.0,
            "curve": {"intercept_s": 0.010, "slope_s": 0.0005, "last_slope_s": 0.0005, "knee": None},
        },
    )  # fmt: skip
    (line,) = viewmodels_node.capacity_lines([view])
    assert "at rho 0.85 a token takes 3.4 times as long as alone" in line
    assert ", grade A" in line
    (line,) = viewmodels_node.capacity_lines([replace(view, grade=None, method="configured")])
    assert "grade" not in line  # what an operator typed has none


def test_queue_lengths_are_said_where_nobody_overtakes_and_nowhere_else() -> None:
    rows = [{"q": 0.5, "low": 20, "high": 20}, {"q": 0.99, "low": 31, "high": 32}]
    state = FlowNow("tier", "batch", NOW, "equilibrium", False, None, 12, {"queue_lengths": rows})
    assert viewmodels_flow.queue_lengths(state).startswith("Waiting at once, p50: 20; p99: 31 to 32.")
    assert viewmodels_flow.queue_lengths(FlowNow("tier", "b", NOW, None, None, None, 0, {})) == ""
