"""What tenants did in each round, and who of them repeats refused requests: a storm of the fleet or of one.

Unix seconds; values are attempts for each original request. Gateways count by tenant and tier and know no
pools, so a storm has a tenant, never a pool. Prevents: one tenant's storm that vanishes in everybody's
traffic, and an alert of it that never ends because the tenant fell silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fleet.flow_signals import FlowRule, FlowSignal
from fleet.outcomes import Tier

RETRY_S = 120.0
MIN_OFFERED = 30  # fewer requests say nothing about repetitions
STORM_CALM = 1.2  # attempts a request up to which a tenant is not watched
STORM_KEPT_S = 3_600.0  # after which one that stays calm is watched no more


@dataclass(frozen=True, slots=True)
class Use:
    """What one tenant did in one tier in one round, over all gateways."""

    at_s: float
    offered: int
    repeated: int | None
    dispatched: int
    shed: int
    tokens: int
    queued: int


Uses = Mapping[tuple[str, str], Iterable[Use]]  # (tenant, tier) -> its rounds, oldest first


@dataclass(slots=True)
class RepeatWatch:
    """Remembers which tenants stormed lately."""

    _storms: dict[str, float] = field(default_factory=dict[str, float])  # tenant -> last time it repeated

    def signals(self, at_s: float, all_uses: Uses, *, is_heard: bool) -> list[FlowSignal]:
        """Return the fleet's signal and those of tenants that storm, or did within the last hour.

        A tenant of whom nothing came is only known to be calm where every gateway was heard.
        """
        tenants = self._tenants(at_s, all_uses)
        return [_fleet(at_s, all_uses.values()), *(s for s in tenants if is_heard or s.detail["offered"])]

    def _tenants(self, at_s: float, all_uses: Uses) -> list[FlowSignal]:
        """Return a signal for each tenant that storms, and for each that stormed within the last hour."""
        by_tenant: dict[str, list[Use]] = {name: [] for name in self._storms}
        for (tenant, _), uses in all_uses.items():
            by_tenant.setdefault(tenant, []).extend(uses)
        found: list[FlowSignal] = []
        for tenant, uses in by_tenant.items():
            one = _storm(tenant, at_s, uses)
            if one is None or one.value is None:
                continue
            if one.value > STORM_CALM:
                self._storms[tenant] = at_s
            if tenant in self._storms:
                found.append(one)
        self._storms = {t: seen_s for t, seen_s in self._storms.items() if seen_s > at_s - STORM_KEPT_S}
        return found


def _fleet(at_s: float, all_uses: Iterable[Iterable[Use]]) -> FlowSignal:
    """Return the attempts for each original request over the whole fleet."""
    recent = [use for uses in all_uses for use in uses if use.at_s > at_s - RETRY_S]
    known = [use.repeated for use in recent if use.repeated is not None]
    offered = sum(use.offered for use in recent if use.repeated is not None)
    if not known or offered < MIN_OFFERED:
        words = "the gateways do not count repetitions" if recent and not known else "too few requests"
        return FlowSignal(FlowRule.RETRY_STORM, "fleet", "", None, words)
    repeated = sum(known)
    value = offered / max(1, offered - repeated)
    words = f"{value:.2f} attempts for each original request: {repeated:,} of {offered:,} are repetitions"
    return FlowSignal(
        FlowRule.RETRY_STORM, "fleet", "", value, words, {"offered": offered, "repeated": repeated}
    )


def _storm(tenant: str, at_s: float, uses: Iterable[Use]) -> FlowSignal | None:
    """Return how often a tenant repeats itself; None where no gateway counts it.

    Fewer than MIN_OFFERED requests are no storm, whatever they repeat: the value is 1 then.
    """
    recent = [use for use in uses if use.at_s > at_s - RETRY_S]
    if any(use.repeated is None for use in recent):
        return None
    offered, repeated = sum(u.offered for u in recent), sum(u.repeated or 0 for u in recent)
    value = offered / max(1, offered - repeated) if offered >= MIN_OFFERED else 1.0
    words = f"{tenant}: {value:.2f} attempts for each original request, {repeated} of {offered} repeated"
    detail: dict[str, object] = {"offered": offered, "repeated": repeated}
    return FlowSignal(FlowRule.RETRY_STORM, "tenant", tenant, value, words, detail)


def added(one: Use, other: Use) -> Use:
    """Return one round of a tenant and tier over two gateways; repetitions need both to count them."""
    whole = one.repeated is not None and other.repeated is not None
    return Use(
        one.at_s,
        one.offered + other.offered,
        (one.repeated or 0) + (other.repeated or 0) if whole else None,
        one.dispatched + other.dispatched,
        one.shed + other.shed,
        one.tokens + other.tokens,
        one.queued + other.queued,
    )


def mean_tokens(uses: Uses, tier: Tier) -> float:
    """Return the tokens of a dispatched request of the tier: what a tenant never served would have used."""
    of_tier = [use for (_, name), rounds in uses.items() if name == tier.value for use in rounds]
    dispatched = sum(use.dispatched for use in of_tier)
    return sum(use.tokens for use in of_tier) / dispatched if dispatched else 0.0
