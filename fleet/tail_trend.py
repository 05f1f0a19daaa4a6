"""Whether a tail latency grows without bound, told by a rule that may be asked every minute of a day.

Minutes, seconds of latency. Points are quantiles of disjoint minutes. Two answers: `is_significant`, one
Mann-Kendall test at 1 % over 30 minutes, is a vote beside other signals; `is_certain` stands alone. A test
at 1 % asked 1,440 times a day is wrong on one noisy day in six, and the minutes of a real queue are not
independent, which no level of the test mends. So certainty asks that the tail *has grown*: the median of
the last third of a window is 1.8 times that of its first third, the test agrees at 1 in 740, and both hold
in three successive minutes. `benchmarks/equilibrium.py` prints what that detects and how often it errs.
Prevents: an alarm from many looks at noise, and a doubling noticed when users call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from fleet.little import Trend, log_trend

POINTS = 30  # one-minute points of the first window
WINDOWS = (30, 60, 90)  # a slow doubling has grown by GROWTH only over a longer window
MIN_POINTS = 12
SIGNIFICANT_P = 0.01
DOUBLING_MIN = 60.0  # slower growth is no alarm
STILL_FACTOR = 3.0  # the median doubles more than this many times slower
CERTAIN_Z = 3.0
GROWTH = 1.8
RUN = 3  # successive minutes


@dataclass(frozen=True, slots=True)
class TailPoint:
    """One disjoint minute's median and tail of one latency, seconds."""

    at_min: float
    p50_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class TailTrend:
    """How the tail moves: p99's doubling time, and how sure that is."""

    doubling_min: float | None  # None: not growing
    middle_doubling_min: float | None
    p_one_sided: float
    growth: float  # median of the last third / median of the first
    span_min: float
    is_still: bool  # the median doubles more than three times slower
    is_significant: bool
    is_certain: bool

    def words(self, name: str = "p99") -> str:
        """Return the evidence as a sentence without a full stop."""
        if self.doubling_min is None or not (self.is_significant or self.is_certain):
            return f"{name} does not double within an hour (p = {self.p_one_sided:.2g})"
        moves = "p50 is still" if self.is_still else "p50 rises with it"
        sure = "" if self.is_certain else "; not yet certain"
        return (
            f"{name} doubles every {self.doubling_min:.0f} minutes, {moves} (p = {self.p_one_sided:.2g}, "
            f"x {self.growth:.1f} in {self.span_min:.0f} minutes){sure}"
        )


def tail_trend(points: Sequence[TailPoint]) -> TailTrend | None:
    """Return the trend at the end of `points`, oldest first; None with fewer than 12 in 30 minutes.

    Points with a latency of 0 are left out (the quantile lies below every bound). Source: Theil-Sen slope
    and Mann-Kendall test as in `log_trend`; the rule of certainty is the module's own.
    """
    usable = [point for point in points if point.p50_s > 0 and point.p99_s > 0]
    recent = _window(usable, POINTS)
    if recent is None:
        return None
    for width in WINDOWS:
        if (found := _certain(usable, width)) is not None:
            return found
    # one look says what three did not: a vote, no certainty
    return replace(_trend(recent), is_certain=False)


def _certain(points: Sequence[TailPoint], width: int) -> TailTrend | None:
    """Return the trend of the newest window of `width` minutes if it held in three successive ones."""
    newest: TailTrend | None = None
    for back in range(RUN):
        recent = _window(points[: len(points) - back], width)
        if recent is None or _growth(recent) < GROWTH:
            return None
        found = _trend(recent)
        if not found.is_certain:
            return None
        newest = newest or found
    return newest


def _window(points: Sequence[TailPoint], width: int) -> Sequence[TailPoint] | None:
    """Return the points of the last `width` minutes; None when too few to judge."""
    if not points:
        return None
    since = points[-1].at_min - width + 0.5
    recent = [point for point in points[-width:] if point.at_min > since]
    return None if len(recent) < (MIN_POINTS if width == POINTS else 0.8 * width) else recent


def _growth(recent: Sequence[TailPoint]) -> float:
    third = len(recent) // 3
    return median(p.p99_s for p in recent[-third:]) / median(p.p99_s for p in recent[:third])


def _trend(recent: Sequence[TailPoint]) -> TailTrend:
    """Return the trend over a window; `is_certain` as far as one look says."""
    at = [point.at_min for point in recent]
    tail = log_trend(at, [point.p99_s for point in recent])
    middle = log_trend(at, [point.p50_s for point in recent])
    growth = _growth(recent)
    is_fast = tail.doubling_min is not None and tail.doubling_min < DOUBLING_MIN
    is_still = middle.log_slope_per_min * STILL_FACTOR < tail.log_slope_per_min
    return TailTrend(
        doubling_min=_rounded(tail),
        middle_doubling_min=_rounded(middle),
        p_one_sided=tail.p_one_sided,
        growth=growth,
        span_min=at[-1] - at[0],
        is_still=is_still,
        is_significant=is_fast and tail.p_one_sided < SIGNIFICANT_P,
        is_certain=is_fast and tail.z > CERTAIN_Z and growth >= GROWTH,
    )


def _rounded(trend: Trend) -> float | None:
    doubling = trend.doubling_min
    return doubling if doubling is not None and math.isfinite(doubling) else None
