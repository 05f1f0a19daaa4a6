"""What a health reading says: plain values for an engine, a pool and the fleet.

Rates are per second, times are seconds (Unix seconds), ratios are not percent. `None` is unknown; it is
never 0 and never raises or clears an alarm. Prevents: a missing number drawn as an idle node.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fleet.breach import Certainty, judged
from fleet.capacity import Grade
from fleet.readings import EngineWindow

TARGET_RHO = 0.85
BACKLOG_HORIZON_S = 60.0  # rho_backlog: the rate it takes to be level again in this time


class Scope(StrEnum):
    """What a `Health` is about."""

    ENGINE = "engine"
    NODE = "node"
    MODEL = "model"
    TIER = "tier"
    POOL = "pool"
    FLEET = "fleet"


@dataclass(frozen=True, slots=True)
class TimedWindow:
    """One engine window and when it ended (Unix seconds, scraper's clock)."""

    ended_at_s: float
    window: EngineWindow


@dataclass(frozen=True, slots=True)
class Offered:
    """Requests counted at the gateways: admitted, queued and refused alike."""

    fast_count: int  # over the last `fast_s`
    fast_s: float
    slow_count: int
    slow_s: float
    waiting: int | None = None  # in the gateways' queues now
    fast_limited: int = 0  # of `fast_count`: refused by their caller's own limits, not for want of capacity
    slow_limited: int = 0
    fast_repeated: int | None = None  # of `fast_count`: tries of a request counted before; None: not told
    slow_repeated: int | None = None
    silent: tuple[tuple[str, float], ...] = ()  # gateways counted as they were when last heard; seconds ago
    heard_rate: float | None = None  # competing requests/s without that; None: all were heard

    def competing(self, count: int, limited: int, repeated: int | None) -> int:
        """Return how many of `count` compete for capacity: each request once, without what its caller's own
        limits refused. Which tries were both repeated and limited is not told: the fewest are taken off.
        """
        return max(0, count - limited - max(0, (repeated or 0) - limited))


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and the ends of its interval; all None when unknown."""

    value: float | None = None
    low: float | None = None
    high: float | None = None

    def scaled(self, factor: float) -> Interval:
        """Return the interval times `factor` >= 0."""
        return Interval(
            *(None if end is None else end * factor for end in (self.value, self.low, self.high))
        )


@dataclass(frozen=True, slots=True)
class Rho:
    """Utilization over the last 60 s with the interval of the capacity behind it; `slow` over 300 s."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    grade: Grade | None = None
    method: str = "unknown"
    binding: str | None = None
    slow: float | None = None
    slow_low: float | None = None
    slow_high: float | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """One engine, pool or fleet at one moment. `None` is unknown unless its comment says otherwise."""

    name: str
    scope: Scope
    at_s: float
    is_stale: bool = False
    rho: Rho = Rho()
    mu: Interval = Interval()  # requests/s at the present mix
    mu_tokens: Interval = Interval()  # decode tokens/s
    mu_by_limit: tuple[tuple[str, Interval], ...] = ()  # requests/s each limit alone would allow
    rho_by_limit: tuple[tuple[str, Interval], ...] = ()  # compute, slots, kv, ...; the largest binds
    arrival_rate: float | None = None  # 60 s, everything at the door
    arrival_rate_slow: float | None = None  # 300 s
    competing_rate: float | None = (
        None  # 60 s, without what callers' own limits refused: what rho is made of
    )
    competing_rate_slow: float | None = None
    limited_rate: float | None = None  # refused by callers' own limits; None where no gateway counts
    repeated_rate: float | None = None  # tries of requests counted before; None where nobody tells
    rho_limited: float | None = None  # what `limited_rate` would add to rho
    silent_gateways: tuple[tuple[str, float], ...] = ()  # in the demand as last heard; seconds ago
    heard_rate: float | None = None  # 60 s: what surely competes; None: all gateways were heard
    rho_heard: float | None = None  # of that: rho is at least so much
    throughput: float | None = None
    arrivals: int | None = None  # counted in the fast window
    completions: int | None = None
    flow_balance: float | None = None  # lambda / X: never drives an alarm
    flow_z: float | None = None
    saturated: bool | None = None
    headroom: float | None = None  # requests/s up to rho 0.85
    headroom_tokens: float | None = None  # output tokens/s
    headroom_prompt_tokens: float | None = None  # prompt tokens/s, cached ones included
    headroom_engine_s: float | None = None  # engine-seconds/s: engines that could be without work
    prompt_tokens: float | None = None  # I, a request
    output_tokens: float | None = None  # O, decode steps a request
    time_to_saturation_s: float | None = None  # None also when lambda <= mu: it does not saturate
    time_to_drain_s: float | None = None  # None also when lambda >= mu: it does not drain
    rho_backlog: float | None = None
    rho_backlog_low: float | None = None
    rho_backlog_high: float | None = None
    running: int | None = None
    waiting: int | None = None
    batch: float | None = None  # sequences in decode, 60 s average
    free_batch: float | None = None  # b* - b, summed over engines
    batch_used_ratio: float | None = None  # b / b*
    batch_expected_ratio: float | None = None  # what b / b* is at rho 0.85
    slots_used_ratio: float | None = None
    kv_used_ratio: float | None = None  # of a pool: the largest
    worst: str | None = None  # name of the part with the largest rho
    worst_rho: float | None = None
    worst_rho_low: float | None = None
    worst_rho_high: float | None = None
    imbalance: float | None = None  # worst rho / rho of what reached the engines
    rho_with_higher: Interval = Interval()  # of a tier: with all tiers of higher precedence
    model: str | None = None  # of an engine: what it serves
    demand_share: float | None = None  # of a tier: its part of the demanded engine-seconds
    parts: int = 1
    stale: tuple[str, ...] = ()  # engines left out of the sums: no fresh data
    unmeasured: tuple[str, ...] = ()  # fresh engines whose capacity or arrivals are unknown
    explanation: tuple[str, ...] = ()

    @property
    def is_partial(self) -> bool:
        """Return whether some engine is missing from the sums, or a gateway's demand is not of now."""
        return bool(self.stale or self.unmeasured or self.silent_gateways)


def alarm_value(health: Health, up: float = TARGET_RHO) -> tuple[float | None, Certainty]:
    """Return what the rho alarm looks at: rho by its grade, or 1 (unconfirmed) for a saturated unknown."""
    rho = health.rho
    value, certainty = judged(rho.value, rho.low, rho.high, rho.grade, up)
    if value is None and health.saturated:
        return 1.0, Certainty.UNCONFIRMED
    return value, certainty
