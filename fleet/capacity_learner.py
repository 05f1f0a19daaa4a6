"""One engine's capacity, learned window by window and refitted only when something changed.

A ring of the last 24 h of windows, the mix bucket they belong to, the last plateau seen, and the fallback
order: plateau, curve, configured, sibling, peak seen (a lower bound), unknown. Times are Unix seconds
handed in; randomness is an rng argument. Prevents: windows of another traffic mix, of a restart or of lying
gauges entering the curve, and a thousand refits a minute for nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from fleet.capacity import (
    UNKNOWN,
    CapacityEstimate,
    ConfiguredCapacity,
    Grade,
    Method,
    estimate_capacity,
)
from fleet.mix_buckets import Segment, mix_moved, present_bucket
from fleet.readings import EngineWindow
from fleet.saturation import EngineLimits, Plateau, Point, mix_of

RING_WINDOWS = 8640  # 24 h of 10 s windows
MIN_COVERED = 0.8
MIN_EVENTS = 200
MAX_DISAGREEMENT = 0.25  # counters against the running gauge, minute averages, when both exceed 8
PLATEAU_VALID_S = 7 * 86400.0
REFIT_AFTER_S = 600.0
REFIT_GROWTH = 0.02  # of the windows there are, so that a full ring is refitted every half hour


def point_of(ended_at_s: float, window: EngineWindow, covered_ratio: float = 1.0) -> Point | None:
    """Return the window as a point, or None when it does not say how long tokens took.

    `covered_ratio` (0..1) is the share of the window the scrapes cover; below 0.8, or with fewer than 200
    decode steps, a preemption or a restart, the point stays out of the curve.
    """
    latency = window.histograms.get("itl_s")
    if latency is None or latency.sum is None or window.length_s <= 0:
        return None
    events = latency.count
    usable = (
        covered_ratio >= MIN_COVERED
        and events >= MIN_EVENTS
        and latency.sum > 0
        and not window.restarted
        and not window.preemptions
        and "frozen" not in window.flags
    )
    return Point(
        ended_at_s=ended_at_s,
        length_s=window.length_s,
        batch=latency.sum / window.length_s,
        itl_s=latency.sum / events if events else 0.0,
        decode_events=float(events),
        completed=window.completed,
        prompt_tokens=window.prompt_tokens,
        prompt_tokens_computed=window.prompt_tokens_computed,
        running=window.running,
        waiting=window.waiting_capacity if window.waiting_capacity is not None else window.waiting,
        kv_used_ratio=window.kv_used_ratio,
        preemptions=window.preemptions,
        usable=usable,
    )


def gauges_disagree(minute: Sequence[Point]) -> bool:
    """Return whether concurrency by counters and by the running gauge differ by over 25 % in a minute."""
    gauge = [p.running for p in minute if p.running is not None]
    if len(gauge) < 4:
        return False
    counted = sum(p.batch * p.length_s for p in minute) / sum(p.length_s for p in minute)
    shown = sum(gauge) / len(gauge)
    return min(counted, shown) > 8 and abs(counted - shown) > MAX_DISAGREEMENT * max(counted, shown)


class CapacityLearner:
    """Learns one engine (one label, model revision and launch configuration). Owned by one loop; no lock.

    Adding a window is O(1). `estimate` refits after 10 minutes or, in a longer ring, when 2 % of its
    windows are new, and at once when the engine reached a new height. `draws` is the number of resamples.
    """

    def __init__(self, limits: EngineLimits, *, ring_windows: int = RING_WINDOWS, draws: int = 100) -> None:
        self._draws = draws
        self._points: deque[Point] = deque(maxlen=ring_windows)
        self._minute: deque[Point] = deque(maxlen=6)
        self._forget(limits)

    def _forget(self, limits: EngineLimits) -> None:
        self._limits = limits
        self._points.clear()
        self._minute.clear()
        self._cached: CapacityEstimate | None = None
        self._fitted_count = 0
        self._added_since = 0
        self._highest = 0.0
        self._stale: CapacityEstimate | None = None
        self._plateau: Plateau | None = None
        self._bucket_from_s: float = -math.inf
        self._segment = Segment()
        self._has_moved = False
        self._disagreeing = 0

    @property
    def limits(self) -> EngineLimits:
        """Return the limits in force."""
        return self._limits

    def register(self, limits: EngineLimits) -> None:
        """Take new limits. Different ones are another configuration: what was learned is dropped."""
        if limits.kv_capacity_tokens is None:  # the page said it, the registration does not
            limits = replace(limits, kv_capacity_tokens=self._limits.kv_capacity_tokens)
        if limits != self._limits:
            self._forget(limits)

    def add(self, ended_at_s: float, window: EngineWindow, covered_ratio: float = 1.0) -> None:
        """Take one window that ended at `ended_at_s`. Windows not newer than the last one are ignored."""
        point = point_of(ended_at_s, window, covered_ratio)
        if window.kv_capacity_tokens and self._limits.kv_capacity_tokens is None:
            self._limits = replace(self._limits, kv_capacity_tokens=window.kv_capacity_tokens)
        if point is not None:
            self.add_point(point)

    def add_point(self, point: Point) -> None:
        """Take one point, in time order."""
        if self._points and point.ended_at_s <= self._points[-1].ended_at_s:
            return
        self._minute.append(point)
        if gauges_disagree(self._minute):
            self._disagreeing += 1
            point = replace(point, usable=False)
        else:
            self._disagreeing = max(0, self._disagreeing - 1)
        self._points.append(point)
        self._watch_mix(point)
        if point.usable or (point.waiting or 0) > 0:  # idle windows teach nothing: no reason to refit
            self._added_since += 1

    def _watch_mix(self, point: Point) -> None:
        """Compare each ten minutes with the fit's mix: windows too thin for the curve can tell it moved."""
        if not self._segment.add(point):
            return
        fitted = self._cached.mix if self._cached is not None else None
        self._has_moved = fitted is not None and mix_moved(fitted, mix_of(self._segment.points))
        self._segment = Segment()

    def estimate(
        self,
        now_s: float,
        rng: np.random.Generator,
        *,
        configured: ConfiguredCapacity | None = None,
        siblings: Sequence[CapacityEstimate] = (),
    ) -> CapacityEstimate:
        """Return the best answer there is now. `siblings` are engines of identical configuration."""
        return with_fallback(self.learned(now_s, rng), configured, Siblings.of(siblings))

    def learned(self, now_s: float, rng: np.random.Generator) -> CapacityEstimate:
        """Return what this engine's own windows say now: a plateau, a curve, or neither."""
        if self._is_due():
            self._refit(now_s, rng)
        learned = self._cached or UNKNOWN
        if self._stale is not None and learned.method not in (Method.CURVE, Method.OBSERVED_SATURATION):
            flags = (*self._stale.flags, "stale_mix")
            learned = replace(self._stale, flags=flags, stale_since_s=self._bucket_from_s)
        if self._disagreeing > 6:
            learned = replace(learned, flags=(*learned.flags, "metrics_inconsistent"))
        return learned

    def _is_due(self) -> bool:
        if self._has_moved:
            return True
        if not self._added_since:
            return False
        if self._cached is None or self._cached.curve is None:
            return self._added_since >= 3 or self._cached is None
        newest = self._points[-1]
        waited = newest.ended_at_s - (self._cached.fitted_at_s or 0.0)
        young = self._fitted_count < 120 and self._added_since >= 6
        due = waited >= REFIT_AFTER_S and self._added_since >= REFIT_GROWTH * self._fitted_count
        higher = newest.usable and newest.batch > 1.1 * self._highest and self._added_since >= 3
        return young or due or higher

    def _refit(self, now_s: float, rng: np.random.Generator) -> None:
        """Fit the points of the present mix. A fit of another mix stays until this one has one."""
        bucket = present_bucket(self._points)
        before = self._cached.mix if self._cached is not None else None
        if before is not None and mix_moved(before, mix_of(bucket.points)):
            if self._cached is not None and self._cached.tokens_per_s is not None:
                self._stale = self._cached  # else the fit of the mix before that one goes on standing
            self._plateau = None
            self._bucket_from_s = bucket.since_s
        if self._plateau is not None and now_s - self._plateau.seen_at_s > PLATEAU_VALID_S:
            self._plateau = None
        self._cached = estimate_capacity(
            bucket.points, self._limits, rng, draws=self._draws, remembered=self._plateau
        )
        self._plateau = self._cached.plateau
        if self._cached.curve is not None:
            self._stale = None
        self._fitted_count, self._added_since, self._has_moved = len(bucket.points), 0, False
        self._highest = max((p.batch for p in bucket.points if p.usable), default=0.0)


