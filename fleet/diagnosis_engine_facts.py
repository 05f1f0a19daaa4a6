"""What one engine's windows add up to: rates, gauges, histograms, capacity and utilization.

Rates are per second of covered time, times seconds, sizes tokens. Windows in which the engine stood still
are kept apart. Prevents: a frozen hour read as an idle one, and a curve drawn through a single load.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np

from fleet.capacity import estimate_capacity
from fleet.capacity_learner import point_of
from fleet.curve_fit import Vector
from fleet.diagnosis_evidence import (
    EngineCapacity,
    EngineEvidence,
    Launch,
    Series,
)
from fleet.health_reading import TimedWindow
from fleet.histograms import merge
from fleet.readings import EngineWindow, Histogram
from fleet.saturation import EngineLimits

T = TypeVar("T")
#: Sequences the hardware is asked to hold when no setting binds: vLLM's default number of slots.
OPEN_SLOTS = 256
PESSIMISTIC = 2.0  # of the slope beyond the largest batch seen
NARROW = 0.7
FROZEN_WINDOWS = 3
FROZEN_S = 25.0
BUCKET_S = 60.0


def is_still(window: EngineWindow) -> bool:
    """Return whether an engine with work did nothing in the window."""
    if not (window.running or window.waiting):
        return False
    counted = [window.generation_tokens, window.prompt_tokens, window.completed]
    known = [count for count in counted if count is not None]
    return "frozen" in window.flags or (len(known) >= 2 and not any(known))


@dataclass(frozen=True)
class EngineFacts:
    """One engine over the interval."""

    evidence: EngineEvidence
    windows: tuple[TimedWindow, ...] = field(init=False)  # in which it worked or was idle
    still: tuple[TimedWindow, ...] = field(init=False)  # the longest run in which it stood still

    def __post_init__(self) -> None:
        still: list[TimedWindow] = []
        run: list[TimedWindow] = []
        for timed in self.evidence.windows:
            run = [*run, timed] if is_still(timed.window) else []
            if len(run) > len(still):
                still = run
        long_enough = len(still) >= FROZEN_WINDOWS and sum(t.window.length_s for t in still) >= FROZEN_S
        object.__setattr__(self, "still", tuple(still) if long_enough else ())
        begin_s, end_s = (still[0].ended_at_s, still[-1].ended_at_s) if long_enough else (0.0, 0.0)
        object.__setattr__(self, "windows", tuple(self._moving(begin_s, end_s)))

    def _moving(self, begin_s: float, end_s: float) -> Iterator[TimedWindow]:
        """Yield the windows outside the still time, and not the one in which it ended."""
        is_over = True
        for timed in self.evidence.windows:
            if end_s and begin_s <= timed.ended_at_s <= end_s:
                is_over = False
            elif is_over:
                yield timed
            else:
                is_over = True

    @property
    def name(self) -> str:
        e = self.evidence
        return e.node if e.engine in ("", "0") else f"{e.node}/{e.engine}"

    @cached_property
    def seconds(self) -> float:
        """Covered time."""
        return sum(t.window.length_s for t in self.windows)

    def total(self, count: Callable[[EngineWindow], int | None]) -> int | None:
        """Return the sum over the windows that say, None when fewer than half of them do."""
        values = [count(t.window) for t in self.windows]
        known = [v for v in values if v is not None]
        return sum(known) if known and 2 * len(known) >= len(values) else None

    def rate(self, count: Callable[[EngineWindow], int | None]) -> float | None:
        """Return what `count` counts, per second of the windows that say."""
        known = [(v, t.window.length_s) for t in self.windows if (v := count(t.window)) is not None]
        seconds = sum(s for _, s in known)
        return (
            sum(v for v, _ in known) / seconds
            if seconds > 0 and 2 * len(known) >= len(self.windows)
            else None
        )

    def gauge(self, of: Callable[[EngineWindow], float | None]) -> Vector:
        """Return a gauge at the end of each window, NaN where it was not said."""
        values = [of(t.window) for t in self.windows]
        return np.asarray([math.nan if v is None else float(v) for v in values], np.float64)

    @cached_property
    def running(self) -> Vector:
        return self.gauge(lambda w: w.running)

    @cached_property
    def waiting(self) -> Vector:
        return self.gauge(lambda w: w.waiting if w.waiting_capacity is None else w.waiting_capacity)

    @cached_property
    def kv(self) -> Vector:
        return self.gauge(lambda w: w.kv_used_ratio)

    @cached_property
    def arrival_rate(self) -> float | None:
        return self.rate(lambda w: w.arrivals)

    @cached_property
    def arrivals(self) -> int | None:
        return self.total(lambda w: w.arrivals)

    @cached_property
    def completed(self) -> int | None:
        return self.total(lambda w: w.completed)

    @cached_property
    def preemptions(self) -> int | None:
        return self.total(lambda w: w.preemptions)

    @cached_property
    def _merged(self) -> dict[str, Histogram | None]:
        return {}

    def histogram(self, name: str) -> Histogram | None:
        """Return the merged increments of one histogram, None when it was not exported."""
        if name not in self._merged:
            parts = [t.window.histograms[name] for t in self.windows if name in t.window.histograms]
            self._merged[name] = merge(parts)
        return self._merged[name]

    def summed(self, name: str) -> tuple[int, float] | None:
        """Return (observations, their sum) of a histogram whose buckets do not matter, None if not "
        "exported."""
        parts = [t.window.histograms[name] for t in self.windows if name in t.window.histograms]
        sums = [h.sum for h in parts if h.sum is not None]
        return (sum(h.count for h in parts), sum(sums)) if parts and len(sums) == len(parts) else None

    @cached_property
    def batch(self) -> float | None:
        """Sequences in decode, time average: d(itl_sum) / dt."""
        itl = self.histogram("itl_s")
        return None if itl is None or itl.sum is None or self.seconds <= 0 else itl.sum / self.seconds

    @cached_property
    def waiting_share(self) -> float | None:
        """Share of windows that ended with requests waiting."""
        known = self.waiting[~np.isnan(self.waiting)]
        return float((known > 0).mean()) if len(known) else None

    def while_waiting(self, gauge: Vector) -> Vector:
        """Return a gauge where requests waited, unknown values left out."""
        chosen = gauge[self.waiting > 0]
        return chosen[~np.isnan(chosen)]

    @cached_property
    def capacity(self) -> EngineCapacity:
        given = self.evidence.capacity
        return given if given is not None else fitted_capacity(self.evidence.launch, self.windows)

    @cached_property
    def hardware_rate(self) -> float | None:
        """Requests/s the engine could surely finish if no setting bound it: slots and token budget open.

        Beyond the largest batch seen the slope is taken twice as steep.
        """
        return self.open_rate(PESSIMISTIC)

    def open_rate(self, steeper: float) -> float | None:
        """Return requests/s without settings that bind, the slope beyond what was seen times `steeper`."""
        c = self.capacity
        if c.curve is None or not c.decode_events:
            return c.requests_per_s
        reach = c.reached or 1.0
        batch = max(self.open_batch(), reach)
        rate = batch / c.curve.beyond(batch, reach, steeper) / c.decode_events
        return max(rate, c.requests_per_s or 0.0)

    def open_batch(self) -> float:
        """Return the batch that KV memory and vLLM's default slots allow, whatever was configured."""
        slots = max(OPEN_SLOTS, self.evidence.launch.max_num_seqs or 0)
        return min(slots, self.capacity.kv_batch or math.inf)

    def utilization(self) -> list[tuple[float, float]]:
        """Return (Unix seconds, demand / hardware capacity) for each minute with data."""
        mu = self.open_rate(1.0)
        if not mu:
            return []
        points: list[tuple[float, float]] = []
        for at_s, group in in_buckets(self.windows, lambda t: t.ended_at_s):
            known = [(t.window.arrivals, t.window.length_s) for t in group if t.window.arrivals is not None]
            seconds = sum(s for _, s in known)
            if seconds >= BUCKET_S / 2:
                points.append((at_s, sum(a for a, _ in known) / seconds / mu))
        return points

    def series(self, name: str, unit: str, of: Callable[[EngineWindow], float | None]) -> Series:
        """Return a gauge of every window, standing still included, for a chart."""
        return Series(name, unit, tuple((t.ended_at_s, of(t.window)) for t in self.evidence.windows))


