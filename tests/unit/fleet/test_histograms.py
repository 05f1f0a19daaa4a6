"""Quantiles against vectors from exact distributions, and what they admit not to know."""

from __future__ import annotations

import json
import random
from math import ceil, inf, log
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from fleet.errors import InvalidInput
from fleet.histograms import (
    describe,
    exponential_base,
    exponential_errors,
    exponential_index,
    exponential_quantile,
    from_cumulative,
    from_rising,
    mean,
    merge,
    quantile,
    rank_interval,
)
from fleet.readings import Histogram

VECTORS = json.loads((Path(__file__).parents[2] / "data" / "rate_histogram_vectors.json").read_text())[
    "histograms"
]


def bound(value: Any) -> Any:
    return inf if value == "inf" else value


def histogram(case: dict[str, Any]) -> Histogram:
    made = from_cumulative([bound(e) for e in case["le"]], case["cum"])
    assert made is not None
    return made


@pytest.mark.parametrize("case", VECTORS["distributions"], ids=lambda c: c["name"])
def test_distributions(case: dict[str, Any]):
    h = histogram(case)
    assert h.count == case["n"]
    for want in case["quantiles"]:
        got = quantile(h, want["q"])
        assert got is not None
        assert got.estimate == pytest.approx(want["estimate"], rel=1e-9)
        assert [got.lo, got.hi] == want["bucket"]
        assert got.is_censored is want["censored"]
        assert [got.rank_lo, got.rank_hi] == want["rank_ci95"]
        assert [got.ci_lo, got.ci_hi] == [bound(b) for b in want["ci_bucket"]]
        assert got.ci_lo < want["true"] <= got.ci_hi  # what sampling leaves open holds the truth


@pytest.mark.parametrize("case", VECTORS["edges"], ids=lambda c: c["name"])
def test_edge_cases(case: dict[str, Any]):
    h = from_cumulative([bound(e) for e in case["le"]], case["cum"])
    got = None if h is None else quantile(h, case["q"])
    if case["estimate"] is None:
        assert got is None
        return
    assert got is not None
    assert got.estimate == pytest.approx(case["estimate"])
    assert (got.lo, got.hi) == (case["lower"], bound(case["upper"]))
    assert got.is_censored is case["censored"]


def test_nodes_are_added_before_the_quantile_is_taken():
    case = VECTORS["aggregation"]
    edges = [bound(e) for e in case["le"]]
    nodes = [from_cumulative(edges, case[name]) for name in ("node1", "node2")]
    merged = merge(n for n in nodes if n is not None)
    assert merged is not None
    for want in case["quantiles"]:
        got = quantile(merged, want["q"])
        assert got is not None
        assert got.estimate == pytest.approx(want["merged"], rel=1e-9)


@pytest.mark.parametrize("case", VECTORS["exponential"], ids=lambda c: f"schema {c['schema']}")
def test_exponential_buckets(case: dict[str, Any]):
    schema = case["schema"]
    assert exponential_base(schema) == pytest.approx(case["base"])
    assert exponential_errors(schema) == pytest.approx(
        (case["max_rel_err_bound"], case["midpoint_rel_err_bound"])
    )
    # The vectors' distribution: 100,000 of a lognormal, median 0.25 s, sigma 1, each bucket to the nearest
    share = NormalDist(log(0.25), 1.0).cdf
    step = log(exponential_base(schema))
    indexes = range(-40 * 2**schema, 40 * 2**schema)
    counts = {i: round(1e5 * (share(i * step) - share((i - 1) * step))) for i in indexes}
    for want in case["quantiles"]:
        got = exponential_quantile(counts, want["q"], schema)
        assert got == pytest.approx(want["estimate"], rel=1e-8)


@settings(deadline=None)
@given(st.floats(1e-6, 1e6), st.integers(-2, 5))
def test_an_exponential_bucket_holds_its_value(value: float, schema: int):
    base, index = exponential_base(schema), exponential_index(value, schema)
    assert base ** (index - 1) <= value * (1 + 1e-9)
    assert value <= base**index * (1 + 1e-9)


@settings(deadline=None)
@given(st.integers(1, 20_000), st.sampled_from([0.001, 0.5, 0.9, 0.95, 0.99, 0.999]))
def test_the_rank_interval_is_the_binomial_one(n: int, q: float):
    lo, hi = rank_interval(n, q)
    assert lo == int(binom.ppf(0.025, n, q))
    assert hi == int(binom.ppf(0.975, n, q)) + 1