def fit_points(
    points: Sequence[Point], limits: EngineLimits, rng: np.random.Generator, *, draws: int = 100
) -> CapacityEstimate:
    """Return the capacity at the mix the points end with: what a learner that saw them all would say.

    Where that mix alone has no fit yet, the fit of the others, flagged `stale_mix`. Points at which gauge
    and counters disagree stay out of the curve. `points` are one engine's, in time order.
    """
    checked: list[Point] = []
    minute: deque[Point] = deque(maxlen=6)
    for point in points:
        minute.append(point)
        checked.append(replace(point, usable=False) if gauges_disagree(minute) else point)
    disagreeing = sum(old.usable and not new.usable for old, new in zip(points, checked, strict=True))
    bucket = present_bucket(checked)
    found = estimate_capacity(bucket.points, limits, rng, draws=draws)
    if found.tokens_per_s is None and bucket.others:
        stale = estimate_capacity(bucket.others, limits, rng, draws=draws)
        found = replace(stale, flags=(*stale.flags, "stale_mix"), stale_since_s=bucket.since_s)
    if disagreeing > 6:
        found = replace(found, flags=(*found.flags, "metrics_inconsistent"))
    return found


@dataclass(frozen=True, slots=True)
class Siblings:
    """What engines of one configuration learned, together: the median, and the widest interval of them."""

    count: int = 0
    requests: tuple[float, float, float] = (0.0, 0.0, 0.0)  # median, low, high, requests/s
    tokens: tuple[float, float, float] = (0.0, 0.0, 0.0)
    grade: Grade | None = None

    @classmethod
    def of(cls, estimates: Sequence[CapacityEstimate]) -> Siblings:
        """Return the summary of those that measured a capacity at a known mix."""
        known = [e for e in estimates if e.method in (Method.CURVE, Method.OBSERVED_SATURATION)]
        rated = [e for e in known if e.requests_per_s is not None]
        if not rated:
            return cls()
        return cls(
            len(rated),
            (
                median(e.requests_per_s or 0.0 for e in rated),
                min(e.low_requests_per_s or 0.0 for e in rated),
                max(e.high_requests_per_s or 0.0 for e in rated),
            ),
            (
                median(e.tokens_per_s or 0.0 for e in rated),
                min(e.low_tokens_per_s or 0.0 for e in rated),
                max(e.high_tokens_per_s or 0.0 for e in rated),
            ),
            max((e.grade for e in rated if e.grade), default=None),
        )


