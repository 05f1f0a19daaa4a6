"""Little's law on a finite window and at percentiles, and the trend test that shows when it stops holding.

Rates are per second, times are seconds. L = lambda W is a statement about means; lambda times a percentile
of W is a budget of places, not a percentile of L. Prevents: "L at p99" printed for lambda W_p99, which may
be seven times the truth.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri, pdtr

from fleet.errors import InvalidInput, NotMeasured


def age_residual(integral_l: float, sojourn_sum_s: float, age_start_s: float, age_end_s: float) -> float:
    """Return integral of L dt - (sojourns of the completed + growth of total age), request-seconds.

    Exactly 0 for any arrivals and any window when all four belong to the same requests.
    """
    return integral_l - (sojourn_sum_s + age_end_s - age_start_s)


def age_share(mean_in_system: float, throughput: float, time_mean_s: float) -> float:
    """Return (L - X W) / L: the part of L that is requests growing old. Near 0 in equilibrium.

    Raises NotMeasured when nothing was in the system.
    """
    if mean_in_system <= 0:
        raise NotMeasured("nothing was in the system", hint="Widen the window")
    return (mean_in_system - throughput * time_mean_s) / mean_in_system


def concurrency_budget(arrival_rate: float, time_quantile_s: float) -> float:
    """Return lambda W_p: places needed if every request took W_p. A budget, not a percentile of L."""
    return arrival_rate * time_quantile_s


def tail_occupancy(arrival_rate: float, q: float, tail_mean_s: float) -> float:
    """Return the mean places held by the slowest 1 - q of requests: lambda (1 - q) E[W | W > W_q]."""
    if not 0 <= q <= 1:
        raise InvalidInput(f"q is {q}: a quantile lies between 0 and 1", field="q")
    return arrival_rate * (1 - q) * tail_mean_s


def infinite_server_quantile(arrival_rate: float, time_mean_s: float, q: float) -> int:
    """Return the q-quantile of L when nobody waits: Poisson(lambda W_mean), whatever W's distribution."""
    if not 0 < q < 1:
        raise InvalidInput(f"q is {q}: a quantile lies strictly between 0 and 1", field="q")
    mean = arrival_rate * time_mean_s
    low, high = -1, math.ceil(mean + 40 * math.sqrt(mean) + 40)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if float(pdtr(middle, mean)) >= q else (middle, high)
    return high


def lognormal_quantile(mean: float, cv: float, q: float) -> float:
    """Return the q-quantile of a lognormal with this mean and coefficient of variation."""
    variance = math.log1p(cv * cv)
    return mean * math.exp(-variance / 2 + math.sqrt(variance) * float(ndtri(q)))


def lognormal_tail_mean(mean: float, cv: float, q: float) -> float:
    """Return E[W | W > W_q] of a lognormal: mean Phi(sigma - z_q) / (1 - q)."""
    sigma = math.sqrt(math.log1p(cv * cv))
    return mean * float(ndtr(sigma - float(ndtri(q)))) / (1 - q)


@dataclass(frozen=True, slots=True)
class Trend:
    """A monotone trend of ln(values) per minute."""

    log_slope_per_min: float  # Theil-Sen
    mann_kendall_s: int
    z: float
    p_one_sided: float  # probability of so strong a rise without a trend

    @property
    def doubling_min(self) -> float | None:
        """Return minutes to double; None when not growing."""
        return math.log(2) / self.log_slope_per_min if self.log_slope_per_min > 0 else None


@lru_cache(maxsize=128)
def _pairs(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of every pair of `n` points, earlier and later."""
    first, second = np.triu_indices(n, 1)
    first.flags.writeable = second.flags.writeable = False
    return first, second


def log_trend(minutes: Sequence[float], values: Sequence[float]) -> Trend:
    """Return the Theil-Sen slope of ln(values) and the Mann-Kendall test, ties accounted for.

    Values must be positive and windows disjoint: overlapping ones inflate the significance. Raises
    NotMeasured below 4 points. Source: Sen (1968); Mann (1945), Kendall (1975).
    """
    if len(minutes) != len(values) or any(value <= 0 for value in values):
        raise InvalidInput("a trend needs one positive value a minute mark", field="values")
    n = len(values)
    if n < 4:
        raise NotMeasured(f"{n} points do not make a trend", hint="Wait for at least 4 disjoint windows")
    at, logs = np.asarray(minutes, np.float64), np.log(np.asarray(values, np.float64))
    first, second = _pairs(n)
    spans, rises = at[second] - at[first], logs[second] - logs[first]
    if bool((spans <= 0).any()):
        raise InvalidInput("minute marks must increase", field="minutes")
    s = int(np.sign(rises).sum())
    tied = float(sum(t * (t - 1) * (2 * t + 5) for t in Counter(values).values() if t > 1))
    variance = (n * (n - 1) * (2 * n + 5) - tied) / 18
    z = (s - math.copysign(1, s)) / math.sqrt(variance) if s and variance > 0 else 0.0
    return Trend(float(np.median(rises / spans)), s, z, 0.5 * math.erfc(z / math.sqrt(2)))