def fitted_capacity(launch: Launch, windows: Sequence[TimedWindow]) -> EngineCapacity:
    """Return what `windows` say about capacity; all None when they cannot.

    A curve through one load is no curve: without a batch range of NARROW only what was seen is kept.
    """
    points = [p for t in windows if (p := point_of(t.ended_at_s, t.window)) is not None]
    kv_tokens = next((t.window.kv_capacity_tokens for t in windows if t.window.kv_capacity_tokens), None)
    limits = EngineLimits(launch.max_num_seqs, launch.max_num_batched_tokens, kv_tokens)
    found = estimate_capacity(points, limits, np.random.default_rng(0), draws=0)
    reach, batch = found.reach, found.operating_batch
    seen = np.asarray([p.batch for p in points if p.usable] or [0.0], np.float64)
    is_narrow = float(np.quantile(seen, 0.02)) > NARROW * float(np.quantile(seen, 0.98))
    is_known = not is_narrow or (reach or 0.0) >= 0.8
    return EngineCapacity(
        requests_per_s=found.requests_per_s if is_known else None,
        low_requests_per_s=found.low_requests_per_s if is_known else None,
        high_requests_per_s=found.high_requests_per_s if is_known else None,
        decode_events=found.mix.decode_events if found.mix else None,
        curve=None if is_narrow else found.curve,
        reached=reach * batch if reach is not None and batch is not None else None,
        kv_batch=dict(found.limits).get("kv"),
        grade=found.grade.value if found.grade else None,
    )


def in_buckets(items: Iterable[T], at: Callable[[T], float]) -> list[tuple[float, list[T]]]:
    """Return items by minute, oldest first, each with the minute's end."""
    buckets: dict[float, list[T]] = {}
    for item in items:
        end_s = math.ceil(at(item) / BUCKET_S) * BUCKET_S
        buckets.setdefault(end_s, []).append(item)
    return sorted(buckets.items())
