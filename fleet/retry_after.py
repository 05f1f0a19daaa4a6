"""When a refused client should come back.

Times are seconds or milliseconds as named. Prevents: 200 clients refused together coming back together,
and a Retry-After of 0 or below.
"""

from __future__ import annotations

import math
import random

from fleet.policy import RetryAfter


def retry_after(base_s: float, bounds: RetryAfter, rng: random.Random) -> tuple[int, int]:
    """Return (whole seconds, milliseconds) to wait, spread around `base_s` (> 0).

    The wait is uniform in base * (1 +- jitter_ratio). Values under the floor are mirrored above it, and
    the base is kept low enough for its spread to fit under the cap, so neither bound gathers clients.
    Seconds are rounded up or down at random in proportion, so they spread even when the base is 1.
    Identical values to all happen only where the policy asks: no jitter, or floor equal to cap.
    """
    jitter = bounds.jitter_ratio
    base_s = max(bounds.floor_s, min(base_s, bounds.cap_s / (1 + jitter)))
    wait_s = base_s * rng.uniform(1 - jitter, 1 + jitter)
    if wait_s < bounds.floor_s:
        wait_s = 2 * bounds.floor_s - wait_s
    wait_s = min(wait_s, bounds.cap_s)
    whole_s = math.floor(wait_s)
    if rng.random() < wait_s - whole_s:
        whole_s += 1
    return whole_s, round(wait_s * 1000)