def test_all_in_the_first_bucket_is_said_as_at_most():
    # vLLM issue 15167: a p99 of 0.297 s is 99 % of the first edge, nothing more
    h = Histogram(edges=(0.3, 0.5), counts=(5000, 0, 0), sum=50.0)
    got = quantile(h, 0.99)
    assert got is not None
    assert (got.lo, got.hi) == (0.0, 0.3)
    assert got.is_below_first_edge
    assert describe(got) == "<= 0.3 s"


def test_beyond_the_last_bucket_is_said_as_more_than():
    # 5 % of 10,000 observations above 60 s: p99 is among them
    h = Histogram(edges=(30.0, 60.0), counts=(9000, 500, 500), sum=None)
    got = quantile(h, 0.99)
    assert got is not None
    assert got.is_censored
    assert (got.lo, got.hi, got.estimate) == (60.0, inf, 60.0)
    assert describe(got) == "> 60 s"


@pytest.mark.parametrize(
    ("n", "q", "too_few"),
    [(1000, 0.99, False), (999, 0.99, True), (10_000, 0.999, False), (20, 0.5, False)],
)
def test_ten_observations_beyond_a_quantile_are_wanted(n: int, q: float, too_few: bool):
    got = quantile(Histogram(edges=(1.0, 2.0), counts=(n // 2, n - n // 2, 0), sum=None), q)
    assert got is not None
    assert got.too_few is too_few


def test_an_empty_histogram_has_no_quantile_and_no_mean():
    empty = Histogram(edges=(1.0,), counts=(0, 0), sum=0.0)
    assert quantile(empty, 0.5) is None
    assert mean(empty) is None
    assert describe(None) == "n/a"


def test_different_bounds_merge_to_those_both_have():
    # (1, 2, 4) and (1, 3, 4): only 1 and 4 are known of both
    merged = merge(
        [
            Histogram(edges=(1.0, 2.0, 4.0), counts=(1, 2, 3, 4), sum=10.0),
            Histogram(edges=(1.0, 3.0, 4.0), counts=(10, 20, 30, 40), sum=20.0),
        ]
    )
    assert merged == Histogram(edges=(1.0, 4.0), counts=(11, 55, 44), sum=30.0)
    assert merge([Histogram((1.0,), (1, 0), None), Histogram((2.0,), (1, 0), None)]) is None
    assert merge([]) is None


@settings(deadline=None)
@given(
    st.lists(st.floats(0.001, 100.0), min_size=1, max_size=300),
    st.sampled_from([0.0, 0.1, 0.5, 0.95, 0.99, 1.0]),
)
def test_the_interval_holds_the_true_quantile(values: list[float], q: float):
    edges = (0.01, 0.1, 1.0, 10.0, 50.0)
    counts = [0] * 6
    for value in values:
        counts[sum(value > e for e in edges)] += 1
    got = quantile(Histogram(edges, tuple(counts), sum(values)), q)
    assert got is not None
    true = sorted(values)[max(0, ceil(q * len(values) - 1e-9) - 1)]
    assert got.lo < true <= got.hi
    assert got.ci_lo <= got.lo
    assert got.ci_hi >= got.hi


def test_quantiles_are_between_0_and_1():
    with pytest.raises(InvalidInput):
        quantile(Histogram((1.0,), (1, 0), None), 1.01)


@pytest.mark.parametrize("seed", range(20))
def test_rising_whole_counts_give_the_histogram_of_cumulative_ones_and_others_are_left_to_it(seed: int):
    rng = random.Random(seed)
    bounds = (*sorted(rng.sample(range(1, 1000), rng.randrange(1, 30))), inf)
    rising = [float(n) for n in sorted(rng.randrange(10**6) for _ in bounds)]
    said = from_rising(bounds[:-1], rising, 3.5)
    assert said == from_cumulative(bounds, rising, 3.5)
    assert said is not None
    assert said.count == rising[-1]
    assert from_rising(bounds[:-1], [rising[-1] + 1.0, *rising[1:]], 3.5) is None  # it falls
    assert from_rising(bounds[:-1], [*rising[:-1], rising[-1] + 0.5], 3.5) is None  # no count
    assert from_rising(bounds[:-1], [-1.0, *rising[1:]], 3.5) is None
    assert from_rising(bounds[:-1], [*rising[:-1], 2.0**63], 3.5) is None
