"""The closed form to the dollar, and what it hides, derived by hand."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.cost import SOURCES, ClosedFormInputs, closed_form, shed_share, sources_in_use
from fleet.errors import InvalidInput

CASE = ClosedFormInputs()


def test_the_check_case_is_reproduced_to_the_dollar():
    form = closed_form(CASE)
    assert form.node_rps == 3  # 2400 / (500 + 300)
    assert (form.static_peak.nodes, form.static_peak.usd_month) == (10, 201_600)  # 30 / 3; 10 * 28 * 720
    assert form.admission.usd_month == 100_800  # 5 * 28 * 720
    assert form.burst_always_on == 8_640  # 2 * 6 * 720
    assert form.burst_realistic == 5_000
    assert form.total == 105_800
    assert form.saving_month == 95_800
    assert form.saving_year == 1_149_600


def test_rho_at_peak_shows_that_ten_nodes_are_full_and_twelve_are_needed():
    form = closed_form(CASE)
    assert form.static_peak.rho_at_peak == pytest.approx(1.0)  # 30 / (10 * 3)
    # 30 / (0.85 * 3) = 11.76 nodes: 12, and 12 * 28 * 720 = 241,920
    assert (form.headroom.nodes, form.headroom.usd_month) == (12, 241_920)
    assert form.headroom.rho_at_peak == pytest.approx(30 / 36)
    assert form.with_burst.rho_at_peak == pytest.approx(30 / 21)


def test_shed_at_peak_is_the_excess_over_capacity():
    form = closed_form(CASE)
    assert form.admission.shed_at_peak == pytest.approx(0.5)  # 15 of 30
    assert form.with_burst.shed_at_peak == pytest.approx(9 / 30)  # 5 + 2 nodes serve 21
    assert form.static_peak.shed_at_peak == 0


def test_time_above_capacity_is_not_the_share_of_requests_refused():
    # 5 % of time at 30 over 15: 0.05 * 15 / 12 = 6.25 % of requests
    shapes = {shape.time_above: shape.refused for shape in closed_form(CASE).peak_shapes}
    assert shapes[0.05] == pytest.approx(0.0625)
    assert shapes[0.10] == pytest.approx(0.125)
    # 6.25 % of 12 * 3600 * 720 = 1.944 million refusals; 100,800 less buys them at 5.19 cents each
    by_share = {shape.time_above: shape for shape in closed_form(CASE).peak_shapes}
    assert by_share[0.05].break_even_usd == Decimal("0.0519")
    assert closed_form(replace(CASE, admission_nodes=10)).peak_shapes[0].break_even_usd is None
    # a peak of 300 cannot last 5 % of a month whose mean is 12
    assert [s.time_above for s in closed_form(replace(CASE, peak_rps=300)).peak_shapes] == [0.01]


def test_calendar_months_differ_from_720_hours():
    rows = {row.days: row for row in closed_form(CASE).calendar}
    assert rows[28].static_peak == 10 * 28 * 672
    assert rows[30].static_peak == 201_600
    assert rows[31].static_peak == 10 * 28 * 744 == 208_320
    assert rows[31].burst_always_on == 2 * 6 * 744


def test_spot_price_moves_the_saving():
    rows = {int(row.spot_price): row for row in closed_form(CASE).spot}
    assert set(rows) == {6, 12, 16, 22}
    assert rows[16].burst_always_on == 23_040  # 2 * 16 * 720
    assert rows[16].saving_month == 201_600 - 100_800 - 23_040


def test_a_burst_pool_never_costs_more_than_running_it_all_month():
    form = closed_form(replace(CASE, burst_nodes=1))
    assert form.burst_realistic == form.burst_always_on == 4_320
    assert closed_form(replace(CASE, burst_nodes=0)).total == 100_800


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"refusal_acceptable": False}, "refusals are not acceptable"),
        ({"peak_rps": 13.0}, "near 1"),
        ({"admission_nodes": 4}, "never settles"),  # 4 * 3 = 12 is exactly the mean
        ({"admission_nodes": 10}, "costs no less than static peak"),
    ],
)
def test_it_says_when_admission_is_the_wrong_answer(change, says):
    assert any(says in warning for warning in closed_form(replace(CASE, **change)).warnings)


def test_the_check_case_does_not_call_admission_wrong_but_names_autoscaling():
    warnings = closed_form(CASE).warnings
    assert not any("wrong answer" in warning for warning in warnings)
    assert any("not autoscaling" in warning for warning in warnings)


def test_every_default_has_a_dated_source():
    chosen = {"hours", "admission_nodes", "burst_nodes", "refusal_acceptable"}  # decisions, not facts
    of_traffic = {"peak_rps", "mean_rps", "tokens_in", "tokens_out"}
    facts = {field.name for field in fields(ClosedFormInputs)} - chosen - of_traffic
    assert set(SOURCES) == facts | {"traffic"}
    assert all(
        source.what and re.fullmatch(r"20\d\d-\d\d(-\d\d)?", source.date) for source in SOURCES.values()
    )


def test_a_typed_number_does_not_keep_the_source_of_the_default_it_replaced():
    assert set(sources_in_use(ClosedFormInputs())) == set(SOURCES)
    typed = ClosedFormInputs(price=Decimal(31), tokens_out=200.0)
    assert set(SOURCES) - set(sources_in_use(typed)) == {"price", "traffic"}


@given(price=st.decimals(0, 1000, places=2), factor=st.integers(1, 50))
def test_cost_scales_with_price_and_traffic_buys_nodes(price, factor):
    form = closed_form(replace(CASE, price=price))
    assert form.static_peak.usd_month == 10 * 720 * price
    more = closed_form(replace(CASE, peak_rps=30.0 * factor, mean_rps=12.0 * factor))
    assert more.static_peak.nodes == 10 * factor


@given(st.floats(1e-6, 1e6))
def test_shed_share_keeps_served_at_capacity(rho):
    # what is served, (1 - shed) rho, is min(rho, 1)
    assert (1 - shed_share(rho)) * rho == pytest.approx(min(rho, 1.0), rel=1e-6)


@pytest.mark.parametrize(
    "bad",
    [
        {"peak_rps": 5.0},
        {"peak_rps": float("nan")},
        {"mean_rps": 0.0},
        {"tokens_per_s": -1.0},
        {"tokens_in": 0.0, "tokens_out": 0.0},
        {"price": Decimal(-1)},
        {"hours": Decimal("Infinity")},
        {"hours": Decimal(0)},
        {"tokens_per_s": 1e-320},
        {"admission_nodes": 0},
        {"burst_nodes": -1},
    ],
)
def test_impossible_inputs_are_refused_at_their_field(bad):
    with pytest.raises(InvalidInput) as error:
        closed_form(replace(CASE, **bad))
    assert error.value.field


def test_an_absurd_fleet_is_refused():
    with pytest.raises(InvalidInput, match="nodes would be needed"):
        closed_form(replace(CASE, peak_rps=1e9, tokens_per_s=1.0))
