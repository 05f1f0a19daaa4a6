"""Shares of a quota add up to it, stay within one of the exact share, and never favour by accident."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import InvalidInput
from fleet.shares import split

weights = st.lists(st.integers(0, 10**6), min_size=1, max_size=40).filter(any)
totals = st.integers(0, 10**12)


@given(totals, weights)
def test_parts_sum_to_the_total(total: int, given_weights: list[int]) -> None:
    assert sum(split(total, given_weights)) == total


@given(totals, weights)
def test_each_part_is_its_exact_share_rounded(total: int, given_weights: list[int]) -> None:
    for part, weight in zip(split(total, given_weights), given_weights, strict=True):
        assert abs(part - Fraction(total * weight, sum(given_weights))) < 1


@given(totals, weights)
def test_a_heavier_place_never_gets_less(total: int, given_weights: list[int]) -> None:
    pairs = sorted(zip(given_weights, split(total, given_weights), strict=True))
    parts_by_weight = [part for _, part in pairs]
    for (light, lesser), (heavy, greater) in itertools.pairwise(pairs):
        assert light == heavy or lesser <= greater, parts_by_weight


@given(totals, weights)
def test_a_place_without_weight_gets_nothing(total: int, given_weights: list[int]) -> None:
    parts = split(total, [*given_weights, 0])
    assert parts[-1] == 0


def test_the_largest_remainder_gets_the_unit_left_over() -> None:
    # 100 by 5:3:2 over 11 seats: 5.5, 3.3, 2.2 -> 5, 3, 2 and the eleventh to .5
    assert split(11, [5, 3, 2]) == (6, 3, 2)
    # 10 over three equals: 3.33 each, the tie goes to the first
    assert split(10, [1, 1, 1]) == (4, 3, 3)


def test_fewer_units_than_places_leaves_some_at_nothing() -> None:
    assert split(1, [1, 1]) == (1, 0)
    assert split(0, [3, 4]) == (0, 0)


@pytest.mark.parametrize(("total", "given_weights"), [(-1, [1]), (1, [0, 0]), (1, []), (1, [2, -1])])
def test_what_cannot_be_split_is_refused(total: int, given_weights: list[int]) -> None:
    with pytest.raises(InvalidInput):
        split(total, given_weights)