def with_fallback(
    learned: CapacityEstimate, configured: ConfiguredCapacity | None, siblings: Siblings
) -> CapacityEstimate:
    """Return `learned` if it carries a capacity, else the configured one, else the siblings' median.

    A peak seen is a lower bound and stays one: it is never turned into mu.
    """
    if learned.tokens_per_s is not None:
        return learned
    if configured is not None:
        return _as_configured(learned, configured)
    if not siblings.count:
        return learned
    return replace(
        learned,
        method=Method.SIBLING,
        grade=siblings.grade,
        requests_per_s=siblings.requests[0],
        low_requests_per_s=siblings.requests[1],
        high_requests_per_s=siblings.requests[2],
        tokens_per_s=siblings.tokens[0],
        low_tokens_per_s=siblings.tokens[1],
        high_tokens_per_s=siblings.tokens[2],
        source=f"median of {siblings.count} engines of the same configuration",
    )


def _as_configured(learned: CapacityEstimate, configured: ConfiguredCapacity) -> CapacityEstimate:
    """Return `learned` with the operator's capacity and its declared band: nobody measured it here."""
    events = learned.mix.decode_events if learned.mix else None
    tokens, requests = configured.output_tokens_per_s, configured.requests_per_s
    if requests is None and tokens is not None and events:
        requests = tokens / events
    if tokens is None and requests is not None and events:
        tokens = requests * events
    low, high = 1 - configured.relative_error, 1 + configured.relative_error
    return replace(
        learned,
        method=Method.CONFIGURED,
        grade=None,
        requests_per_s=requests,
        low_requests_per_s=None if requests is None else requests * low,
        high_requests_per_s=None if requests is None else requests * high,
        tokens_per_s=tokens,
        low_tokens_per_s=None if tokens is None else tokens * low,
        high_tokens_per_s=None if tokens is None else tokens * high,
        source=configured.source,
    )
