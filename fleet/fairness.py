"""Who gets how much of what they are entitled to, and who waits longest.

Tokens served over a window, weights of the policy, ratios 0..1, seconds. A tenant that asks for less than
its share is not unfairly treated: entitlements are weighted max-min over what each asked for. Prevents:
Jain's index over tenants of which most were idle, and a starving tier hidden by a fine average.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleet.readings import Histogram

MIN_TOKENS = 1_000  # fewer served in a window say nothing about shares


@dataclass(frozen=True)
class TenantUse:
    """What one tenant got and wanted in one tier over a window."""

    tenant: str
    weight: float
    served_tokens: int
    wanted_tokens: float  # served and what the shed and waiting requests would have used
    is_backlogged: bool  # requests of it waited or were shed for lack of capacity


@dataclass(frozen=True)
class TenantShare:
    """One tenant's share beside its entitlement; ratios of the tier's served tokens."""

    tenant: str
    weight_ratio: float
    share: float
    entitled: float
    is_backlogged: bool

    @property
    def shortfall(self) -> float:
        """Return the part of its entitlement it lacks: 0 none, 1 all. 0 for who was not backlogged."""
        if not self.is_backlogged or self.entitled <= 0:
            return 0.0
        return max(0.0, 1.0 - self.share / self.entitled)


@dataclass(frozen=True)
class Fairness:
    """A tier's shares, largest first, and Jain's index over its backlogged tenants."""

    shares: tuple[TenantShare, ...]
    jain: float | None  # None: fewer than two tenants were backlogged
    worst: TenantShare | None  # the largest shortfall among the backlogged


def jain_index(values: Sequence[float]) -> float | None:
    """Return (sum x)^2 / (n sum x^2): 1 when all are equal, 1/n when one has all. None when all are 0.

    Source: Jain, Chiu, Hawe, A Quantitative Measure of Fairness (1984).
    """
    squares = sum(value * value for value in values)
    return None if squares == 0 else sum(values) ** 2 / (len(values) * squares)


def max_min(wants: Mapping[str, float], weights: Mapping[str, float], total: float) -> dict[str, float]:
    """Return the weighted max-min allocation of `total` among `wants`; nobody gets more than it wants.

    Source: Bertsekas and Gallager, Data Networks (1992), 6.5.2, progressive filling with weights.
    """
    given = dict.fromkeys(wants, 0.0)
    left, open_ = total, {name for name, want in wants.items() if want > 0 and weights[name] > 0}
    while open_ and left > 0:
        level = left / sum(weights[name] for name in open_)
        full = {name for name in open_ if wants[name] <= level * weights[name]}
        if not full:
            return given | {name: level * weights[name] for name in open_}
        given |= {name: wants[name] for name in full}
        left -= sum(wants[name] for name in full)
        open_ -= full
    return given


def fairness(uses: Sequence[TenantUse]) -> Fairness | None:
    """Return how a tier was shared over a window; None when it served fewer than 1,000 tokens."""
    total = sum(use.served_tokens for use in uses)
    if total < MIN_TOKENS:
        return None
    wants = {use.tenant: max(use.wanted_tokens, float(use.served_tokens)) for use in uses}
    weights = {use.tenant: use.weight for use in uses}
    entitled = max_min(wants, weights, float(total))
    all_weights = sum(weights.values())
    shares = tuple(
        TenantShare(
            use.tenant,
            use.weight / all_weights if all_weights else 0.0,
            use.served_tokens / total,
            entitled[use.tenant] / total,
            use.is_backlogged,
        )
        for use in sorted(uses, key=lambda use: (-use.served_tokens, use.tenant))
    )
    hungry = [use for use in uses if use.is_backlogged and use.weight > 0]
    jain = jain_index([use.served_tokens / use.weight for use in hungry]) if len(hungry) >= 2 else None
    worst = max((s for s in shares if s.is_backlogged), key=lambda s: s.shortfall, default=None)
    return Fairness(shares, jain, worst)


def longest_wait(oldest_s: float | None, waits: Histogram | None) -> float | None:
    """Return the longest wait of a tier in seconds: of who waits now, and of who was served in the window.

    Of the served only the bucket is known: its lower bound is taken, never more than was waited.
    """
    served: float | None = None
    if waits is not None and waits.count > 0:
        last = max(i for i, count in enumerate(waits.counts) if count)
        served = 0.0 if last == 0 else waits.edges[last - 1]
    known = [value for value in (oldest_s, served) if value is not None]
    return max(known) if known else None
