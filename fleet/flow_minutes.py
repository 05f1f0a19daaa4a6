"""From rounds to disjoint minutes: what one pool, tier or fleet did in each, ready for the detector.

Unix seconds, requests, places. A round's slice belongs to the minute it ends in; a minute is made once,
when a later slice arrives, and never changes. A count enters only together with its counterpart (arrivals
with departures, places with times). Prevents: overlapping windows, and a balance of two sets of nodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import floor

from fleet.equilibrium import Minute
from fleet.histograms import merge, quantile_estimate
from fleet.readings import Histogram
from fleet.slo_windows import GoodCount, total
from fleet.stages import Stage, stage

KEPT_MINUTES = 370  # six hours of objectives, and a little
HISTOGRAM_MINUTES = 15
MIN_COVERED = 0.5
MIN_QUANTILE_COUNT = 10  # a p99 of fewer is their maximum


@dataclass(frozen=True, slots=True)
class StageCount:
    """One stage in one round: places at its end (or on average), who left and their time together."""

    held: float | None
    left: int | None
    time_sum_s: float | None


@dataclass(frozen=True, slots=True)
class FlowSlice:
    """What one subject did in one round of `length_s` covered seconds. None: not known."""

    at_s: float
    length_s: float
    arrivals: int | None = None
    departures: int | None = None
    inside: float | None = None  # at the end of the round
    time: Histogram | None = None  # in the system, of those that left
    time_extra_s: float | None = 0.0  # spent in the system by all that left together, beyond `time`
    unserved: int = 0  # of the departures: not in `time`, theirs is part of `time_extra_s`
    ttft: Histogram | None = None
    stages: dict[str, StageCount] = field(default_factory=dict[str, StageCount])
    good: GoodCount | None = None


@dataclass(frozen=True, slots=True)
class FlowMinute:
    """One whole minute: the detector's view, the stages, the objective's counts."""

    ended_at_s: float
    covered_s: float
    minute: Minute
    stages: tuple[Stage, ...]
    good: GoodCount | None
    time: Histogram | None = None  # only of the newest ones
    ttft: Histogram | None = None


def width_s(period_s: float) -> float:
    """Return the length of a "minute": 60 s, or two rounds where rounds are longer than half a minute."""
    return max(60.0, 2 * period_s)


class FlowMinutes:
    """The minutes of one subject, newest last, and the slices of the one being filled."""

    def __init__(self, period_s: float) -> None:
        self._width_s = width_s(period_s)
        self._slices: list[FlowSlice] = []
        self._before: FlowSlice | None = None  # the last slice of the minute before
        self.minutes: deque[FlowMinute] = deque(maxlen=KEPT_MINUTES)

    def add(self, part: FlowSlice) -> FlowMinute | None:
        """Take a round's slice; return the minute that it ended, if any. Older slices are ignored."""
        newest = self._slices[-1].at_s if self._slices else self._newest_s()
        if part.at_s <= newest:
            return None
        closed = None
        if self._slices and self._index(part) != self._index(self._slices[0]):
            closed = self._close()
        self._slices.append(part)
        return closed

    def _newest_s(self) -> float:
        return self.minutes[-1].ended_at_s if self.minutes else float("-inf")

    def _index(self, part: FlowSlice) -> int:
        return -floor(-part.at_s / self._width_s)  # a round that ends on the mark belongs to what it ends

    def _close(self) -> FlowMinute:
        slices, before = self._slices, self._before
        if before is not None and slices[0].at_s - before.at_s > self._width_s:
            before = None
        closed = flow_minute(slices, self._index(slices[0]) * self._width_s, self._width_s, before)
        self._before, self._slices = slices[-1], []
        if len(self.minutes) >= HISTOGRAM_MINUTES:
            old = self.minutes[-HISTOGRAM_MINUTES]
            self.minutes[-HISTOGRAM_MINUTES] = replace(old, time=None, ttft=None)
        self.minutes.append(closed)
        return closed

    def good(self, now_s: float, span_s: float) -> GoodCount | None:
        """Return the objective's counts of the last `span_s`, the unfinished minute included."""
        counts = [m.good for m in self.minutes if m.ended_at_s > now_s - span_s]
        counts += [s.good for s in self._slices if s.at_s > now_s - span_s]
        known = [count for count in counts if count is not None]
        return total(known) if known else None

    def recent(self, now_s: float, span_s: float) -> list[FlowMinute]:
        """Return the whole minutes of the last `span_s`."""
        return [m for m in self.minutes if m.ended_at_s > now_s - span_s]

    def unbroken(self, now_s: float, span_s: float) -> list[Minute]:
        """Return the last `span_s` as the detector sees it: an unknown minute wherever some are missing.

        So that two minutes with a gap between them do not pass for successive ones, nor the last one before
        a silence for the present.
        """
        found: list[Minute] = []
        for kept in self.recent(now_s, span_s):
            self._bridge(found, kept.ended_at_s - self._width_s)
            found.append(kept.minute)
        self._bridge(found, now_s - 2 * self._width_s)
        return found

    def _bridge(self, found: list[Minute], begins_s: float) -> None:
        """Add an unknown minute that ends at `begins_s` where the last one ended well before that."""
        if found and begins_s / 60 - found[-1].at_min > 0.5 * self._width_s / 60:
            found.append(Minute(begins_s / 60))


