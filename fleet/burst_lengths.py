"""How long bursts lasted in recorded arrivals: from counts by half minute to lengths in seconds.

A burst is at least 90 seconds at twice the usual rate or more; usual is the median of the minutes of the
hour before it, as in `fleet.bursts`. It is over after a minute below. Prevents: a burst's length guessed
from somebody else's traffic, one that is its own baseline, and a gap in the record read as its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from fleet.bursts import BASELINE_S, BURST_S, MIN_BASELINE_RATE, MIN_BASELINE_S, PART_S

OVER = 2.0
_LEAST = round(BURST_S / PART_S)  # parts that make a burst
_CALM = 2  # parts below, one after the other, that end it
_HOUR = round(BASELINE_S / PART_S)
_PARTS_A_MINUTE = 2


@dataclass(frozen=True, slots=True)
class BurstLengths:
    """The bursts of a record. Lengths are seconds, in steps of 30."""

    lengths_s: tuple[float, ...]  # sorted; those cut by a gap or an end of the record are not among them
    cut: int
    judged_s: float  # of the record, with enough before it to say what was usual


def burst_lengths(arrivals: Sequence[float | None]) -> BurstLengths:
    """Return the bursts in counts of requests by 30 s, in order; None where nothing was recorded."""
    found: list[float] = []
    place, cut, judged = 0, 0, 0
    while place < len(arrivals):
        usual = _usual(arrivals, place)
        if usual is None or arrivals[place] is None:
            place += 1
            continue
        end, is_whole = _end(arrivals, place, OVER * usual)
        is_whole = is_whole and arrivals[place - 1] is not None
        if end - place >= _LEAST and is_whole:
            found.append((end - place) * PART_S)
        elif end - place >= _LEAST:
            cut += 1
        step = max(1, end - place) if end - place >= _LEAST else 1
        judged += step
        place += step
    return BurstLengths(tuple(sorted(found)), cut, judged * PART_S)


def _usual(arrivals: Sequence[float | None], place: int) -> float | None:
    """The median of the minutes of the hour before, as requests in 30 s; None with under ten of them."""
    minutes: list[float] = []
    for last in range(place - _PARTS_A_MINUTE, max(-1, place - _HOUR - 1), -_PARTS_A_MINUTE):
        one, other = arrivals[last], arrivals[last + 1]
        if one is not None and other is not None:
            minutes.append((one + other) / _PARTS_A_MINUTE)
    if len(minutes) * 60.0 < MIN_BASELINE_S:
        return None
    return max(median(minutes), MIN_BASELINE_RATE * PART_S)


def _end(arrivals: Sequence[float | None], start: int, bound: float) -> tuple[int, bool]:
    """Return the place after the last part at `bound` or above, and whether calm was seen behind it."""
    end, calm = start, 0
    for place in range(start, len(arrivals)):
        count = arrivals[place]
        if count is None:
            return end, False
        calm = 0 if count >= bound else calm + 1
        if calm == 0:
            end = place + 1
        if calm == _CALM or end == start:
            return end, True
    return end, False
