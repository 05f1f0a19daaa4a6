"""What of a traffic decides how to provision for it: peak to mean, percentiles, how long bursts last.

Rates are requests/s in bins of 10 s, durations seconds. Percentiles are over time: the share of time above
a rate and the share of requests above it are two numbers, and both are here. Prevents: "p90 provisioning"
that is believed to refuse a tenth of the requests, and a cold start compared with bursts nobody measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.errors import InvalidInput
from fleet.fluid import BIN_S


@dataclass(frozen=True, slots=True)
class TrafficShape:
    """A traffic in a few numbers."""

    mean_rps: float
    p90_rps: float  # a tenth of the time is above this
    p99_rps: float
    peak_rps: float

    @property
    def peak_to_mean(self) -> float:
        """How far the peak stands above the mean (ratio, at least 1)."""
        return self.peak_rps / self.mean_rps


@dataclass(frozen=True, slots=True)
class BurstDurations:
    """How long the traffic stays above a capacity once it is above it."""

    capacity_rps: float
    count: int
    median_s: float | None  # None: it is never above
    p90_s: float | None
    time_share: float  # of all time, above the capacity
    request_share: float  # of all requests, the part above the capacity
    is_given: bool = False  # the median was measured elsewhere, not in this traffic


def traffic_shape(rates_rps: NDArray[np.float64]) -> TrafficShape:
    """Return mean, percentiles over time and peak. Raises InvalidInput for a traffic without requests."""
    if rates_rps.size == 0 or not rates_rps.sum() > 0:
        raise InvalidInput("the traffic has no requests", field="/traffic")
    p90, p99 = np.quantile(rates_rps, (0.90, 0.99))
    return TrafficShape(float(rates_rps.mean()), float(p90), float(p99), float(rates_rps.max()))


def burst_durations(rates_rps: NDArray[np.float64], capacity_rps: float) -> BurstDurations:
    """Return how long the excursions above `capacity_rps` last, counted in bins of 10 s.

    An excursion that the traffic begins or ends with counts with what was seen of it.
    """
    above = rates_rps > capacity_rps
    edges = np.flatnonzero(np.diff(np.concatenate(([False], above, [False]))))
    lengths_s = (edges[1::2] - edges[::2]) * BIN_S
    total = float(rates_rps.sum())
    excess = float(np.maximum(rates_rps - capacity_rps, 0.0).sum())
    return BurstDurations(
        capacity_rps=capacity_rps,
        count=int(lengths_s.size),
        median_s=float(np.median(lengths_s)) if lengths_s.size else None,
        p90_s=float(np.quantile(lengths_s, 0.9)) if lengths_s.size else None,
        time_share=float(above.mean()) if above.size else 0.0,
        request_share=excess / total if total > 0 else 0.0,
    )


def stretched(rates_rps: NDArray[np.float64], factor: float) -> NDArray[np.float64]:
    """Return traffic of the same length whose every rise and fall lasts `factor` times as long.

    Peak, mean and percentiles stay (up to where the month cuts it): only durations change. Factor above 0.
    """
    if not 0 < factor < math.inf:
        raise InvalidInput(f"a stretch of {factor}", hint="Give a factor above 0")
    places = np.arange(rates_rps.size) / factor
    return rates_rps[places.astype(np.int64) % rates_rps.size]
