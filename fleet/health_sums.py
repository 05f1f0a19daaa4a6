"""Utilization of engines together: a pool, a model's engines, a node of several, the fleet.

Rates are per second, times are seconds (Unix seconds handed in). lambda adds up and mu adds up; a ratio
never does. A part without fresh data leaves both sums and is named. Prevents: the mean of node rhos, and an
engine of unknown capacity counted as no load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fleet.capacity import Grade
from fleet.health_reading import Health, Interval, Offered, Scope
from fleet.health_reasons import explain
from fleet.load import finish, over, total, with_offered


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


def assess_group(
    name: str,
    scope: Scope,
    parts: Sequence[Health],
    now_s: float,
    *,
    offered: Offered | None = None,
    longest_wait_s: float = 1.5,
) -> Health:
    """Return the health of any group of engines (a node, a model), by the rule of `assess_pool`."""
    return _combine(name, scope, parts, now_s, offered, longest_wait_s)


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
        summed = [p for p in fresh if over(p.competing_rate, p.mu.value) is not None]
        left_out = [p for p in fresh if over(p.competing_rate, p.mu.value) is None]
        if left_out and not rated:  # no capacity at all: rho is unknown, demand is what all of them saw
            summed = fresh
    else:
        summed, left_out = fresh, [p for p in fresh if p.mu.value is None]
    known = [p for p in summed if p.mu.value is not None]
    stretch = _fresh_engines(fresh) / _fresh_engines(known) if offered and known else 1.0
    unmeasured = dict.fromkeys(n for p in fresh for n in p.unmeasured)
    unmeasured.update(dict.fromkeys(p.name for p in left_out if p.scope is Scope.ENGINE))
    arrivals, completions = total(p.arrivals for p in summed), total(p.completions for p in summed)
    health = Health(
        name,
        scope,
        now_s,
        mu=_summed([p.mu for p in known], stretch),
        mu_tokens=_summed([p.mu_tokens for p in known], stretch),
        mu_by_limit=_shared_limits(known) if len(known) == len(summed) else (),
        arrival_rate=total(p.arrival_rate for p in summed),
        arrival_rate_slow=total(p.arrival_rate_slow for p in summed),
        competing_rate=total(p.competing_rate for p in summed),
        competing_rate_slow=total(p.competing_rate_slow for p in summed),
        limited_rate=total(p.limited_rate for p in summed),
        throughput=total(p.throughput for p in fresh),
        arrivals=None if arrivals is None else int(arrivals),
        completions=None if completions is None else int(completions),
        saturated=_all_saturated(fresh),
        running=_whole(total(p.running for p in fresh)),
        waiting=_whole(total(p.waiting for p in fresh)),
        batch=total(p.batch for p in fresh),
        free_batch=total(p.free_batch for p in fresh),
        batch_used_ratio=_used_ratio(known),
        batch_expected_ratio=_mean([p.batch_expected_ratio for p in known]),
        prompt_tokens=_by_mu(known, [p.prompt_tokens for p in known]),
        output_tokens=_by_mu(known, [p.output_tokens for p in known]),
        kv_used_ratio=max((p.kv_used_ratio for p in fresh if p.kv_used_ratio is not None), default=None),
        parts=len(parts),
        stale=stale,
        unmeasured=tuple(unmeasured),
    )
    health = finish(
        with_offered(health, offered),
        grade=_worst_grade(rated),
        method=_shared([p.rho.method for p in rated]) or "unknown",
        binding=_shared([p.rho.binding for p in rated]),
        longest_wait_s=longest_wait_s,
        engines=_fresh_engines(fresh if offered and known else known) if known else 0,
    )
    reached = over(total(p.competing_rate for p in summed), health.mu.value)
    health = _with_worst(health, fresh, reached)
    return replace(health, explanation=explain(health, longest_wait_s, parts=tuple(known)))


def _fresh_engines(parts: Sequence[Health]) -> int:
    """Return how many engines stand behind fresh `parts`, which are engines or pools of them."""
    return sum(max(1, part.parts - len(part.stale)) for part in parts)


def _summed(intervals: Sequence[Interval], factor: float) -> Interval:
    """Return the sum, stretched by `factor` from the engines known to all, its low end excepted."""
    if not intervals:
        return Interval()
    value = total(i.value for i in intervals)
    low, high = total(i.low for i in intervals), total(i.high for i in intervals)
    grown = Interval(value, low, high).scaled(factor)
    return replace(grown, low=low)


def _shared_limits(parts: Sequence[Health]) -> tuple[tuple[str, Interval], ...]:
    """Return the sum of mu by limit, for the limits every part has."""
    held = [dict(part.mu_by_limit) for part in parts]
    names = [name for name in held[0] if all(name in other for other in held)] if held else []
    return tuple((name, _summed([other[name] for other in held], 1.0)) for name in names)


def _used_ratio(parts: Sequence[Health]) -> float | None:
    """Return decoding sequences over the sum of operating batches, where every part has one."""
    batch, free = total(p.batch for p in parts), total(p.free_batch for p in parts)
    return None if batch is None or free is None or batch + free <= 0 else batch / (batch + free)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _by_mu(parts: Sequence[Health], values: Sequence[float | None]) -> float | None:
    """Return the mean of `values` weighted by capacity; None when one is unknown."""
    weights = [p.mu.value or 0.0 for p in parts]
    weighted = total(None if v is None else v * w for v, w in zip(values, weights, strict=True))
    return weighted / sum(weights) if weighted is not None and sum(weights) > 0 else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _all_saturated(parts: Sequence[Health]) -> bool | None:
    known = [p.saturated for p in parts if p.saturated is not None]
    return all(known) if known else None


def _worst_grade(parts: Sequence[Health]) -> Grade | None:
    """Return the weakest grade: A < B < none < C < D. A capacity that nobody measured has none.

    So a sum is called measured only when all of it is; the alarm reads none as it reads A and B.
    """
    worst = max((p.rho.grade for p in parts if p.rho.grade is not None), default=None)
    is_measured = all(p.rho.grade is not None for p in parts)
    return worst if is_measured or worst in (Grade.C, Grade.D) else None


def _shared(names: Sequence[str | None]) -> str | None:
    """Return the one name all parts share, "mixed" when they differ, None without any."""
    distinct = {name for name in names if name}
    return distinct.pop() if len(distinct) == 1 else ("mixed" if distinct else None)


def _with_worst(health: Health, parts: Sequence[Health], reached: float | None) -> Health:
    """Return `health` with the part of the largest rho, its interval, and the imbalance.

    That compares like with like: `reached` is rho of what reached the parts, refusals at the door left out.
    """
    known = [
        (p.worst_rho, p.worst_rho_low, p.worst_rho_high, p.worst or p.name)
        if p.worst_rho is not None
        else (p.rho.value, p.rho.low, p.rho.high, p.name)
        for p in parts
        if p.worst_rho is not None or p.rho.value is not None
    ]
    if not known:
        return health
    value, low, high, name = max(known, key=lambda part: (part[0] or 0.0, part[3]))
    return replace(
        health,
        worst=name,
        worst_rho=value,
        worst_rho_low=low,
        worst_rho_high=high,
        imbalance=value / reached if reached and value is not None else None,
    )
