"""Figures of estimates: what a pointer reads has the decimals of its axis."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dashboard import charts_estimates as charts
from fleet.comparison import Candidate, Comparison, compare
from fleet.comparison_sensitivity import Axis, Point, Sensitivity, Step
from fleet.month_result import NodeClass
from fleet.strategies import Strategy

DAY_BINS = 288


@pytest.fixture(scope="module")
def compared() -> Comparison:
    rates = np.full(DAY_BINS, 2.0)
    small, large = Candidate("one", Strategy(1)), Candidate("two", Strategy(2))
    return compare(rates, [small, large], NodeClass(), baseline="one")


def cheap(compared: Comparison, usd: float) -> Comparison:
    return replace(compared, outcomes=tuple(replace(o, cost_usd=usd) for o in compared.outcomes))


@pytest.mark.parametrize(
    ("usd", "form", "said"),
    [(0.4, ",.2f", "$0.40"), (0.004, ",.4f", "$0.0040"), (9_000.0, ",.0f", "$9,000")],
)
def test_a_cost_under_a_dollar_is_not_read_as_nothing(
    compared: Comparison, usd: float, form: str, said: str
) -> None:
    small = cheap(compared, usd)
    cost = charts.cost_and_refusals(small)
    assert cost.spec["layout"]["yaxis"]["tickformat"] == form
    assert {trace["hovertemplate"].split("$%{y:")[1].split("}")[0] for trace in cost.spec["data"]} == {form}
    assert said in cost.summary
    price = charts.price_of_a_refusal(small, 0.0)
    shown = price.spec["layout"]["yaxis"]["tickformat"]
    assert all(f"$%{{y:{shown}}}" in trace["hovertemplate"] for trace in price.spec["data"])


def test_sensitivity_is_read_like_its_axis() -> None:
    points = (Point("one", 0.2, 0.0, 0.3), Point("two", 0.4, 0.0, 0.4))
    found = Sensitivity(Axis.SPOT_RATIO, (Step(0.5, points, "one"),))
    figure = charts.sensitivity(found, ["one", "two"], None)
    assert figure.spec["layout"]["yaxis"]["tickformat"] == ",.2f"
    assert all("$%{y:,.2f}" in trace["hovertemplate"] for trace in figure.spec["data"])
