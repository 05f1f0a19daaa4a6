"""The capacity a full engine showed: its latest saturated minutes, at the mix of all its windows.

Rates are decode tokens/s, times Unix seconds. Prevents: a capacity of yesterday for an engine that is
throttled today, and a quarter of an hour of long prompts taken for the rate at the mean mix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fleet.prompt_cost import rates_at_mix
from fleet.saturation import Mix, Plateau, Point, saturated_points

PLATEAU_LEAST = 6  # saturated windows, a minute
QUEUED_LEAST = 60  # windows with a queue, where no gauge says that the engine was full
RECENT_SATURATED = 90  # windows, a quarter of an hour: what a full engine does now, not on average


def queued_plateau(points: Sequence[Point], slots: float, mix: Mix) -> Plateau | None:
    """Return the capacity seen while requests waited for ten minutes or more in all, whatever was full."""
    full = saturated_points(points, slots, does_queue_suffice=True)[-RECENT_SATURATED:]
    return _plateau_of(full, mix) if len(full) >= QUEUED_LEAST else None


def plateau(points: Sequence[Point], slots: float, mix: Mix) -> Plateau | None:
    """Return the capacity seen in the latest saturated minutes, or None when there were fewer than six.

    An engine that is throttled, or runs a new kernel, is full at another rate than it was yesterday.
    """
    full = saturated_points(points, slots)[-RECENT_SATURATED:]
    return _plateau_of(full, mix) if len(full) >= PLATEAU_LEAST else None


def _plateau_of(full: Sequence[Point], mix: Mix) -> Plateau | None:
    rates = rates_at_mix(full, mix)
    median = float(np.median(rates))
    if median <= 0:
        return None
    spread = float(rates.std()) / median * math.sqrt(math.pi / 2)  # of a median of Gaussians
    error = spread / math.sqrt(max(1.0, len(rates) / 6))  # neighbours share traffic: one in six counts
    return Plateau(median, error, full[-1].ended_at_s, len(full))
