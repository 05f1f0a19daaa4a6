"""What the gate of a simulated day knows that the other methods do not: whose requests, weights, engines.

Shares are of all requests, weights of contention as in the policy, tokens counts. Every flow (a tenant in a
tier) is a tenant of its own in the policy that is made here, without quotas: a quota is for minutes and
money, not for a month's forecast. Prevents: a forecast by weights that no gateway has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fleet.engine_group import calibrated
from fleet.engine_profile import EngineProfile
from fleet.errors import InvalidInput
from fleet.gate_day import DayFlow
from fleet.month_result import NodeClass
from fleet.outcomes import TIERS, Tier
from fleet.policy import Policy, parse
from fleet.refusal_split import TIER_WEIGHTS, Flow
from fleet.replay_servers import ReplayNode
from fleet.simulate import ServiceModel

#: What the policy allows as a tier's longest wait, in seconds.
LEAST_WAIT_S, MOST_WAIT_S = 0.05, 600.0
MAX_FLOWS = 100
#: Tokens that never bind: the slots do.
_PLENTY = 10**12
_QUOTA = 10**12
_MOST_WEIGHT = 10_000  # of a tenant, as a policy allows
_PRIORITIES = {Tier.INTERACTIVE: 0, Tier.BATCH: 10, Tier.BEST_EFFORT: 20}


@dataclass(frozen=True, slots=True)
class GateRules:
    """Whose requests they are, how tiers and tenants are weighed, and what serves."""

    flows: tuple[Flow, ...]
    tier_weights: Mapping[str, float] = field(default_factory=lambda: dict(TIER_WEIGHTS))
    kv_tokens: int | None = None  # of a node; None: the engine's, or more than its slots can hold
    engine: EngineProfile | None = None  # None: service times are drawn
    order: str = "sjf_aging"

    def __post_init__(self) -> None:
        if not any(one.share > 0 for one in self.flows):
            raise InvalidInput("no tier has requests", field="/tiers", hint='As {"interactive": 1}')
        if len(self.flows) > MAX_FLOWS:
            raise InvalidInput(
                f"{len(self.flows)} tenants", field="/tenants", hint=f"At most {MAX_FLOWS} in all tiers"
            )
        if self.kv_tokens is not None and self.kv_tokens < 1:
            raise InvalidInput(f"a node holds {self.kv_tokens} tokens", field="/kv_tokens")

    def day_flows(self) -> tuple[DayFlow, ...]:
        """Return each flow as the policy calls it."""
        return tuple(DayFlow(f"t{n}", Tier(one.tier)) for n, one in enumerate(self.flows))

    def node(self, service: ServiceModel, node: NodeClass) -> ReplayNode:
        """Return what a node is: so many slots, and KV as given; with an engine, one that serves mu.

        The engine's slots are the service model's, and its costs are scaled so that with all of them taken
        at the mean lengths it serves the node's rate.
        """
        if self.engine is None:
            kv_tokens = _PLENTY if self.kv_tokens is None else self.kv_tokens
            return ReplayNode("", kv_capacity_tokens=kv_tokens, max_num_seqs=service.slots)
        profile = replace(
            self.engine,
            max_num_seqs=service.slots,
            max_num_batched_tokens=max(self.engine.max_num_batched_tokens, service.slots),
        )
        if self.kv_tokens is not None:
            profile = replace(profile, num_gpu_blocks=self.kv_tokens // profile.block_size + 1)
        if profile.kv_capacity_tokens < 2 * (node.tokens_in + node.tokens_out):
            raise InvalidInput(
                f"a node's KV cache holds {profile.kv_capacity_tokens} tokens",
                field="/kv_tokens",
                hint="At least those of two mean requests",
            )
        profile = calibrated(
            profile, node.service_rate, node.tokens_in, node.tokens_out, service.squared_cv
        )
        return ReplayNode("", engine=profile, max_num_seqs=service.slots)

    def policy(self, max_wait_s: float | None) -> Policy:
        """Return the policy in force: no quotas, every tier waits at most as long."""
        wait_s = MOST_WAIT_S if max_wait_s is None else min(max(max_wait_s, LEAST_WAIT_S), MOST_WAIT_S)
        weights = whole_weights([self.tier_weights.get(name.value, 0.0) for name in TIERS])
        tier = {"queue_timeout_s": wait_s, "max_queued_requests": 100_000}
        return parse(
            {
                "schema": "rhodeck.policy/1",
                "tiers": {
                    name.value: {"weight": weight, "engine_priority": _PRIORITIES[name], **tier}
                    for name, weight in zip(TIERS, weights, strict=True)
                },
                "tenants": {
                    whose.tenant: _tenant(whose.tier, weight)
                    for whose, weight in zip(self.day_flows(), self._tenant_weights(), strict=True)
                },
                "admission": {"order": self.order},
                "routing": {"spot_tiers": [name.value for name in TIERS]},
            }
        )

    def _tenant_weights(self) -> list[int]:
        """Return whole weights of at most 10,000, in the flows' proportion."""
        weights = [one.weight for one in self.flows]
        most = max(weights)
        is_whole = most <= _MOST_WEIGHT and all(weight == int(weight) >= 1 for weight in weights)
        scale = 1.0 if is_whole else _MOST_WEIGHT / most
        return [max(1, round(weight * scale)) for weight in weights]


def _tenant(tier: Tier, weight: int) -> dict[str, Any]:
    return {
        "tier": tier.value,
        "allowed_tiers": [tier.value],
        "weight": weight,
        "tokens_per_minute": _QUOTA,
        "burst_tokens": _QUOTA,
        "max_in_flight_tokens": _QUOTA,
        "max_concurrent_requests": 1_000_000,
    }


def whole_weights(weights: Sequence[float]) -> list[int]:
    """Return whole numbers of at least 1 that add up to 100, in proportion (largest remainders)."""
    total = sum(weights)
    if not total > 0 or min(weights) < 0:
        raise InvalidInput("no tier has a weight", field="/weights", hint='As {"interactive": 70, …}')
    left = 100 - len(weights)
    exact = [max(0.0, weight * 100 / total - 1) for weight in weights]
    scale = left / sum(exact) if sum(exact) else 0.0
    found = [1 + int(part * scale) for part in exact]
    by_rest = sorted(range(len(weights)), key=lambda n: (found[n] - 1 - exact[n] * scale, n))
    for n in by_rest[: 100 - sum(found)]:
        found[n] += 1
    return found


def flows_of_tiers(shares: Mapping[Tier, float]) -> tuple[Flow, ...]:
    """Return flows of tiers whose tenants are not told apart."""
    return tuple(Flow("", tier.value, share) for tier, share in shares.items() if share > 0)
