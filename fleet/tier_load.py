"""What each tier makes of the fleet's rho: its part in engine-seconds, alone and with those before it.

Rates are per second, tokens are counts. The parts add up to the rho of the whole. Prevents: a tier of long
answers read as light because it sends few requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleet.health_reading import TARGET_RHO, Health, Interval, Rho, Scope
from fleet.outcomes import TIERS
from fleet.percentages import percent

#: Engine time of a prompt token over that of a decoded one. Only their sum at one mix can be measured; a
#: twelfth is what the coefficients of public engine profiles give near the operating batch.
PROMPT_WEIGHT = 1 / 12
MIN_COMPLETED = 20  # below it a tier's requests are taken to be as heavy as all others


@dataclass(frozen=True, slots=True)
class TierDemand:
    """What came to the gateways of one tier, and what its finished requests used."""

    tier: str
    arrival_rate: float  # requests/s at the door
    limited_rate: float  # of those: refused by their callers' own limits
    completed: int
    prompt_tokens: int
    output_tokens: int
    repeated_rate: float = 0.0  # of the arrivals: further tries of one request

    @property
    def competing_rate(self) -> float:
        return max(
            0.0, self.arrival_rate - self.limited_rate - max(0.0, self.repeated_rate - self.limited_rate)
        )

    @property
    def weight(self) -> float:
        """Return what the finished requests cost, in decoded tokens."""
        return self.output_tokens + PROMPT_WEIGHT * self.prompt_tokens


def assess_tiers(fleet: Health, demands: Sequence[TierDemand], now_s: float) -> list[Health]:
    """Return one health a tier, in order of precedence; [] without any demand.

    rho of a tier = its share of the demanded engine-seconds x rho of the fleet; mu = what all engines
    would finish of this tier's requests alone. rho is 0 for a tier that asks nothing and unknown where the
    fleet's is. `rho_with_higher` adds the tiers of higher precedence: past 1 this tier is what is refused.
    """
    order = {tier.value: place for place, tier in enumerate(TIERS)}
    ranked = sorted(demands, key=lambda d: (order.get(d.tier, len(order)), d.tier))
    costs = _costs(ranked)
    asked = [demand.competing_rate * cost for demand, cost in zip(ranked, costs, strict=True)]
    whole = sum(asked)
    found: list[Health] = []
    before = 0.0
    for demand, part in zip(ranked, asked, strict=True):
        share = part / whole if whole > 0 else 0.0
        before += share
        found.append(_tier(fleet, demand, share, before, now_s))
    return found


def _costs(demands: Sequence[TierDemand]) -> list[float]:
    """Return the cost of a request of each tier; the mean of all where too few of it have finished."""
    done = sum(d.completed for d in demands)
    mean = sum(d.weight for d in demands) / done if done else 1.0
    return [
        d.weight / d.completed if d.completed >= MIN_COMPLETED and d.weight > 0 else mean or 1.0
        for d in demands
    ]


def _tier(fleet: Health, demand: TierDemand, share: float, before: float, now_s: float) -> Health:
    whole = Interval(fleet.rho.value, fleet.rho.low, fleet.rho.high)
    part, sum_so_far = whole.scaled(share), whole.scaled(before)
    rate = demand.competing_rate
    mu = _capacity(rate, part)
    rho = Rho(part.value, part.low, part.high, fleet.rho.grade, fleet.rho.method, fleet.rho.binding)
    health = Health(
        demand.tier,
        Scope.TIER,
        now_s,
        is_stale=fleet.is_stale,
        rho=rho,
        mu=mu,
        arrival_rate=demand.arrival_rate,
        competing_rate=rate,
        limited_rate=demand.limited_rate,
        rho_limited=demand.limited_rate / mu.value if mu.value else None,
        headroom=_headroom(fleet, mu),
        rho_with_higher=sum_so_far,
        demand_share=share,
        parts=fleet.parts,
        stale=fleet.stale,
        unmeasured=fleet.unmeasured,
        silent_gateways=fleet.silent_gateways,
    )
    return replace(health, explanation=_why(fleet, health))


def _capacity(rate: float, part: Interval) -> Interval:
    """Return rate / rho: what all engines could finish of this kind of request."""
    if rate <= 0 or not part.value:
        return Interval()
    ends = [rate / end if end else None for end in (part.high, part.low)]
    return Interval(rate / part.value, *ends)


def _headroom(fleet: Health, mu: Interval) -> float | None:
    """Return how many more requests/s of this tier fit under rho 0.85, all else as it is."""
    if mu.value is None or fleet.rho.value is None:
        return None
    return max(0.0, TARGET_RHO - fleet.rho.value) * mu.value


def _why(fleet: Health, tier: Health) -> tuple[str, ...]:
    rho, so_far = tier.rho.value, tier.rho_with_higher.value
    if rho is None or so_far is None or fleet.rho.value is None:
        return ("rho of the tier is unknown, as that of the fleet is",)
    lines = [
        f"rho of the tier = share of demanded engine-seconds x rho of the fleet = "
        f"{percent(tier.demand_share or 0, 1)} x {fleet.rho.value:.2f} = {rho:.2f}",
        f"rho with all tiers of higher precedence = {so_far:.2f}; past 1, this tier is what is refused",
    ]
    if tier.mu.value is not None:
        lines.append(
            f"mu = lambda / rho = {tier.competing_rate or 0:.4g} / {rho:.2f} = {tier.mu.value:.4g} "
            "requests/s, if the engines served nothing else"
        )
    if tier.limited_rate:
        lines.append(
            f"{tier.limited_rate:.4g} requests/s were refused by their callers' own limits: not part of rho"
        )
    lines.append("a prompt token is taken as a twelfth of a decoded one: one mix cannot tell them apart")
    return tuple(lines)
