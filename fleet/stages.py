"""Little's law stage by stage: places held, what the finished explain, and what the slowest hold.

Rates per second, seconds, places (requests in a stage on average). Each stage has its own identity on
means; a percentile of time gives a budget of places and the places its slowest requests hold, never a
percentile of places. Prevents: L = lambda W across stages whose counts differ, and "L at p99".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from scipy.special import pdtr

from fleet.errors import InvalidInput, NotMeasured
from fleet.histograms import Quantile, quantile
from fleet.little import concurrency_budget
from fleet.readings import Histogram

QUANTILES = (0.5, 0.95, 0.99, 0.999)


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage over one window. None: not measured.

    `held` is L, the average of requests in the stage; `explained` is X W, what those that left had spent in
    it; the residual is the growth of the ages of those still inside, per second.
    """

    name: str
    held: float | None
    left_rate: float | None  # X, requests/s
    time_mean_s: float | None  # W of those that left

    @property
    def explained(self) -> float | None:
        """Return X W in places."""
        if self.left_rate == 0:
            return 0.0
        if self.left_rate is None or self.time_mean_s is None:
            return None
        return self.left_rate * self.time_mean_s

    @property
    def residual(self) -> float | None:
        """Return L - X W in places: above 0 requests grow old inside, below 0 old ones leave."""
        return None if self.held is None or self.explained is None else self.held - self.explained

    @property
    def age_share(self) -> float | None:
        """Return (L - X W) / L; None when the stage was empty."""
        residual = self.residual
        return None if residual is None or not self.held else residual / self.held


def stage(
    name: str, *, held: float | None, left: int | None, time_sum_s: float | None, length_s: float
) -> Stage:
    """Return a stage from a window's counts: `left` requests that spent `time_sum_s` in it together.

    Raises NotMeasured when no time is covered.
    """
    if length_s <= 0:
        raise NotMeasured("no covered time", hint="Wait for two scrapes")
    mean = None if not left or time_sum_s is None else time_sum_s / left
    return Stage(name, held, None if left is None else left / length_s, mean)


@dataclass(frozen=True, slots=True)
class Bounds:
    """A number known only to lie in [low, high]; `high` may be infinite."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class TailRow:
    """One percentile of a stage's time and what it means in places."""

    q: float
    time: Quantile
    budget: Bounds  # lambda W_p: places needed if every request took W_p
    tail_held: Bounds  # lambda (1 - q) E[W | W > W_p]: places the slowest hold
    tail_share: Bounds | None  # of all places the finished explain; None without the sum of times


def tail_mean(histogram: Histogram, q: float) -> Bounds | None:
    """Return between what bounds the mean of the slowest 1 - q of the observations lies, by the buckets.

    Each observation lies within its bucket, and all of them add up to the histogram's sum where it has one,
    so those below the quantile bound those above it. None without observations.
    """
    if not 0 <= q < 1:
        raise InvalidInput(f"q is {q}: a quantile with a tail lies in [0, 1)", field="q")
    total = histogram.count
    if total == 0:
        return None
    tail = round(total * (1 - q), 9)  # 100 x (1 - 0.9) is ten, not a hair less
    low_sum = high_sum = body_low = body_high = 0.0
    left = tail
    bounds = [*zip((0.0, *histogram.edges), (*histogram.edges, inf), histogram.counts, strict=True)]
    for low, high, count in reversed(bounds):
        taken = min(left, count)
        left -= taken
        if taken:
            low_sum, high_sum = low_sum + taken * low, high_sum + taken * high
        if count > taken:
            body_low, body_high = body_low + (count - taken) * low, body_high + (count - taken) * high
    if histogram.sum is not None:
        low_sum = max(low_sum, histogram.sum - body_high)
        high_sum = max(low_sum, min(high_sum, histogram.sum - body_low))
    return Bounds(low_sum / tail, high_sum / tail)


def tail_rows(
    histogram: Histogram, length_s: float, quantiles: Sequence[float] = QUANTILES
) -> tuple[TailRow, ...]:
    """Return one row a percentile from the times of those that left in `length_s` seconds.

    Empty without observations. Source: Little's law on the requests slower than W_p alone.
    """
    rows: list[TailRow] = []
    if histogram.count == 0 or length_s <= 0:
        return ()
    rate = histogram.count / length_s
    for q in quantiles:
        time, mean = quantile(histogram, q), tail_mean(histogram, q)
        if time is None or mean is None:
            continue
        held = Bounds(rate * (1 - q) * mean.low, rate * (1 - q) * mean.high)
        explained = None if not histogram.sum else histogram.sum / length_s
        rows.append(
            TailRow(
                q,
                time,
                Bounds(concurrency_budget(rate, time.lo), concurrency_budget(rate, time.hi)),
                held,
                None
                if explained is None
                else Bounds(min(1.0, held.low / explained), min(1.0, held.high / explained)),
            )
        )
    return tuple(rows)


def fifo_queue_quantile(waits: Histogram, length_s: float, q: float) -> tuple[int, int] | None:
    """Return between which counts the q-quantile of a FIFO queue's length lies; None when not bounded.

    Only for one queue without overtaking (one tier at the gateway, `order: fifo`) and Poisson arrivals:
    P(N <= n) = E[P(Poisson(lambda W) <= n)]. Source: Haji and Newell (1971); Keilson and Servi (1988).
    """
    if not 0 < q < 1:
        raise InvalidInput(f"q is {q}: a quantile lies strictly between 0 and 1", field="q")
    if waits.count == 0 or length_s <= 0 or waits.counts[-1] > (1 - q) * waits.count:
        return None
    rate, edges = waits.count / length_s, (*waits.edges, waits.edges[-1])
    lows = (0.0, *waits.edges)
    return _mixed_quantile(rate, lows, waits.counts, q), _mixed_quantile(rate, edges, waits.counts, q)


def _mixed_quantile(rate: float, times_s: Sequence[float], counts: Sequence[int], q: float) -> int:
    total = sum(counts)

    def at_most(n: int) -> float:
        pairs = zip(counts, times_s, strict=True)
        return sum(c * float(pdtr(n, rate * t)) if t > 0 else float(c) for c, t in pairs if c) / total

    low, high = -1, 1
    while at_most(high) < q:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if at_most(middle) >= q else (middle, high)
    return high
