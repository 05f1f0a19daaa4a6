"""Hot nodes stand out from their peers; busy and idle pools do not."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.skew import skew


def test_two_hot_nodes_among_twelve_do_not_hide_each_other():
    loads = {f"n{i:02}": 0.4 for i in range(10)} | {"hot1": 1.1, "hot2": 1.0}
    found = skew(loads)
    assert found is not None
    assert [one.node for one in found.nodes[:2]] == ["hot1", "hot2"]
    assert found.hottest.ratio == pytest.approx(1.1 / 0.4)
    assert found.nodes[2].ratio == pytest.approx(1.0)


def test_a_busy_pool_and_an_idle_one_are_not_skewed():
    busy = skew({"a": 1.2, "b": 1.15, "c": 1.25})
    assert busy is not None
    assert busy.hottest.ratio < 1.1
    idle = skew({"a": 0.3, "b": 0.01, "c": 0.0})
    assert idle is not None
    assert idle.hottest.ratio == 1.0  # three tenths of its capacity: nobody's problem
    assert idle.spread > 1


def test_one_node_or_no_load_has_no_skew():
    assert skew({"a": 0.9}) is None
    assert skew({"a": 0.0, "b": 0.0}) is None
    assert skew({}) is None


@given(st.lists(st.floats(0, 2), min_size=2, max_size=12).filter(lambda values: sum(values) > 0))
def test_peers_are_the_median_of_the_others(values):
    loads = {str(i): value for i, value in enumerate(values)}
    found = skew(loads)
    assert found is not None
    for one in found.nodes:
        assert one.peers == pytest.approx(median(v for n, v in loads.items() if n != one.node))
