"""What a gate holds and what waits at it, at one moment: for status and metrics.

Tokens are counts, times ending in `_s` are seconds on the caller's monotonic clock. Plain values to which
nothing in the gate refers. Prevents: a status page that reads the gate's own books while they change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.outcomes import Tier


@dataclass(frozen=True)
class TierQueue:
    """One tier's queue now."""

    requests: int
    tokens: int
    oldest_wait_s: float  # 0 when empty


@dataclass(frozen=True)
class TenantUse:
    """What one tenant holds now: running and queued."""

    requests: int
    tokens: int
    queued_requests: int
    rate_tokens_left: int  # in the rate bucket; negative: in debt
    over_by_tokens: int  # held above the quota after a cut; 0 normally
    over_by_requests: int = 0  # the same in requests


@dataclass(frozen=True)
class NodeUse:
    """What this gate holds on one node, and whether the node takes more."""

    requests: int
    tokens: int
    budget_tokens: int | None  # None: capacity is not known
    closed_because: str | None  # None: open
    expected_tokens: int = 0  # held on average by what runs; under overbooking less than `tokens`
    measured_tokens: int | None = None  # KV tokens in use, all gateways' and others'; None: not known
    is_overbooked: bool = False  # room is measured by `expected_tokens`


@dataclass(frozen=True)
class GateSnapshot:
    """The gate at one moment. In-flight figures are sums over open leases."""

    is_ready: bool
    in_flight_requests: int
    in_flight_tokens: int
    in_flight_tokens_by_tier: Mapping[Tier, int]
    queues: Mapping[Tier, TierQueue]
    dispatched_tokens_by_tier: Mapping[Tier, int]  # since the gate was made
    longest_wait_s_by_tier: Mapping[Tier, float]  # longest wait of any started request
    tenants: Mapping[str, TenantUse]
    nodes: Mapping[str, NodeUse]
    oldest_lease_age_s: float  # 0 when none is open
    most_passed_ratio_by_tier: Mapping[Tier, float]  # of a started request's own tokens; at most 1
    most_ahead_ratio_by_tier: Mapping[Tier, float]  # of other tiers past one that waited, to its bound
    jain_by_tier: Mapping[Tier, float | None]  # of backlogged tenants; None: fewer than two
    queue_timeout_s_by_tier: Mapping[Tier, float]  # nothing waits longer; empty before an assignment
