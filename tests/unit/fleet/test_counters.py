"""Counter arithmetic against published vectors and Prometheus's own test suite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.counters import Coverage, covered, increment, prom_increase, prom_rate
from fleet.errors import InvalidInput

VECTORS = json.loads((Path(__file__).parents[2] / "data" / "rate_histogram_vectors.json").read_text())
M = 60.0


@pytest.mark.parametrize("case", VECTORS["counters"], ids=lambda c: c["name"])
def test_vectors(case: dict[str, Any]):
    samples = [(t, v) for t, v in case["samples"]]
    window = {"eval_at_s": case["eval_ts"], "range_s": case["range_s"]}
    ours = covered(samples, starts=case["starts"], max_gap_s=case["max_gap_s"], **window)
    want = case["covered"]
    assert ours.rate == (None if want["rate"] is None else pytest.approx(want["rate"], rel=1e-9))
    assert (ours.increase, ours.covered_s, ours.resets) == (
        want["increase"],
        want["covered_s"],
        want["resets"],
    )
    assert ours.coverage == pytest.approx(want["coverage"], abs=1e-9)
    for answer, key in ((prom_rate, "prom_rate"), (prom_increase, "prom_increase")):
        said = answer(samples, **window)
        assert said == (None if case[key] is None else pytest.approx(case[key], rel=1e-9))


def series(every_s: float, *values: float) -> list[tuple[float, float]]:
    return [(i * every_s, v) for i, v in enumerate(values)]


def up(start: float, step: float, times: int) -> list[float]:
    return [start + step * i for i in range(times + 1)]


# Prometheus, promql/promqltest/testdata/functions.test: "load 5m" of four http_requests series.
SUITE = {
    "foo": series(5 * M, *up(0, 10, 10)),
    "bar": series(5 * M, *up(0, 18, 5), *up(0, 18, 5)),
    "dings": series(5 * M, *up(10, 10, 10)),
    "bumms": series(5 * M, *up(1, 10, 10)),
    "reset_middle": series(5 * M, *up(0, 27, 4), *up(0, 27, 5)),
    "0m": series(5 * M, 0, 300, 600),
    "1m": series(5 * M, 60, 360, 660),
    "2m": series(5 * M, 120, 420, 720),
}


@pytest.mark.parametrize("case", VECTORS["prometheus_suite_crosscheck"], ids=lambda c: c["name"])
def test_the_suite_of_prometheus(case: dict[str, Any]):
    kind, *name, span = case["name"].split()
    range_s = float(span.removesuffix("m")) * M
    if kind == "zero_cutoff":  # rate over 20 m at 10 m, the counter having started 0, 1, 2 m before
        said = prom_rate(SUITE[span], eval_at_s=10 * M, range_s=20 * M)
    elif kind == "rate":
        said = prom_rate(SUITE[name[0]], eval_at_s=50 * M, range_s=range_s)
    else:
        said = prom_increase(SUITE[name[0].removeprefix("/")], eval_at_s=50 * M, range_s=range_s)
    assert said == pytest.approx(case["want"], rel=1e-9)


def test_a_restart_hidden_by_growth_shows_in_the_start_time():
    # 30 -> 31 is not +1 but a new life that counted 31
    pair = [(0.0, 30.0), (10.0, 31.0)]
    assert covered(pair, eval_at_s=10, range_s=10).increase == 1
    assert covered(pair, eval_at_s=10, range_s=10, starts=[1, 81]).increase == 31


def test_a_window_seen_by_less_than_half_has_no_value_to_show():
    pair = [(0.0, 0.0), (10.0, 5.0)]
    grades = [covered(pair, eval_at_s=10, range_s=r).grade for r in (10.0, 12.6, 20.0, 20.1)]
    assert grades == [Coverage.GOOD, Coverage.PARTIAL, Coverage.PARTIAL, Coverage.INSUFFICIENT]


@settings(deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=1), st.integers(0, 20))
def test_increments_add_up_whatever_the_restarts(steps: list[int], restart_at: int):
    # A process counts `steps`; at one step it starts again from 0. The sum over pairs is all but the first.
    values, total = [], 0
    for i, step in enumerate(steps):
        total = step if i == restart_at else total + step
        values.append(float(total))
    starts = [0.0 if i < restart_at else 1.0 for i in range(len(steps))]
    samples = [(float(i), v) for i, v in enumerate(values)]
    got = covered(samples, eval_at_s=len(steps), range_s=len(steps), starts=starts)
    assert got.increase == sum(steps[1:])


def test_an_increment_is_never_negative():
    assert [increment(10, 12), increment(10, 4), increment(10, 12, restarted=True)] == [2, 4, 12]


@pytest.mark.parametrize("range_s", [0.0, -1.0])
def test_an_empty_window_is_refused(range_s: float):
    with pytest.raises(InvalidInput):
        covered([], eval_at_s=0, range_s=range_s)
    with pytest.raises(InvalidInput):
        prom_rate([], eval_at_s=0, range_s=range_s)


def test_start_times_belong_to_samples():
    with pytest.raises(InvalidInput, match="1 start times for 2 samples"):
        covered([(0, 0), (1, 1)], eval_at_s=1, range_s=1, starts=[0])
