"""Whether a burst is running: arrivals of the last 90 seconds against what is usual.

Requests, seconds, requests/s. The baseline is the median of disjoint minutes of the hour before, so that an
earlier burst or a restart does not move it. Prevents: one fast scrape called a burst, a burst that becomes
its own baseline, and "ten times nothing".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

BURST_S = 90.0
PART_S = 30.0  # a burst is there in each third of the time, not in one
GUARD_S = 60.0  # between baseline and burst: a burst that began is no baseline
BASELINE_S = 3600.0
MIN_BASELINE_S = 600.0
MIN_BASELINE_RATE = 0.05  # requests/s; ten times less than one request in 20 s is no burst
MIN_COVERED = 0.8


@dataclass(frozen=True, slots=True)
class Counted:
    """Arrivals of one round: `arrivals` requests over the `covered_s` seconds before `at_s` (Unix)."""

    at_s: float
    arrivals: int
    covered_s: float


@dataclass(frozen=True, slots=True)
class Burst:
    """How the last 90 seconds compare with the hour before."""

    ratio: float  # sustained rate / baseline
    rate: float  # requests/s over 90 s
    baseline: float  # requests/s, at least MIN_BASELINE_RATE
    baseline_minutes: int


def burst(rounds: Sequence[Counted], now_s: float, *, period_s: float = 10.0) -> Burst | None:
    """Return the comparison at `now_s`, or None with less than 10 minutes of baseline or gaps now.

    `ratio` counts what is sustained: at most twice the weakest third of the 90 seconds, so that one fast
    half minute is no burst. Rounds may come in any period; times of one round stand for its whole.
    """
    span_s = max(BURST_S, 3 * period_s)
    recent = [one for one in rounds if now_s - span_s < one.at_s <= now_s]
    covered_s = sum(one.covered_s for one in recent)
    if covered_s < MIN_COVERED * span_s:
        return None
    minutes = _minute_rates(rounds, now_s - span_s - GUARD_S)
    if len(minutes) * 60.0 < MIN_BASELINE_S:
        return None
    baseline = max(median(minutes), MIN_BASELINE_RATE)
    rate = sum(one.arrivals for one in recent) / covered_s
    thirds = [
        _rate([one for one in recent if begins < one.at_s - now_s + span_s <= begins + span_s / 3])
        for begins in (0.0, span_s / 3, 2 * span_s / 3)
    ]
    weakest = min((third for third in thirds if third is not None), default=rate)
    return Burst(min(rate, 2 * weakest) / baseline, rate, baseline, len(minutes))


def _rate(rounds: Sequence[Counted]) -> float | None:
    covered_s = sum(one.covered_s for one in rounds)
    return sum(one.arrivals for one in rounds) / covered_s if covered_s > 0 else None


def _minute_rates(rounds: Sequence[Counted], until_s: float) -> list[float]:
    """Return the rates of disjoint minutes of the hour before `until_s`; half-covered ones left out."""
    arrivals: dict[int, int] = {}
    covered: dict[int, float] = {}
    for one in rounds:
        if until_s - BASELINE_S < one.at_s <= until_s:
            minute = int((until_s - one.at_s) // 60)
            arrivals[minute] = arrivals.get(minute, 0) + one.arrivals
            covered[minute] = covered.get(minute, 0.0) + one.covered_s
    return [arrivals[minute] / seconds for minute, seconds in covered.items() if seconds >= 30.0]
