"""Which failing nodes are taken out, for how long, and how they come back. Times are seconds."""

from __future__ import annotations

import pytest
from gate_world import assignment, node, open_gate, request, state
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.ejection import Ejection, Stage
from fleet.gate import Dispatch
from fleet.outcomes import Tier
from fleet.outliers import Outliers
from fleet.placement import stand_ins


def outliers(count: int, **rules: object) -> Outliers:
    """Return the records of `count` nodes n0, n1, ... that nothing was sent to."""
    made = Outliers()
    made.apply(Ejection.model_validate(rules), [f"n{place}" for place in range(count)], now_s=0.0)
    return made


def fail(made: Outliers, name: str, now_s: float, times: int = 3) -> list[str]:
    return [out for _ in range(times) for out in made.failed(name, now_s)]


def test_failures_in_a_row_take_a_node_out_and_an_answer_between_them_does_not():
    made = outliers(4)
    assert made.failed("n0", 0.0) == made.failed("n0", 0.0) == []
    made.worked("n0", 0.0)
    assert made.failed("n0", 0.0) == made.failed("n0", 0.0) == []
    assert made.failed("n0", 0.0) == ["n0"]
    assert made.stage("n0", 0.0) is Stage.OUT
    assert made.ejections == {("n0", "consecutive_failures"): 1}


def test_time_out_doubles_with_each_ejection_up_to_the_cap():
    made = outliers(4, base_s=5.0, max_s=60.0)
    now_s = 0.0
    lengths: list[float] = []
    fail(made, "n0", now_s)
    for _ in range(6):
        began_s = now_s
        while made.stage("n0", now_s) is Stage.OUT:
            now_s += 0.5
        lengths.append(now_s - began_s)
        assert made.failed("n0", now_s) == ["n0"]  # on trial: one failure is enough
    assert lengths == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]


def test_a_node_comes_back_on_trial_and_is_let_in_after_so_many_answers():
    made = outliers(4, trial_requests=2, base_s=5.0)
    fail(made, "n0", 0.0)
    made.worked("n0", 1.0)  # sent before it was taken out: proves nothing of the time after
    assert made.stage("n0", 5.0) is Stage.TRIAL
    assert made.most_requests("n0", 5.0) == 2
    made.worked("n0", 5.1)
    assert made.stage("n0", 5.1) is Stage.TRIAL
    made.worked("n0", 5.2)
    assert made.stage("n0", 5.2) is Stage.IN
    assert made.most_requests("n0", 5.2) is None


def test_an_interval_in_service_takes_one_doubling_back():
    made = outliers(4, trial_requests=1, base_s=5.0, interval_s=10.0)
    fail(made, "n0", 0.0)
    made.worked("n0", 6.0)
    made.worked("n0", 16.0)  # the interval that began at 0 ends
    made.worked("n0", 27.0)
    fail(made, "n0", 30.0)
    assert made.stage("n0", 34.9) is Stage.OUT  # 5 s again, not 10
    assert made.stage("n0", 35.1) is Stage.TRIAL


@pytest.mark.parametrize(
    ("nodes", "ratio", "most"),
    [(1, 0.5, 0), (2, 0.5, 1), (3, 0.5, 1), (8, 0.5, 4), (8, 0.0, 1), (8, 0.9, 7)],
)
def test_never_more_than_the_stated_share_is_out_and_never_the_last(nodes: int, ratio: float, most: int):
    made = outliers(nodes, max_ejected_ratio=ratio)
    for place in range(nodes):
        fail(made, f"n{place}", 0.0)
    assert sum(record.stage(0.0) is Stage.OUT for _, record in made) == most
    assert made.withheld == nodes - most


def test_the_last_node_of_a_model_stays_however_many_other_nodes_there_are():
    made = Outliers()
    made.apply(Ejection(), ["a1", "a2", *(f"b{n}" for n in range(6))], [{"a1", "a2"}, {"b0"}], now_s=0.0)
    assert fail(made, "a1", 0.0) == ["a1"]
    assert fail(made, "a2", 0.0) == []  # a1 is out: nobody else has the model
    assert fail(made, "b0", 0.0) == []  # alone with its model
    assert fail(made, "b1", 0.0) == ["b1"]
    assert made.withheld == 2
    assert fail(made, "a2", 5.1) == ["a2"]  # a1 is on trial again


