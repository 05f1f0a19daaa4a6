"""The utilization curve: how a pool's rho is distributed over time, and what its median says.

Ratios (rho, may exceed 1), shares 0..1 of the time. Times at which rho was unknown are no part of the
curve; `coverage` says how much of the range is. Prevents: a mean of a bursty day, and "p50 under 40 %"
read off a day of which half is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

IDLE_P50 = 0.40  # below: bad latency is a scheduling problem, not one of capacity
MIN_COVERAGE = 0.5
STEPS = 41


@dataclass(frozen=True, slots=True)
class UtilizationCurve:
    """Quantiles of rho over time. `points` are (share of time, rho at or below), 41 of them."""

    p10: float
    p50: float
    p90: float
    above_knee: float  # share of the known time above rho 0.85
    known: int  # rounds with a rho
    coverage: float  # known / rounds of the range
    points: tuple[tuple[float, float], ...]
    width_s: float | None = None  # each value is the mean of this long; None: of one round

    @property
    def is_mostly_idle(self) -> bool | None:
        """Return whether the median is under 40 %; None when less than half of the time is known."""
        return None if self.coverage < MIN_COVERAGE else self.p50 < IDLE_P50


def utilization_curve(
    values: Sequence[float | None], *, expected: int | None = None, knee: float = 0.85
) -> UtilizationCurve | None:
    """Return the curve of rho in `values`, one a round, None where unknown; None when nothing is known.

    `expected` is how many rounds the range should have; without it, as many as there are values.
    """
    known = np.sort(np.asarray([value for value in values if value is not None], np.float64))
    if not len(known):
        return None
    shares = np.linspace(0.0, 1.0, STEPS)
    found = np.quantile(known, shares)
    p10, p50, p90 = (float(value) for value in np.quantile(known, (0.1, 0.5, 0.9)))
    return UtilizationCurve(
        p10,
        p50,
        p90,
        float((known > knee).mean()),
        len(known),
        min(1.0, len(known) / max(expected or len(values), 1)),
        tuple((float(share), float(value)) for share, value in zip(shares, found, strict=True)),
    )