def flow_minute(
    slices: Sequence[FlowSlice], ended_at_s: float, width_s: float, before: FlowSlice | None = None
) -> FlowMinute:
    """Return the minute of `slices`, oldest first, that ends at `ended_at_s`; `before` came just before.

    What less than half of the minute covers is unknown.
    """
    balanced = [s for s in slices if s.arrivals is not None and s.departures is not None]
    covered_s = sum(s.length_s for s in slices)
    is_covered = sum(s.length_s for s in balanced) >= MIN_COVERED * width_s
    time, ttft = _merged(s.time for s in slices), _merged(s.ttft for s in slices)
    has_places = all(s.inside is not None and (s.time is not None or not s.departures) for s in slices)
    quantiles = [_quantile(h, q) for h in (time, ttft) for q in (0.5, 0.99)]
    minute = Minute(
        at_min=ended_at_s / 60,
        arrivals=sum(s.arrivals or 0 for s in balanced) if is_covered else None,
        departures=sum(s.departures or 0 for s in balanced) if is_covered else None,
        mean_in_system=_average([s.inside for s in slices], slices, before and before.inside)
        if has_places and is_covered
        else None,
        time_mean_s=_mean_time(time, slices),
        p50_s=quantiles[0],
        p99_s=quantiles[1],
        length_s=sum(s.length_s for s in balanced) or covered_s or width_s,
        ttft_p50_s=quantiles[2],
        ttft_p99_s=quantiles[3],
    )
    counts = [s.good for s in slices if s.good is not None]
    good = total(counts) if counts else None
    return FlowMinute(ended_at_s, covered_s, minute, _stages(slices, before), good, time, ttft)


def _merged(parts: Iterable[Histogram | None]) -> Histogram | None:
    return merge(part for part in parts if part is not None)


def _mean_time(time: Histogram | None, slices: Sequence[FlowSlice]) -> float | None:
    """Return the mean time in the system of all that left, those who waited in vain included."""
    extra = [s.time_extra_s for s in slices if s.time_extra_s is not None]
    if time is None or time.sum is None or not time.count or len(extra) < len(slices):
        return None
    return (time.sum + sum(extra)) / (time.count + sum(s.unserved for s in slices))


def _quantile(histogram: Histogram | None, q: float) -> float | None:
    if histogram is None or histogram.count < MIN_QUANTILE_COUNT:
        return None
    return quantile_estimate(histogram, q)


def _average(
    values: Sequence[float | None], slices: Sequence[FlowSlice], before: float | None
) -> float | None:
    """Return the time average of a gauge read at the end of each slice: a line between two readings."""
    area = span_s = 0.0
    last = before
    for value, part in zip(values, slices, strict=True):
        if value is None:
            last = None
            continue
        area += part.length_s * (value if last is None else (value + last) / 2)
        span_s += part.length_s
        last = value
    return area / span_s if span_s > 0 else None


def _stages(slices: Sequence[FlowSlice], before: FlowSlice | None) -> tuple[Stage, ...]:
    found: list[Stage] = []
    for name in dict.fromkeys(name for s in slices for name in s.stages):
        parts = [s for s in slices if name in s.stages and s.stages[name].left is not None]
        length_s = sum(s.length_s for s in parts)
        if length_s <= 0:
            continue
        counts = [s.stages[name] for s in parts]
        start = before.stages[name].held if before is not None and name in before.stages else None
        sums = [c.time_sum_s for c in counts if c.time_sum_s is not None]
        found.append(
            stage(
                name,
                held=_average([c.held for c in counts], parts, start),
                left=sum(c.left or 0 for c in counts),
                time_sum_s=sum(sums) if len(sums) == len(counts) else None,
                length_s=length_s,
            )
        )
    return tuple(found)
