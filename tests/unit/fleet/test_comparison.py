"""Strategies compared: break-even, who is cheapest when, who is refused, how much to reserve.

Figures come from small cases worked by hand and from the published strategy months (profiles A to C).
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.rate_profile_files import bundled_profile
from fleet.comparison import (
    BreakEven,
    Candidate,
    Cheapest,
    Comparison,
    Prices,
    Stand,
    Versus,
    break_even,
    cheapest,
    compare,
)
from fleet.comparison_catalogue import against_admission, catalogue
from fleet.comparison_sensitivity import Axis, Base, sensitivities
from fleet.errors import InvalidInput
from fleet.fluid import MONTH_BINS
from fleet.month_result import NodeClass
from fleet.refusal_split import Flow, shared_out, split_refusals
from fleet.reserve import reserve
from fleet.strategies import Strategy
from fleet.traffic_shape import BurstDurations, burst_durations, stretched, traffic_shape

NODE = NodeClass()  # 3 requests/s, 28 USD/h, 500 + 300 tokens


def months_of_a(*candidates: Candidate, **options: object) -> Comparison:
    return compare(bundled_profile("A").month(), candidates, NODE, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def guide() -> Comparison:
    month = bundled_profile("A").month()
    return compare(
        month,
        catalogue(traffic_shape(month), 3.0, Decimal(16)),
        NODE,
        baseline="Static + admission",
        flows=[
            Flow("", "interactive", 0.6),
            Flow("", "batch", 0.3),
            Flow("", "best_effort", 0.1),
        ],
    )


def test_the_guide_s_traffic_costs_and_refuses_what_was_published(guide: Comparison) -> None:
    # published for profile A: dollars exactly, refusals to 0.01 points
    expected = {
        "Static peak": (201_600, 0.0),
        "Static + admission": (100_800, 0.0624),
        "Static + admission + spot": (111_584, 0.0227),
        "Reactive, no admission": (106_043, 0.0),
        "Reactive + admission": (106_043, 0.0010),
        "Predictive + admission": (108_311, 0.0),
    }
    for name, (usd, refused) in expected.items():
        found = guide.outcome(name)
        assert round(found.cost_usd) == usd
        assert found.month.refused_share == pytest.approx(refused, abs=1e-4)


def test_break_even_prices_of_a_refusal_are_the_published_ones(guide: Comparison) -> None:
    found = {o.name: b for o, b in zip(guide.outcomes, guide.break_evens, strict=True)}
    assert found["Static peak"].refusal_usd == pytest.approx(0.0519, abs=5e-5)
    assert found["Static + admission + spot"].refusal_usd == pytest.approx(0.0087, abs=5e-5)
    assert found["Reactive + admission"].refusal_usd == pytest.approx(0.0027, abs=5e-5)
    assert found["Static + admission"].versus is Versus.BASELINE


def test_a_queue_of_minutes_counts_as_missed_requests(guide: Comparison) -> None:
    reactive = guide.outcome("Reactive, no admission")
    assert reactive.month.refused == 0
    # p99 of its waits is some 20 s, against an objective of 2 s: over 1 % are late
    assert reactive.stand.missed > 0.01 * reactive.month.offered
    assert "Reactive, no admission" not in [step.name for step in guide.cheapest]


def test_break_even_of_every_kind() -> None:
    base = Stand("base", 100.0, 50.0)
    assert break_even(Stand("a", 90.0, 50.0), base) == BreakEven(Versus.BETTER)
    assert break_even(Stand("b", 100.0, 51.0), base) == BreakEven(Versus.WORSE)
    assert break_even(Stand("c", 120.0, 40.0), base) == BreakEven(Versus.PAYS_ABOVE, 2.0)
    assert break_even(Stand("d", 70.0, 60.0), base) == BreakEven(Versus.PAYS_BELOW, 3.0)
    assert break_even(base, base) == BreakEven(Versus.BASELINE)
    # neither better nor worse: no price of a refusal tells them apart
    assert break_even(Stand("e", base.cost_usd, base.missed), base) == BreakEven(Versus.SAME)
    assert break_even(Stand("f", base.cost_usd + 1e-7, base.missed), base) == BreakEven(Versus.SAME)


def test_cheapest_names_the_lower_envelope_by_hand() -> None:
    # cost + v missed: a 10 + 100v, b 20 + 50v, c 45 + 30v, d 60. a = b at 0.2; then b = d at 40/50 = 0.8
    # while b = c only at 25/20 = 1.25: c is never the cheapest
    stands = [Stand("a", 10, 100), Stand("b", 20, 50), Stand("c", 45, 30), Stand("d", 60, 0)]
    assert cheapest(stands) == (
        Cheapest(0.0, "a"),
        Cheapest(pytest.approx(0.2), "b"),  # type: ignore[arg-type]
        Cheapest(pytest.approx(0.8), "d"),  # type: ignore[arg-type]
    )


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=6),
    st.floats(0, 50),
)
def test_nobody_is_cheaper_than_the_cheapest(pairs: list[tuple[int, int]], price: float) -> None:
    stands = [Stand(str(place), cost, missed) for place, (cost, missed) in enumerate(pairs)]
    name = [step.name for step in cheapest(stands) if step.from_usd <= price][-1]
    chosen = stands[int(name)]
    least = min(stand.total_usd(price) for stand in stands)
    assert chosen.total_usd(price) <= least * (1 + 1e-9) + 1e-6


def test_reserved_nodes_are_paid_at_their_price_all_month() -> None:
    three = Candidate("three of five", Strategy(5, 1.5), reserved=3)
    found = months_of_a(three, baseline="three of five", prices=Prices(18.8))
    assert found.outcomes[0].cost_usd == pytest.approx(720 * (2 * 28 + 3 * 18.8))
    with pytest.raises(InvalidInput, match="6 reserved nodes where 5 always run"):
        months_of_a(Candidate("a", Strategy(5, 1.5), reserved=6), baseline="a")


def test_what_cannot_be_compared_is_refused() -> None:
    one = Candidate("a", Strategy(5))
    with pytest.raises(InvalidInput, match="7 strategies"):
        months_of_a(*(Candidate(str(n), Strategy(5)) for n in range(7)), baseline="0")
    with pytest.raises(InvalidInput, match="two strategies"):
        months_of_a(one, one, baseline="a")
    with pytest.raises(InvalidInput, match="not compared"):
        months_of_a(one, baseline="b")


# ---- who is refused -----------------------------------------------------------------------------------


def test_contended_capacity_is_divided_by_weight_and_what_is_left_goes_on() -> None:
    # 10 to divide at 70/25/5: interactive asks only 4, so 6 go 25:5 -> 5 and 1
    demands = np.array([[4.0], [8.0], [3.0]])
    assert shared_out(np.array([10.0]), demands, (70, 25, 5)).ravel() == pytest.approx([4.0, 5.0, 1.0])


@given(st.data())
def test_parts_add_up_and_nobody_with_less_than_its_weight_is_passed_over(data: st.DataObject) -> None:
    demands = np.array(
        [[v] for v in data.draw(st.lists(st.floats(0, 100), min_size=1, max_size=6), "demands")]
    )
    weights = [data.draw(st.floats(0.5, 80), "weight") for _ in demands]
    capacity = data.draw(st.floats(0, 400), "capacity")
    given_ = shared_out(np.array([capacity]), demands, weights)
    assert np.all(given_ <= demands + 1e-9)
    assert np.all(given_ >= 0)
    assert given_.sum() == pytest.approx(min(capacity, demands.sum()), abs=1e-6)
    # max-min: who does not get all has at least as much per weight as anybody
    per_weight = given_[:, 0] / np.array(weights)
    unsatisfied = demands[:, 0] - given_[:, 0] > 1e-6
    if unsatisfied.any():
        assert per_weight[unsatisfied].min() >= per_weight.max() - 1e-6


def test_refusals_by_tier_add_up_and_fall_on_the_lowest_tier_first(guide: Comparison) -> None:
    found = guide.outcome("Static + admission")
    by_tier = {one.tier: one for one in found.noticed}
    assert sum(one.refused for one in found.noticed) == pytest.approx(found.month.refused, rel=1e-9)
    assert sum(one.offered for one in found.noticed) == pytest.approx(found.month.offered, rel=1e-9)
    shares = [by_tier[tier].refused_share for tier in ("interactive", "batch", "best_effort")]
    assert shares == sorted(shares)
    # at the peak 30 arrive and 15 are served: interactive has 18 and gets 70 % of 15 = 10.5 at least
    assert by_tier["interactive"].worst_hour_share <= 1 - 10.5 / 18


def test_tenants_share_their_tier_s_part() -> None:
    # one bin: 30 offered, 15 refused; worked by hand below
    flows = [
        Flow("small", "interactive", 0.1),
        Flow("large", "interactive", 0.5),
        Flow("night", "batch", 0.4),
    ]
    found = split_refusals(
        np.array([30.0]), np.array([15.0]), flows, {"interactive": 70.0, "batch": 30.0}, bins_an_hour=1
    )
    by_name = {(one.tier, one.tenant): one for one in found}
    # interactive asks 18, its part is 10.5; batch asks 12, its part is 4.5. small asks 3 <= 5.25: gets all
    assert by_name["interactive", ""].refused == pytest.approx(7.5)
    assert by_name["batch", ""].refused == pytest.approx(7.5)
    assert by_name["interactive", "small"].refused == pytest.approx(0.0)
    assert by_name["interactive", "large"].refused == pytest.approx(7.5)
    assert by_name["interactive", "large"].worst_hour_share == pytest.approx(0.5)


def test_shares_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"add up to 0\.5"):
        split_refusals(np.ones(1), np.ones(1), [Flow("", "batch", 0.5)])


# ---- shape of the traffic, reserve, sensitivity ---------------------------------------------------------


def test_the_reserve_of_production_rates_is_the_published_one() -> None:
    # published for profile C at rho 0.85: the 4th to 7th node are needed 0.83, 0.62, 0.36, 0.21 of the time
    rates = bundled_profile("C").rates_rps
    at_two_thirds = reserve(rates, 3.0, 28.0, 18.8)
    assert [round(share, 2) for share in at_two_thirds.needed_share[3:7]] == [0.83, 0.62, 0.36, 0.21]
    assert at_two_thirds.nodes == 4
    assert at_two_thirds.ideal_usd == pytest.approx(82_500, rel=0.002)
    at_half = reserve(rates, 3.0, 28.0, 13.99)
    assert at_half.nodes == 5
    assert at_half.ideal_usd == pytest.approx(66_400, rel=0.002)


def test_a_reserve_of_more_nodes_than_anybody_has_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the peak needs 1,176,470,589 nodes"):
        reserve(np.array([1.0, 1e6]), 0.001, 28.0, 18.8)  # 1e6 / (0.001 x 0.85)


@given(st.lists(st.floats(0, 40), min_size=1, max_size=50), st.floats(0.05, 1.2))
def test_no_other_reserve_costs_less(rates: list[float], ratio: float) -> None:
    month = np.array(rates)
    found = reserve(month, 3.0, 28.0, 28.0 * ratio)
    needed = np.ceil(month / (3.0 * 0.85) - 1e-9)
    for nodes in range(int(needed.max()) + 2):
        above = np.maximum(needed - nodes, 0).mean()
        assert found.ideal_usd <= 720 * 28.0 * (nodes * ratio + above) * (1 + 1e-9) + 1e-6


def test_bursts_are_timed_from_crossing_to_crossing() -> None:
    rates = np.array([1.0, 9.0, 9.0, 1.0, 9.0, 1.0, 9.0, 9.0, 9.0, 9.0])
    found = burst_durations(rates, 5.0)
    assert (found.count, found.median_s, found.time_share) == (3, 20.0, 0.7)
    assert found.request_share == pytest.approx(7 * 4 / 66)  # 4 above in each of 7 bins, of 66 in all
    assert burst_durations(rates, 9.0).median_s is None


def test_a_tenth_of_the_time_is_not_a_tenth_of_the_requests() -> None:
    # published for profile A at 15 requests/s: 6.25 % of the requests
    found = burst_durations(bundled_profile("A").month(), 15.0)
    assert found.time_share == pytest.approx(0.10, abs=0.005)
    assert found.request_share == pytest.approx(0.0625, abs=1e-4)


def test_stretching_keeps_peak_and_mean_and_lengthens_bursts() -> None:
    rates = bundled_profile("A").month()
    twice = stretched(rates, 2.0)
    assert twice.size == rates.size == MONTH_BINS
    assert twice.max() == rates.max()
    assert twice.mean() == pytest.approx(rates.mean(), rel=1e-6)
    before, after = burst_durations(rates, 15.0), burst_durations(twice, 15.0)
    assert before.median_s is not None
    assert after.median_s == pytest.approx(2 * before.median_s)


def test_shorter_bursts_turn_the_answer_from_autoscaling_to_admission(guide: Comparison) -> None:
    base = Base(bundled_profile("A").month(), guide, NODE, Prices(), refusal_usd=0.01)
    by_axis = {found.axis: found for found in sensitivities(base)}
    lengths = {step.value: step for step in by_axis[Axis.BURST_LENGTH].steps}
    # a tenth of 36 minutes is under one cold start of 4 minutes; twice is eighteen
    assert lengths[0.1].cheapest == "Static + admission"
    assert lengths[2.0].cheapest == "Reactive + admission"
    assert by_axis[Axis.BURST_LENGTH].flips
    # what goes by the day is left out; a fixed number of nodes costs the same on every axis
    assert all(p.name != "Predictive + admission" for step in lengths.values() for p in step.points)
    assert by_axis[Axis.COLD_START].band("Static peak") == (201_600.0, 201_600.0)


def test_a_spot_price_changes_only_what_spot_nodes_cost(guide: Comparison) -> None:
    base = Base(bundled_profile("A").month(), guide, NODE, Prices(), refusal_usd=0.01)
    steps = {found.axis: found for found in sensitivities(base)}[Axis.SPOT_RATIO].steps
    spot = [next(p for p in step.points if p.name == "Static + admission + spot") for step in steps]
    hours = guide.outcome("Static + admission + spot").month.burst_hours
    assert [p.cost_usd for p in spot] == pytest.approx(
        [100_800 + 28 * ratio * hours for ratio in (0.2, 0.4, 0.6, 0.8)]
    )


# ---- when admission is the wrong answer -----------------------------------------------------------------


def said(compared: Comparison, *, acceptable: bool = True, bursts: BurstDurations | None = None) -> str:
    month = bundled_profile("A").month()
    return " ".join(
        against_admission(
            compared,
            traffic_shape(month),
            bursts or burst_durations(month, 15.0),
            refusal_usd=0.01,
            refusal_acceptable=acceptable,
        )
    )


def test_admission_is_wrong_where_refusals_are_not_acceptable(guide: Comparison) -> None:
    found = said(guide, acceptable=False)
    assert "refusals are not acceptable" in found
    assert "Predictive + admission serves everybody in time for 108,311 USD" in found


def test_admission_alone_is_wrong_where_bursts_outlast_a_cold_start(guide: Comparison) -> None:
    found = said(guide)
    assert "Reactive + admission costs 106,043 USD and refuses 0.10 %" in found
    assert "long enough for an autoscaler" in found


def test_autoscaling_comes_too_late_for_short_bursts(guide: Comparison) -> None:
    short = BurstDurations(15.0, 720, 90.0, 90.0, 0.025, 0.03)
    assert "an autoscaler comes too late" in said(guide, bursts=short)


def test_flat_traffic_has_no_peak_to_shed() -> None:
    flat = np.full(8_640, 12.0)
    found = compare(flat, catalogue(traffic_shape(flat), 3.0, Decimal(16)), NODE, baseline="Static peak")
    lines = against_admission(
        found, traffic_shape(flat), burst_durations(flat, 12.0), refusal_usd=0.01, refusal_acceptable=True
    )
    assert len(lines) == 1
    assert "There is no peak to shed" in lines[0]
