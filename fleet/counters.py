"""Rates and increments of counters that can start again from zero.

Times are seconds on the scraper's own clock (start of request), values are cumulative. Two rules live
here: ours (`covered`: sum of increments over the seconds they were seen in) and Prometheus's (`prom_*`,
which stretches to the ends of the range). Prevents: a negative rate at a restart, a restart hidden by
fast growth, and a rate of a node nobody heard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from fleet.errors import InvalidInput

Sample = tuple[float, float]  # (at_s, value)

COVERAGE_MIN = 0.5
COVERAGE_GOOD = 0.8


class Coverage(StrEnum):
    """How much of a window was seen: below half of it there is no value to show."""

    GOOD = "good"
    PARTIAL = "partial"
    INSUFFICIENT = "insufficient"


@dataclass(frozen=True, slots=True)
class Covered:
    """What a counter did in a window. `rate` is per covered second; None where nothing was covered."""

    increase: float
    covered_s: float
    coverage: float  # covered_s / window, 0..1
    resets: int

    @property
    def rate(self) -> float | None:
        return self.increase / self.covered_s if self.covered_s > 0 else None

    @property
    def grade(self) -> Coverage:
        if self.coverage < COVERAGE_MIN:
            return Coverage.INSUFFICIENT
        return Coverage.PARTIAL if self.coverage < COVERAGE_GOOD else Coverage.GOOD


def increment(before: float, after: float, *, restarted: bool = False) -> float:
    """Return what was counted between two readings (>= 0).

    After a restart, known or shown by a fall, it is `after`: what came since. What was counted between
    the last reading and the end is lost.
    """
    return after if restarted or after < before else after - before


def covered(
    samples: Sequence[Sample],
    *,
    eval_at_s: float,
    range_s: float,
    starts: Sequence[float] | None = None,
    max_gap_s: float | None = None,
) -> Covered:
    """Return the increase over [eval_at_s - range_s, eval_at_s] and the seconds it was seen in.

    `samples` ascend in time. `starts` are the process start times read with them: a change is a restart
    even where the value did not fall. A pair further apart than `max_gap_s` is left out, for its
    increase cannot be placed in time. Raises InvalidInput for range_s <= 0 or `starts` of another length.
    """
    if range_s <= 0:
        raise InvalidInput(f"a window is longer than 0 s, not {range_s:g}", field="range_s")
    if starts is not None and len(starts) != len(samples):
        raise InvalidInput(f"{len(starts)} start times for {len(samples)} samples", field="starts")
    inside = [i for i, (at, _) in enumerate(samples) if eval_at_s - range_s <= at <= eval_at_s]
    increase, seconds, resets = 0.0, 0.0, 0
    for i, j in pairwise(inside):
        (t0, v0), (t1, v1) = samples[i], samples[j]
        if max_gap_s is not None and t1 - t0 > max_gap_s:
            continue
        restarted = v1 < v0 or (starts is not None and starts[i] != starts[j])
        resets += restarted
        increase += increment(v0, v1, restarted=restarted)
        seconds += t1 - t0
    return Covered(increase, seconds, seconds / range_s, resets)


def prom_increase(samples: Sequence[Sample], *, eval_at_s: float, range_s: float) -> float | None:
    """Return what Prometheus's `increase()` answers over (eval_at_s - range_s, eval_at_s].

    None with fewer than two samples. A fall is a reset; the increase is stretched to the ends of the
    range where the nearest sample is within 1.1 average intervals, else by half an interval, and never
    to before the counter's zero. Source: Prometheus 3, promql `extrapolatedRate`.
    """
    if range_s <= 0:
        raise InvalidInput(f"a range is longer than 0 s, not {range_s:g}", field="range_s")
    inside = [(at, v) for at, v in samples if eval_at_s - range_s < at <= eval_at_s]
    if len(inside) < 2:
        return None
    (first_at, first), (last_at, last) = inside[0], inside[-1]
    increase = last - first + sum(a for (_, a), (_, b) in pairwise(inside) if b < a)
    sampled_s = last_at - first_at
    average_s = sampled_s / (len(inside) - 1)
    to_start_s = first_at - (eval_at_s - range_s)
    to_end_s = eval_at_s - last_at
    if to_start_s >= average_s * 1.1:
        to_start_s = average_s / 2
    if increase > 0 and first >= 0:
        to_start_s = min(to_start_s, sampled_s * (first / increase))
    if to_end_s >= average_s * 1.1:
        to_end_s = average_s / 2
    return increase * (sampled_s + to_start_s + to_end_s) / sampled_s


def prom_rate(samples: Sequence[Sample], *, eval_at_s: float, range_s: float) -> float | None:
    """Return what Prometheus's `rate()` answers: `prom_increase` a second of the whole range."""
    increase = prom_increase(samples, eval_at_s=eval_at_s, range_s=range_s)
    return None if increase is None else increase / range_s