def test_a_part_of_a_group_is_out_at_most_not_the_part_of_the_fleet():
    # Of 8 nodes 4 may be out; of a model's 4 only 2.
    group = [f"a{n}" for n in range(4)]
    made = Outliers()
    made.apply(Ejection(), [*group, *(f"b{n}" for n in range(4))], [group], now_s=0.0)
    assert [out for name in group for out in fail(made, name, 0.0)] == ["a0", "a1"]


def test_a_node_that_polls_closed_is_nobody_to_leave_requests_to():
    made = outliers(3)
    made.is_closed = {"n1", "n2"}.__contains__
    assert fail(made, "n0", 0.0) == []
    made.is_closed = {"n1"}.__contains__
    assert fail(made, "n0", 0.0, times=1) == ["n0"]


def test_a_push_that_leaves_only_nodes_that_are_out_puts_the_first_of_them_on_trial():
    made = outliers(4)
    assert fail(made, "n0", 0.0) == ["n0"]
    assert fail(made, "n1", 1.0) == ["n1"]
    made.apply(Ejection(), ["n1", "n0"], now_s=2.0)
    assert [made.stage(name, 2.0) for name in ("n0", "n1")] == [Stage.TRIAL, Stage.OUT]
    assert made.most_requests("n0", 2.0) == Ejection().trial_requests
    made.apply(Ejection(), ["n1", "n0", "n2"], [{"n1"}], now_s=3.0)  # the only one that serves a model
    assert made.stage("n1", 3.0) is Stage.TRIAL


def test_nodes_stand_in_for_those_that_serve_the_same_model_phase_and_tier():
    made = assignment(
        nodes=[
            node("a", models=["x"]),
            node("b", models=["x", "y"]),
            node("gone", models=["x"], draining=True),
            node("spot", models=["y"], price_class="spot"),
            node("p", models=["x"], role="prefill"),
        ]
    )
    # x: a, b; y for interactive: b alone, for batch with spot; x's prompts: p.
    assert set(made.policy.routing.spot_tiers) == {Tier.BATCH, Tier.BEST_EFFORT}
    sets = [{"a", "b"}, {"b"}, {"b", "spot"}, {"p"}]
    assert stand_ins(made) == {frozenset(one) for one in sets}


def rates(made: Outliers, failed_of_hundred: list[int], end_s: float = 10.0) -> list[str]:
    """Send 100 to each node in an interval, failures never three in a row; return who is out at its end."""
    made.worked("n0", 0.0)
    for place, failures in enumerate(failed_of_hundred):
        for number in range(100):
            if number % 2 and number // 2 < failures:
                assert made.failed(f"n{place}", 1.0) == []
            else:
                made.worked(f"n{place}", 1.0)
    return made.worked("n0", end_s)


def test_a_success_rate_far_below_the_others_takes_a_node_out():
    # rates 1 (nine times) and 0.6: mean 0.96, deviation sqrt(0.09 * 0.16) = 0.12; bound 0.96 - 0.228
    assert rates(outliers(10), [0] * 9 + [40]) == ["n9"]


def test_equal_rates_however_bad_take_nobody_out():
    assert rates(outliers(10), [40] * 10) == []


def test_a_rate_within_five_points_of_the_mean_is_no_outlier():
    # rates 1 (nine times) and 0.96: sqrt(9) = 3 deviations below the mean, and 3.6 points
    assert rates(outliers(10), [0] * 9 + [4]) == []


def test_too_few_nodes_or_too_few_requests_compare_nothing():
    assert rates(outliers(4), [0, 0, 0, 40]) == []
    assert rates(outliers(10, min_requests=200), [0] * 9 + [40]) == []


def test_a_slow_node_is_shown_and_stays_in():
    made = outliers(4)
    for name, pace_s in (("n0", 0.01), ("n1", 0.011), ("n2", 0.012), ("n3", 0.05)):
        for _ in range(30):
            made.worked(name, 0.0, pace_s)
    assert made.worked("n0", 20.0) == []
    assert [name for name, record in made if record.is_slow] == ["n3"]
    assert made.stage("n3", 20.0) is Stage.IN


