"""Shares against entitlements: weighted max-min, Jain's index over who wanted more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.fairness import TenantUse, fairness, jain_index, longest_wait, max_min
from fleet.readings import Histogram


def use(tenant: str, served: int, wanted: float = 0.0, weight: float = 1.0, backlogged: bool = True):
    return TenantUse(tenant, weight, served, wanted or served, backlogged)


def test_jain_is_one_for_equals_and_one_over_n_for_a_monopoly():
    assert jain_index([5, 5, 5, 5]) == pytest.approx(1)
    assert jain_index([1, 0, 0, 0]) == pytest.approx(0.25)
    assert jain_index([0, 0]) is None


def test_max_min_gives_small_wants_whole_and_splits_the_rest_by_weight():
    # a wants 10 and gets it; 90 are left for b and c at 1 : 2
    found = max_min({"a": 10, "b": 100, "c": 100}, {"a": 1, "b": 1, "c": 2}, 100)
    assert found == pytest.approx({"a": 10, "b": 30, "c": 60})


def test_a_crowded_out_tenant_is_the_worst_off_by_what_it_lacks():
    # both wanted 9,000 of 10,000 at equal weight: 5,000 each; small got 1,000 and lacks 80 %
    found = fairness([use("big", 9_000, 9_000), use("small", 1_000, 9_000)])
    assert found is not None
    assert found.worst is not None
    assert found.worst.tenant == "small"
    assert found.worst.shortfall == pytest.approx(0.8)
    # x = 9, 1: 100 / (2 x 82)
    assert found.jain == pytest.approx(100 / 164)


def test_shares_in_proportion_to_weight_are_fair():
    found = fairness([use("a", 7_000, 20_000, 7), use("b", 3_000, 20_000, 3)])
    assert found is not None
    assert found.jain == pytest.approx(1)
    assert found.worst is not None
    assert found.worst.shortfall == pytest.approx(0)


def test_who_asks_for_little_is_not_unfairly_treated():
    found = fairness([use("big", 9_900, 20_000), use("small", 100, 100, backlogged=False)])
    assert found is not None
    assert found.jain is None  # one alone was backlogged
    assert found.worst is not None
    assert found.worst.tenant == "big"
    assert found.worst.shortfall == pytest.approx(0)


def test_hardly_any_tokens_say_nothing():
    assert fairness([use("a", 500), use("b", 1)]) is None
    assert fairness([]) is None


def test_the_longest_wait_is_of_who_waits_now_or_was_served():
    waits = Histogram((0.5, 1.0, 5.0), (10, 0, 1, 0), None)
    assert longest_wait(None, waits) == 1.0  # somewhere in (1, 5]: at least 1
    assert longest_wait(4.0, waits) == 4.0
    assert longest_wait(0.0, Histogram((0.5,), (0, 0), None)) == 0.0
    assert longest_wait(None, None) is None


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0.1, 100)), min_size=1, max_size=8),
    st.floats(0, 1e6),
)
def test_max_min_gives_out_what_there_is_and_nobody_more_than_it_wants(tenants, total):
    wants = {str(i): want for i, (want, _) in enumerate(tenants)}
    weights = {str(i): weight for i, (_, weight) in enumerate(tenants)}
    given_ = max_min(wants, weights, total)
    assert sum(given_.values()) == pytest.approx(min(total, sum(wants.values())), rel=1e-6, abs=1e-6)
    assert all(given_[name] <= wants[name] * (1 + 1e-9) + 1e-9 for name in wants)
    # who did not get its wish has at least the level of everybody else
    levels = {name: given_[name] / weights[name] for name in wants}
    short = [name for name in wants if given_[name] < wants[name] * (1 - 1e-9) - 1e-6]
    for name in short:
        assert levels[name] >= max(levels.values()) * (1 - 1e-6) - 1e-6
