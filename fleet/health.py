"""Utilization of an engine, a pool and the fleet, with its interval, and everything that explains it.

Rates are per second, times are seconds (Unix seconds handed in), ratios are not percent. rho = lambda / mu
with lambda counted at the door and mu a capacity; it is never capped at 1 and never built from occupancy.
`None` is unknown and never raises or clears an alarm. Prevents: lambda / X read as utilization (1.0 at any
steady load), and a node that stopped answering lowering the load of its pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fleet.capacity import CapacityEstimate, Grade
from fleet.health_reading import (
    BACKLOG_HORIZON_S,
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
from fleet.queueing import flow_balance, flow_z
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
    "assess_pool",
]

FAST_S = 60.0
SLOW_S = 300.0
MIN_COVERAGE = 0.5
STALE_AFTER_S = 60.0


def _total(values: Iterable[int | float | None]) -> float | None:
    """Return the sum, or None when any value is unknown or there is none."""
    held = list(values)
    known = [value for value in held if value is not None]
    return sum(known) if known and len(known) == len(held) else None


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
    than 60 s and three periods the engine is stale and everything else is unknown.
    """
    newest = max((w.ended_at_s for w in windows if w.ended_at_s <= now_s), default=None)
    if newest is None or now_s - newest > max(STALE_AFTER_S, 3 * period_s):
        return Health(name, Scope.ENGINE, now_s, is_stale=True, stale=(name,))
    fast_s, slow_s = _spans(period_s)
    fast, slow = _recent(windows, now_s, fast_s), _recent(windows, now_s, slow_s)
    last = max(fast, key=lambda w: w.ended_at_s, default=max(windows, key=lambda w: w.ended_at_s)).window
    arrivals = _total(w.window.arrivals for w in fast)
    completions = _total(w.window.completed for w in fast)
    registered = limits or EngineLimits()
    slots = dict(capacity.limits).get("slots") or registered.max_num_seqs
    batch = _batch(fast)
    best = capacity.operating_batch
    mu = Interval(capacity.requests_per_s, capacity.low_requests_per_s, capacity.high_requests_per_s)
    health = Health(
        name,
        Scope.ENGINE,
        now_s,
        mu=mu,
        mu_tokens=Interval(capacity.tokens_per_s, capacity.low_tokens_per_s, capacity.high_tokens_per_s),
        mu_by_limit=_mu_by_limit(capacity),
        arrival_rate=_rate(fast, fast_s, arrivals),
        arrival_rate_slow=_rate(slow, slow_s, _total(w.window.arrivals for w in slow)),
        throughput=_rate(fast, fast_s, completions),
        arrivals=None if arrivals is None else int(arrivals),
        completions=None if completions is None else int(completions),
        saturated=_saturated(fast, float(slots) if slots else float("inf")),
        waiting=last.waiting,
        batch=batch,
        free_batch=max(0.0, best - batch) if best is not None and batch is not None else None,
        batch_used_ratio=batch / best if best and batch is not None else None,
        slots_used_ratio=last.running / slots if slots and last.running is not None else None,
        kv_used_ratio=last.kv_used_ratio,
    )
    health = _with_offered(health, offered)
    unmeasured = health.arrival_rate is None or (mu.value is None and health.arrival_rate > 0)
    return _finish(
        replace(health, unmeasured=(name,) if unmeasured else ()),
        grade=capacity.grade,
        method=capacity.method.value,
        binding=capacity.binding,
        longest_wait_s=longest_wait_s,
    )


def _mu_by_limit(capacity: CapacityEstimate) -> tuple[tuple[str, float], ...]:
    """Return mu at each limit of the curve, and what computing alone would allow with endless slots."""
    compute = capacity.compute_requests_per_s
    by_limit = capacity.requests_per_s_by_limit
    return (("compute", compute), *by_limit) if compute is not None else by_limit


def _batch(windows: Sequence[TimedWindow]) -> float | None:
    """Return sequences in decode: inter-token seconds per second."""
    seconds = [h.sum for w in windows if (h := w.window.histograms.get("itl_s")) is not None]
    covered = sum(w.window.length_s for w in windows if "itl_s" in w.window.histograms)
    total = _total(seconds)
    return total / covered if total is not None and covered > 0 else None


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


