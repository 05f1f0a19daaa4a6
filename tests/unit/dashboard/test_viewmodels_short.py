"""Pages that look at little data: one day of a month, thin percentiles, an engine whose cache is small."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest

from control.estimate_runs import Precision
from control.prices import Price
from control.queries_history import LatencyPoint
from control.queries_latency import latency_view
from dashboard import charts_days, viewmodels_goodput, viewmodels_simulation, viewmodels_spend
from dashboard.times import UTC_ZONE
from dashboard.viewmodels_latency import first_token_figure
from dashboard.viewmodels_months import method_words
from fleet.allocation import Basis, Rule, allocate
from fleet.curve_fit import StepCurve
from fleet.day_totals import Day, DayTotals
from fleet.goodput import Advice, EngineModel, advise
from fleet.months import month_of
from fleet.readings import Histogram
from fleet.replay_outcomes import Objectives
from fleet.spend import NodeTime, Use

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
CURVE = StepCurve(0.010, 0.0005)


def test_one_day_is_one_bar_of_its_own_width_on_an_axis_of_days() -> None:
    only = Day(date(2026, 3, 2), Decimal(10), Decimal(0), Decimal(0), Decimal(1), Decimal(0))
    drawn = charts_days.days_chart(
        DayTotals("UTC", datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 4, 1, tzinfo=UTC), (only,))
    )
    day_ms = timedelta(days=1).total_seconds() * 1000
    (bar,) = drawn.spec["data"]
    first, last = (datetime.fromisoformat(end) for end in drawn.spec["layout"]["xaxis"]["range"])
    assert 0 < bar["width"] <= day_ms
    assert drawn.spec["layout"]["xaxis"]["dtick"] == day_ms
    assert first.isoformat() < "2026-03-02T00:00:00" < last.isoformat()
    assert last - first == timedelta(days=7)


def test_a_percentile_no_point_can_show_says_why() -> None:
    # 100 requests a point: p50 has 50 beyond it, p95 only five, fewer than ten
    views = [latency_view("ttft_s", [Histogram((0.1, 0.2), (0, 100, 0), None)])] * 3
    points = [LatencyPoint(NOW + timedelta(minutes=n), view) for n, view in enumerate(views)]
    names = [line["name"] for line in first_token_figure(points, UTC_ZONE).spec["data"]]
    assert names == ["p50", "p95: too few requests a point"]


def test_prices_show_cents_and_every_digit_beyond_them() -> None:
    price = Price("spot", None, Decimal("16.0000"), NOW, "list", "demo", NOW)
    rows = viewmodels_spend.price_rows(
        [price, replace(price, usd_per_node_hour=Decimal("1.2345"))], UTC_ZONE
    )
    assert rows["usd"] == ["16.00", "1.2345"]


def test_a_month_without_node_time_has_unknown_sums() -> None:
    # tenants used 300 engine-seconds in a pool of which no node was observed: no line, and no zero
    use = Use("acme", "batch", "llama", "main", 7, 100, 50, Decimal(300))
    month = allocate(month_of("2026-03", ZoneInfo("UTC")), [], [use], {"main": 4}, is_estimated=True)
    assert month.unplaced_engine_s == 300
    rows = viewmodels_spend.line_rows(month)
    assert [rows[name][-1] for name in ("requests", "prompt", "output", "hours")] == [None] * 4


@pytest.mark.parametrize("basis", ["engine_seconds", "tokens", "kv_token_seconds"])
def test_how_cost_is_divided_is_said_in_words(basis: Basis) -> None:
    said = method_words(Rule(basis, "even").method)
    assert said.startswith("by ")
    assert "/1" not in said
    assert said.endswith("unused shared even")
    assert method_words("of another release") == "of another release"


def test_names_of_tenants_and_models_are_shown_as_they_are() -> None:
    uses = [Use("a_b", "best_effort", "m_1", "main", 1, 1, 1, Decimal(10))]
    time = [NodeTime("main", "on_demand", Decimal(3600), Decimal(28))]
    month = allocate(month_of("2026-03", ZoneInfo("UTC")), time, uses, {"main": 4}, is_estimated=True)
    assert "a_b" in viewmodels_spend.subtotal_rows(month, "tenant")["of"]
    assert "m_1" in viewmodels_spend.subtotal_rows(month, "model")["of"]
    assert "best-effort" in viewmodels_spend.subtotal_rows(month, "tier")["of"]


def test_a_simulation_says_how_many_slots_a_node_has_when_nobody_chose() -> None:
    usual = Precision()
    assert f"{usual.node_slots()} slots a node" in viewmodels_simulation.summary({}, {}, usual)


def test_advice_names_what_is_in_use_and_what_the_cache_holds() -> None:
    model = EngineModel(CURVE, 500.0, 300.0, 22e-6)
    asked = viewmodels_goodput.Asked(model, Objectives(0.5, None, None), 0.95, 100, 8, 1.0, None, None)
    advice: Advice = advise(model, asked.objectives, most_batch=100, in_use=8, quantile=0.95)
    assert advice.best is not None
    said = viewmodels_goodput.headline(asked, advice)[1]
    assert f"{advice.best.batch} at once instead of 8" in said
    assert "holds 121 sequences" in viewmodels_goodput.kv_words(121)
    assert "not looked at" in viewmodels_goodput.kv_words(None)