def test_new_rules_and_nodes_leave_who_is_out_where_it_is():
    made = outliers(4)
    fail(made, "n0", 0.0)
    made.apply(Ejection(), ["n0", "n9"], now_s=0.5)
    assert made.stage("n0", 1.0) is Stage.OUT
    assert {name for name, _ in made} == {"n0", "n9"}


@settings(max_examples=100, deadline=None)
@given(
    events=st.lists(
        st.tuples(st.integers(0, 5), st.booleans(), st.sampled_from((0.0, 0.1, 3.0, 30.0))), max_size=200
    )
)
def test_whatever_happens_at_most_half_is_out(events: list[tuple[int, bool, float]]):
    made, now_s = outliers(6), 0.0
    for place, works, seconds in events:
        now_s += seconds
        (made.worked if works else made.failed)(f"n{place}", now_s)
        assert sum(record.stage(now_s) is Stage.OUT for _, record in made) <= 3


def test_a_node_on_trial_gets_a_few_requests_at_once_and_no_more():
    gate = open_gate(assignment(nodes=[node("n1"), node("n2")]))
    gate.observe([state("n1", 0.1, most_requests=3)], 0.1)
    sent = [gate.offer(request(number), 0.1) for number in range(20)]
    placed = [one.node for one in sent if isinstance(one, Dispatch)]
    assert len(placed) == 20
    assert placed.count("n1") == 3
    gate.observe([state("n1", 0.2)], 0.2)
    again = [gate.offer(request(number), 0.2) for number in range(20, 40)]
    assert sum(isinstance(one, Dispatch) and one.node == "n1" for one in again) > 10


def test_with_less_than_half_in_service_those_out_are_tried_at_once():
    # Of four, two are out. The third is closed: one of four is left, a quarter, below the half.
    made, closed = outliers(4, base_s=60.0), set[str]()
    made.is_closed = closed.__contains__
    assert [fail(made, name, 0.0) for name in ("n0", "n1")] == [["n0"], ["n1"]]
    assert not made.tried_early("n0", 1.0)  # two of four serve: not less than half
    assert made.panicking(1.0) == 0
    closed.add("n2")
    assert made.panicking(1.0) == 1
    assert made.tried_early("n0", 1.0)
    assert (made.stage("n0", 1.0), made.most_requests("n0", 1.0)) == (Stage.TRIAL, 3)
    # With n0 back two of four serve again: n1 stays out for its time.
    assert not made.tried_early("n1", 1.0)
    assert made.stage("n1", 1.0) is Stage.OUT
    assert made.panics == {"n0": 1}


def test_the_last_node_dies_while_the_other_is_out_and_that_one_comes_back():
    made, closed = outliers(2, base_s=60.0, trial_requests=1), set[str]()
    made.is_closed = closed.__contains__
    assert fail(made, "n0", 0.0) == ["n0"]
    assert not made.tried_early("n0", 0.0)  # one of two is half
    closed.add("n1")
    assert made.tried_early("n0", 0.0)
    assert fail(made, "n0", 0.0) == []  # there is nobody else: it goes on being tried
    assert made.stage("n0", 0.0) is Stage.TRIAL
    made.worked("n0", 0.0)
    assert made.stage("n0", 0.0) is Stage.IN


def test_panic_counts_the_nodes_that_serve_the_same_requests_and_can_be_switched_off():
    made, closed = Outliers(), set[str]()
    made.is_closed = closed.__contains__
    names = [f"a{place}" for place in range(8)] + ["b0", "b1"]
    for ratio, tried in ((0.0, False), (0.5, True)):
        rules = Ejection(base_s=60.0, panic_threshold_ratio=ratio)
        made.apply(rules, names, [names[:8], names[8:]], now_s=0.0)
        if not tried:
            assert fail(made, "b0", 0.0) == ["b0"]
            closed.add("b1")
        # Eight of ten serve in all; of b0 and b1 none does.
        assert made.tried_early("b0", 1.0) is tried