def _with_offered(health: Health, offered: Offered | None) -> Health:
    """Return `health` with arrivals as the gateways counted them; their queues, where said, add up too."""
    if offered is None or offered.fast_s <= 0 or offered.slow_s <= 0:
        return health
    waiting = health.waiting
    if offered.waiting is not None:
        waiting = None if waiting is None else waiting + offered.waiting
    return replace(
        health,
        arrivals=offered.fast_count,
        arrival_rate=offered.fast_count / offered.fast_s,
        arrival_rate_slow=offered.slow_count / offered.slow_s,
        waiting=waiting,
    )


def _over(rate: float | None, mu: float | None) -> float | None:
    """Return rate / mu; 0 when nothing arrives, whatever mu; None when unknown."""
    if rate is None:
        return None
    if rate == 0:
        return 0.0
    return rate / mu if mu is not None and mu > 0 else None


def _finish(
    health: Health, *, grade: Grade | None, method: str, binding: str | None, longest_wait_s: float
) -> Health:
    """Return `health` with everything that follows from its arrivals, capacity and queue."""
    rate, mu, waiting = health.arrival_rate, health.mu, health.waiting
    rho = Rho(
        _over(rate, mu.value),
        _over(rate, mu.high),
        _over(rate, mu.low),
        grade=grade,
        method=method,
        binding=binding,
        slow=_over(health.arrival_rate_slow, mu.value),
    )
    to_saturation = to_drain = headroom = headroom_tokens = backlog = None
    if rate is not None and mu.value is not None and mu.value > 0:
        headroom = max(0.0, TARGET_RHO * mu.value - rate)
        if health.mu_tokens.value is not None:
            headroom_tokens = headroom * health.mu_tokens.value / mu.value
        if waiting is not None:
            backlog = (rate + waiting / BACKLOG_HORIZON_S) / mu.value
            if rate < mu.value:
                to_drain = waiting / (mu.value - rate)
            elif rate > mu.value and health.free_batch is not None:
                room = health.free_batch + longest_wait_s * mu.value - waiting
                to_saturation = max(0.0, room) / (rate - mu.value)
    counted = health.arrivals is not None and health.completions is not None
    found = replace(
        health,
        rho=rho,
        rho_by_limit=tuple((n, r) for n, m in health.mu_by_limit if (r := _over(rate, m)) is not None),
        flow_balance=flow_balance(health.arrivals or 0, health.completions or 0) if counted else None,
        flow_z=flow_z(health.arrivals or 0, health.completions or 0) if counted else None,
        headroom=headroom,
        headroom_tokens=headroom_tokens,
        rho_backlog=backlog,
        time_to_saturation_s=to_saturation,
        time_to_drain_s=to_drain,
    )
    return replace(found, explanation=explain(found, longest_wait_s))


def assess_pool(
    name: str,
    parts: Sequence[Health],
    now_s: float,
    *,
    offered: Offered | None = None,
    longest_wait_s: float = 1.5,
) -> Health:
    """Return the health of a pool: sum of lambda over sum of mu of its fresh engines.

    Errors of engines of one kind are shared, so interval ends add up too. Gateways' arrivals, when given,
    replace the engines' (refused requests count). A fresh engine without a capacity then stands at the mean
    of the others, at 0 for the low end, and is listed; without gateways' arrivals it leaves both sums.
    Where no engine has a capacity, lambda is the sum over all of them and rho is unknown.
    """
    return _combine(name, Scope.POOL, parts, now_s, offered, longest_wait_s)


def assess_fleet(
    pools: Sequence[Health],
    now_s: float,
    *,
    name: str = "fleet",
    offered: Offered | None = None,
    longest_wait_s: float = 1.5,
) -> Health:
    """Return the health of all pools (or engines) together, by the rule of `assess_pool`."""
    return _combine(name, Scope.FLEET, pools, now_s, offered, longest_wait_s)


