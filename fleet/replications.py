"""How sure several simulated months are: their mean with its 95 % interval.

Prevents: one lucky month shown as the answer, and an interval from a single one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Spread:
    """The mean over replications and its 95 % interval; None with a single one."""

    mean: float
    low: float | None
    high: float | None


def spread(values: Sequence[float | int | None]) -> Spread | None:
    """Return the mean of the replications with its 95 % interval (Student's t); None if one is unknown."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if len(known) < len(values) or not known:
        return None
    mean = float(np.mean(known))
    if len(known) == 1:
        return Spread(mean, None, None)
    from scipy.stats import t  # slow to import, and only needed here

    quantile: Any = t.ppf(0.975, len(known) - 1)  # pyright: ignore[reportUnknownMemberType]
    half = float(quantile * np.std(known, ddof=1) / math.sqrt(len(known)))
    return Spread(mean, mean - half, mean + half)
