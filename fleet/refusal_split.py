"""Whose requests are refused: a month's refusals by tier and tenant, from what the whole fleet refuses.

Counts are requests, shares ratios 0..1, weights of contention as in the policy. The fluid and event methods
know one queue; what each bin could serve is divided here as the gate divides it while every tier waits:
by weight, and what a tier does not need goes to the others (weighted max-min); tenants share their tier's
part the same way. What the gate does beyond that (each tier's own longest wait, quotas) is not in it.
Prevents: "6 % refused" read as 6 % of everybody's requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.errors import InvalidInput

#: The policy's default weights; shares of contention, not caps.
TIER_WEIGHTS: Mapping[str, float] = {"interactive": 70.0, "batch": 25.0, "best_effort": 5.0}
MAX_FLOWS = 500


@dataclass(frozen=True, slots=True)
class Flow:
    """One tenant in one tier: its share of all requests, and its weight among the tier's tenants."""

    tenant: str
    tier: str
    share: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Noticed:
    """What a tier, or a tenant in it, notices in a month."""

    tier: str
    tenant: str  # "" for the whole tier
    offered: float
    refused: float
    worst_hour_share: float  # of its requests in the hour that refuses most of them

    @property
    def refused_share(self) -> float:
        """The share of its own requests that is refused."""
        return self.refused / self.offered if self.offered else 0.0


def shared_out(
    capacity: NDArray[np.float64], demands: NDArray[np.float64], weights: Sequence[float]
) -> NDArray[np.float64]:
    """Return who gets how much of `capacity`: weighted max-min over rows of `demands`, column by column.

    Nobody gets more than it asks for; what is left over goes to those who want more, by weight. Source:
    Bertsekas and Gallager, Data Networks (1992), 6.5.2.
    """
    given = np.zeros_like(demands)
    left = np.minimum(capacity, demands.sum(axis=0))
    by_weight = np.array(weights, dtype=np.float64)[:, None]
    for _ in range(demands.shape[0]):
        wanting = demands - given > 1e-12
        total = (by_weight * wanting).sum(axis=0)
        part = np.divide(left, total, out=np.zeros_like(left), where=total > 0)
        step = np.minimum(by_weight * part * wanting, demands - given)
        given += step
        left = left - step.sum(axis=0)
        if not np.any(left > 1e-9):
            break
    return given


def split_refusals(
    offered: NDArray[np.float64],
    refused: NDArray[np.float64],
    flows: Sequence[Flow],
    tier_weights: Mapping[str, float] = TIER_WEIGHTS,
    *,
    bins_an_hour: int = 360,
) -> list[Noticed]:
    """Return each tier, then each of its tenants if they are told apart, with what is refused of it.

    `offered` and `refused` are by bin; flows' shares must add up to 1. Raises InvalidInput if they do not.
    """
    _check(flows, tier_weights)
    tiers = [tier for tier in tier_weights if any(flow.tier == tier for flow in flows)]
    places = np.flatnonzero(refused > 0)  # where nothing is refused there is nothing to divide
    hours = places // bins_an_hour
    here, served = offered[places], offered[places] - refused[places]
    shares = {tier: sum(flow.share for flow in flows if flow.tier == tier) for tier in tiers}
    demands = np.array([here * shares[tier] for tier in tiers])
    given = shared_out(served, demands, [tier_weights[tier] for tier in tiers])
    total = float(offered.sum())
    by_hour = np.add.reduceat(offered, np.arange(0, offered.size, bins_an_hour))
    found: list[Noticed] = []
    for place, tier in enumerate(tiers):
        lost = demands[place] - given[place]
        found.append(_noticed(tier, "", shares[tier], total, lost, hours, by_hour))
        tenants = [flow for flow in flows if flow.tier == tier]
        if len(tenants) > 1 or tenants[0].tenant:
            asks = np.array([here * flow.share for flow in tenants])
            gets = shared_out(given[place], asks, [flow.weight for flow in tenants])
            found += [
                _noticed(tier, flow.tenant, flow.share, total, asks[row] - gets[row], hours, by_hour)
                for row, flow in enumerate(tenants)
            ]
    return found


def _noticed(
    tier: str,
    tenant: str,
    share: float,
    total: float,
    lost: NDArray[np.float64],
    hours: NDArray[np.int64],
    by_hour: NDArray[np.float64],
) -> Noticed:
    lost_by_hour = np.bincount(hours, weights=lost, minlength=by_hour.size)
    asked_by_hour = by_hour * share
    worst = np.divide(lost_by_hour, asked_by_hour, out=np.zeros_like(by_hour), where=asked_by_hour > 0)
    return Noticed(tier, tenant, total * share, float(lost.sum()), float(worst.max(initial=0.0)))


def _check(flows: Sequence[Flow], tier_weights: Mapping[str, float]) -> None:
    if not 0 < len(flows) <= MAX_FLOWS:
        raise InvalidInput(f"{len(flows)} flows", field="/tiers", hint=f"Give 1 to {MAX_FLOWS}")
    total = sum(flow.share for flow in flows)
    unknown = next((flow.tier for flow in flows if flow.tier not in tier_weights), None)
    if unknown is not None:
        known = ", ".join(tier_weights)
        raise InvalidInput(f"there is no tier {unknown[:40]!r}", field="/tiers", hint=f"Tiers: {known}")
    if any(not 0 <= flow.share <= 1 for flow in flows) or not math.isclose(total, 1, abs_tol=1e-6):
        raise InvalidInput(
            f"the shares of the tiers add up to {total:g}", field="/tiers", hint="They must add up to 1"
        )