def _combine(
    name: str,
    scope: Scope,
    parts: Sequence[Health],
    now_s: float,
    offered: Offered | None,
    longest_wait_s: float,
) -> Health:
    stale = tuple(dict.fromkeys(n for p in parts for n in p.stale))
    fresh = [p for p in parts if not p.is_stale]
    if not fresh:
        return Health(name, scope, now_s, is_stale=bool(parts), parts=len(parts), stale=stale)
    rated = [p for p in fresh if p.mu.value is not None]
    if offered is None:  # an idle engine of unknown capacity adds 0 to lambda and, cautiously, 0 to mu
        summed = [p for p in fresh if _over(p.arrival_rate, p.mu.value) is not None]
        left_out = [p for p in fresh if _over(p.arrival_rate, p.mu.value) is None]
        if left_out and not rated:  # no capacity at all: rho is unknown, demand is what all of them saw
            summed = fresh
    else:
        summed, left_out = fresh, [p for p in fresh if p.mu.value is None]
    known = [p for p in summed if p.mu.value is not None]
    stretch = _fresh_engines(fresh) / _fresh_engines(known) if offered and known else 1.0
    unmeasured = dict.fromkeys(n for p in fresh for n in p.unmeasured)
    unmeasured.update(dict.fromkeys(p.name for p in left_out if p.scope is Scope.ENGINE))
    arrivals, completions = _total(p.arrivals for p in summed), _total(p.completions for p in summed)
    health = Health(
        name,
        scope,
        now_s,
        mu=_summed([p.mu for p in known], stretch),
        mu_tokens=_summed([p.mu_tokens for p in known], stretch),
        mu_by_limit=_shared_limits(known) if len(known) == len(summed) else (),
        arrival_rate=_total(p.arrival_rate for p in summed),
        arrival_rate_slow=_total(p.arrival_rate_slow for p in summed),
        throughput=_total(p.throughput for p in fresh),
        arrivals=None if arrivals is None else int(arrivals),
        completions=None if completions is None else int(completions),
        saturated=_all_saturated(fresh),
        waiting=_whole(_total(p.waiting for p in fresh)),
        batch=_total(p.batch for p in fresh),
        free_batch=_total(p.free_batch for p in fresh),
        kv_used_ratio=max((p.kv_used_ratio for p in fresh if p.kv_used_ratio is not None), default=None),
        parts=len(parts),
        stale=stale,
        unmeasured=tuple(unmeasured),
    )
    health = _finish(
        _with_offered(health, offered),
        grade=_worst_grade(rated),
        method=_shared([p.rho.method for p in rated]) or "unknown",
        binding=_shared([p.rho.binding for p in rated]),
        longest_wait_s=longest_wait_s,
    )
    return _with_worst(health, fresh)


def _fresh_engines(parts: Sequence[Health]) -> int:
    """Return how many engines stand behind fresh `parts`, which are engines or pools of them."""
    return sum(max(1, part.parts - len(part.stale)) for part in parts)


def _summed(intervals: Sequence[Interval], factor: float) -> Interval:
    """Return the sum, stretched by `factor` from the engines known to all, its low end excepted."""
    if not intervals:
        return Interval()
    value = _total(i.value for i in intervals)
    low, high = _total(i.low for i in intervals), _total(i.high for i in intervals)
    grown = Interval(value, low, high).scaled(factor)
    return replace(grown, low=low)


def _shared_limits(parts: Sequence[Health]) -> tuple[tuple[str, float], ...]:
    """Return the sum of mu by limit, for the limits every part has."""
    held = [dict(part.mu_by_limit) for part in parts]
    names = [name for name in held[0] if all(name in other for other in held)] if held else []
    return tuple((name, sum(other[name] for other in held)) for name in names)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _all_saturated(parts: Sequence[Health]) -> bool | None:
    known = [p.saturated for p in parts if p.saturated is not None]
    return all(known) if known else None


def _worst_grade(parts: Sequence[Health]) -> Grade | None:
    """Return the worst grade: A < B < C < D. Configured capacities have none."""
    return max((p.rho.grade for p in parts if p.rho.grade is not None), default=None)


def _shared(names: Sequence[str | None]) -> str | None:
    """Return the one name all parts share, "mixed" when they differ, None without any."""
    distinct = {name for name in names if name}
    return distinct.pop() if len(distinct) == 1 else ("mixed" if distinct else None)


def _with_worst(health: Health, parts: Sequence[Health]) -> Health:
    ranked = [(p.worst_rho if p.worst_rho is not None else p.rho.value, p.worst or p.name) for p in parts]
    known = [(value, name) for value, name in ranked if value is not None]
    if not known:
        return health
    value, name = max(known)
    own = health.rho.value
    return replace(health, worst=name, worst_rho=value, imbalance=value / own if own else None)
