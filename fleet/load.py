"""rho and all that follows from demand, capacity and a queue, by one rule for every scope.

Rates are per second, times seconds. Demand is what competes for capacity: requests that their caller's own
limits refused, and further tries of one request, are counted, shown, and left out of rho. Prevents: one
tightly limited tenant that makes an idle fleet look overloaded, and two scopes whose rho mean different
things.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fleet.capacity import Grade
from fleet.health_reading import BACKLOG_HORIZON_S, TARGET_RHO, Health, Interval, Offered, Rho
from fleet.outcomes import Outcome
from fleet.queueing import flow_balance, flow_z

#: Refusals that no amount of capacity would have changed: the caller's own limits, or what never fits.
OWN_LIMITS: frozenset[Outcome] = frozenset(
    {
        Outcome.REJECTED_QUOTA_RATE,
        Outcome.REJECTED_QUOTA_TOKENS,
        Outcome.REJECTED_QUOTA_REQUESTS,
        Outcome.REJECTED_QUOTA_BUDGET,
        Outcome.REJECTED_TIER,
        Outcome.REJECTED_TOO_LARGE,
    }
)


def total(values: Iterable[int | float | None]) -> float | None:
    """Return the sum, or None when any value is unknown or there is none."""
    held = list(values)
    known = [value for value in held if value is not None]
    return sum(known) if known and len(known) == len(held) else None


def over(rate: float | None, mu: float | None) -> float | None:
    """Return rate / mu; 0 when nothing arrives, whatever mu; None when unknown."""
    if rate is None:
        return None
    if rate == 0:
        return 0.0
    return rate / mu if mu is not None and mu > 0 else None


def over_interval(rate: float | None, mu: Interval) -> Interval:
    """Return rate / mu with its ends: the low end of rho belongs to the high end of mu."""
    return Interval(over(rate, mu.value), over(rate, mu.high), over(rate, mu.low))


def with_offered(health: Health, offered: Offered | None) -> Health:
    """Return `health` with demand as the gateways counted it; their queues, where said, add up too.

    `arrivals` stays what reached the engines: flow balance compares it with what left them.
    """
    if offered is None or offered.fast_s <= 0 or offered.slow_s <= 0:
        return health
    waiting = health.waiting
    if offered.waiting is not None:
        waiting = None if waiting is None else waiting + offered.waiting
    return replace(
        health,
        arrival_rate=offered.fast_count / offered.fast_s,
        arrival_rate_slow=offered.slow_count / offered.slow_s,
        competing_rate=offered.competing(offered.fast_count, offered.fast_limited, offered.fast_repeated)
        / offered.fast_s,
        competing_rate_slow=offered.competing(
            offered.slow_count, offered.slow_limited, offered.slow_repeated
        )
        / offered.slow_s,
        repeated_rate=None if offered.fast_repeated is None else offered.fast_repeated / offered.fast_s,
        limited_rate=offered.fast_limited / offered.fast_s,
        silent_gateways=offered.silent,
        heard_rate=_sure_rate(offered.heard_rate, health.competing_rate),
        waiting=waiting,
    )


def _sure_rate(heard_rate: float | None, reached_rate: float | None) -> float | None:
    """Return what surely competes: what gateways told of, or what reached the engines if that is more."""
    if heard_rate is None or reached_rate is None:
        return heard_rate
    return max(heard_rate, reached_rate)


def finish(
    health: Health,
    *,
    grade: Grade | None,
    method: str,
    binding: str | None,
    longest_wait_s: float,
    engines: int = 1,
) -> Health:
    """Return `health` with everything that follows from its demand, capacity and queue.

    `engines` is how many stand behind `mu`; `longest_wait_s` how long a request may wait (D).
    """
    rate, slow, mu = health.competing_rate, health.competing_rate_slow, health.mu
    now, before = over_interval(rate, mu), over_interval(slow, mu)
    rho = Rho(now.value, now.low, now.high, grade, method, binding, before.value, before.low, before.high)
    counted = health.arrivals is not None and health.completions is not None
    by_limit = [(name, over_interval(rate, mu_j)) for name, mu_j in health.mu_by_limit]
    found = replace(
        health,
        rho=rho,
        rho_by_limit=tuple((name, rho_j) for name, rho_j in by_limit if rho_j.value is not None),
        rho_limited=over(health.limited_rate, mu.value),
        rho_heard=over(health.heard_rate, mu.value),
        flow_balance=flow_balance(health.arrivals or 0, health.completions or 0) if counted else None,
        flow_z=flow_z(health.arrivals or 0, health.completions or 0) if counted else None,
    )
    found = _with_room(found, engines)
    return _with_queue(found, longest_wait_s)


def _with_room(health: Health, engines: int) -> Health:
    """Return `health` with the head-room up to rho 0.85, requests, tokens, engine-seconds/s."""
    rate, mu = health.competing_rate, health.mu.value
    if rate is None or mu is None or mu <= 0:
        return health
    room = max(0.0, TARGET_RHO * mu - rate)
    tokens, prompt = health.mu_tokens.value, health.prompt_tokens
    return replace(
        health,
        headroom=room,
        headroom_tokens=None if tokens is None else room * tokens / mu,
        headroom_prompt_tokens=None if prompt is None else room * prompt,
        headroom_engine_s=room / mu * engines,
    )


def _with_queue(health: Health, longest_wait_s: float) -> Health:
    """Return `health` with what its queue means: rho with backlog, time to drain or to saturation."""
    rate, mu, waiting = health.competing_rate, health.mu.value, health.waiting
    if rate is None or mu is None or mu <= 0 or waiting is None:
        return health
    backlog = over_interval(rate + waiting / BACKLOG_HORIZON_S, health.mu)
    to_drain = to_saturation = None
    if rate < mu:
        to_drain = waiting / (mu - rate)
    elif rate > mu and health.free_batch is not None:
        room = health.free_batch + longest_wait_s * mu - waiting
        to_saturation = max(0.0, room) / (rate - mu)
    return replace(
        health,
        rho_backlog=backlog.value,
        rho_backlog_low=backlog.low,
        rho_backlog_high=backlog.high,
        time_to_drain_s=to_drain,
        time_to_saturation_s=to_saturation,
    )
