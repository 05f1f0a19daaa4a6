"""Utilization of one engine, with its interval, and everything that explains it.

Rates are per second, times are seconds (Unix seconds handed in), ratios are not percent. rho = lambda / mu
with lambda counted at the door and mu a capacity; it is never capped at 1 and never built from occupancy.
`None` is unknown and never raises or clears an alarm. Prevents: lambda / X read as utilization (1.0 at any
steady load), and a node that stopped answering lowering the load of its pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fleet.capacity import CapacityEstimate
from fleet.capacity_reasons import explain_capacity
from fleet.health_reading import (
    TARGET_RHO,
    Health,
    Interval,
    Offered,
    Rho,
    Scope,
    TimedWindow,
    alarm_value,
)
from fleet.health_reasons import explain
from fleet.health_sums import assess_fleet, assess_group, assess_pool
from fleet.load import finish, total, with_offered
from fleet.saturation import MINUTE_COVERED_S, EngineLimits, Point, is_saturated

__all__ = [
    "Health",
    "Interval",
    "Offered",
    "Rho",
    "Scope",
    "TimedWindow",
    "alarm_value",
    "assess_engine",
    "assess_fleet",
    "assess_group",
    "assess_pool",
]

FAST_S = 60.0
SLOW_S = 300.0
MIN_COVERAGE = 0.5
#: The remark of a window in which requests ran and nothing moved (`fleet.lifesigns`).
FROZEN = "frozen"
STALE_AFTER_S = 60.0


def _recent(windows: Sequence[TimedWindow], now_s: float, span_s: float) -> list[TimedWindow]:
    return [w for w in windows if now_s - span_s < w.ended_at_s <= now_s]


def _rate(windows: Sequence[TimedWindow], span_s: float, count: float | None) -> float | None:
    """Return count / covered seconds; None below half coverage."""
    covered = sum(w.window.length_s for w in windows)
    if count is None or covered < MIN_COVERAGE * span_s:
        return None
    return count / covered


def _spans(period_s: float) -> tuple[float, float]:
    """Return the fast and slow window for samples `period_s` apart: never fewer than two samples."""
    return max(FAST_S, 2 * period_s), max(SLOW_S, 4 * period_s)


def assess_engine(
    name: str,
    windows: Sequence[TimedWindow],
    capacity: CapacityEstimate,
    now_s: float,
    *,
    limits: EngineLimits | None = None,
    offered: Offered | None = None,
    period_s: float = 10.0,
    longest_wait_s: float = 1.5,
) -> Health:
    """Return the health of one engine from its windows of the last 300 s (more are ignored).

    `offered`, counted at the gateways, is preferred to the engine's own arrivals. Without a window newer
    than 60 s and three periods the engine is stale and everything else is unknown. So it is while it stands
    still with work inside: it counts no arrivals and finishes none, and a rho of 0 would be false room.
    """
    newest = max((w.ended_at_s for w in windows if w.ended_at_s <= now_s), default=None)
    if newest is None or now_s - newest > max(STALE_AFTER_S, 3 * period_s):
        return Health(name, Scope.ENGINE, now_s, is_stale=True, stale=(name,))
    if (standing := _standing_still(name, windows, now_s)) is not None:
        return standing
    fast_s, slow_s = _spans(period_s)
    fast, slow = _recent(windows, now_s, fast_s), _recent(windows, now_s, slow_s)
    last = max(fast, key=lambda w: w.ended_at_s, default=max(windows, key=lambda w: w.ended_at_s)).window
    arrivals = total(w.window.arrivals for w in fast)
    completions = total(w.window.completed for w in fast)
    registered = limits or EngineLimits()
    slots = capacity.slots or registered.max_num_seqs
    mix = capacity.mix
    batch = _batch(fast)
    best = capacity.operating_batch
    rate = _rate(fast, fast_s, arrivals)
    slow_rate = _rate(slow, slow_s, total(w.window.arrivals for w in slow))
    mu = Interval(capacity.requests_per_s, capacity.low_requests_per_s, capacity.high_requests_per_s)
    health = Health(
        name,
        Scope.ENGINE,
        now_s,
        mu=mu,
        mu_tokens=Interval(capacity.tokens_per_s, capacity.low_tokens_per_s, capacity.high_tokens_per_s),
        mu_by_limit=_mu_by_limit(capacity),
        arrival_rate=rate,
        arrival_rate_slow=slow_rate,
        competing_rate=rate,
        competing_rate_slow=slow_rate,
        throughput=_rate(fast, fast_s, completions),
        arrivals=None if arrivals is None else int(arrivals),
        completions=None if completions is None else int(completions),
        saturated=_saturated(fast, float(slots) if slots else float("inf")),
        running=last.running,
        waiting=last.waiting,
        model=last.model,
        batch=batch,
        free_batch=max(0.0, best - batch) if best is not None and batch is not None else None,
        batch_used_ratio=batch / best if best and batch is not None else None,
        batch_expected_ratio=capacity.occupancy_at(TARGET_RHO),
        prompt_tokens=mix.prompt_tokens if mix else None,
        output_tokens=mix.decode_events if mix else None,
        slots_used_ratio=last.running / slots if slots and last.running is not None else None,
        kv_used_ratio=last.kv_used_ratio,
    )
    health = with_offered(health, offered)
    unmeasured = health.arrival_rate is None or (mu.value is None and health.arrival_rate > 0)
    health = finish(
        replace(health, unmeasured=(name,) if unmeasured else ()),
        grade=capacity.grade,
        method=capacity.method.value,
        binding=capacity.binding,
        longest_wait_s=longest_wait_s,
    )
    return replace(
        health, explanation=(*explain(health, longest_wait_s), *explain_capacity(capacity, now_s))
    )


def _standing_still(name: str, windows: Sequence[TimedWindow], now_s: float) -> Health | None:
    """Return the health of an engine that was frozen in its newest window, gauges kept; None if not."""
    newest = max((w for w in windows if w.ended_at_s <= now_s), key=lambda w: w.ended_at_s).window
    if FROZEN not in newest.flags:
        return None
    return Health(
        name,
        Scope.ENGINE,
        now_s,
        is_stale=True,
        stale=(name,),
        running=newest.running,
        waiting=newest.waiting,
        model=newest.model,
        kv_used_ratio=newest.kv_used_ratio,
        explanation=(
            f"rho is unknown: {newest.running or 0} requests run and no counter moves, so the engine "
            "finishes nothing; its capacity is in no sum until it moves again",
        ),
    )


def _mu_by_limit(capacity: CapacityEstimate) -> tuple[tuple[str, Interval], ...]:
    """Return mu at each limit of the curve, and what computing alone would allow with endless slots."""
    return tuple((rate.name, Interval(rate.value, rate.low, rate.high)) for rate in capacity.rates_by_limit)


def _batch(windows: Sequence[TimedWindow]) -> float | None:
    """Return sequences in decode: inter-token seconds per second."""
    seconds = [h.sum for w in windows if (h := w.window.histograms.get("itl_s")) is not None]
    covered = sum(w.window.length_s for w in windows if "itl_s" in w.window.histograms)
    held = total(seconds)
    return held / covered if held is not None and covered > 0 else None


def _saturated(windows: Sequence[TimedWindow], slots: float) -> bool | None:
    """Return whether the engine was at its limit; None when the minute is not covered or not told."""
    covered_s = sum(w.window.length_s for w in windows)
    if covered_s < MINUTE_COVERED_S or any(w.window.waiting is None for w in windows):
        return None
    minute = [
        Point(
            w.ended_at_s,
            w.window.length_s,
            batch=0.0,
            itl_s=0.0,
            decode_events=0.0,
            running=w.window.running,
            waiting=w.window.waiting_capacity
            if w.window.waiting_capacity is not None
            else w.window.waiting,
            kv_used_ratio=w.window.kv_used_ratio,
            preemptions=w.window.preemptions,
        )
        for w in windows
    ]
    return is_saturated(minute, slots)
