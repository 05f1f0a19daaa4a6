"""What of the policy in force this gateway, or the engines behind it, do not do.

Prevents: a field that is published, shown as applied, and without effect.
"""

from __future__ import annotations

from admission.state import GatewayState
from fleet.messages import Assignment
from fleet.outcomes import TIERS
from fleet.policy import pointer_of


def unsupported(state: GatewayState) -> tuple[str, ...]:
    """Return JSON pointers into the policy in force."""
    if state.assignment is None:
        return ()
    exact = _exact_quotas(state.assignment) if state.settings.quota_store_url is None else []
    return (*exact, *_priorities(state.assignment))


def _exact_quotas(assignment: Assignment) -> list[str]:
    """Quotas to be counted in a store where none is configured."""
    return [
        pointer_of(("tenants", name, "quota_mode"))
        for name, tenant in assignment.policy.tenants.items()
        if tenant.quota_mode == "exact"
    ]


def _priorities(assignment: Assignment) -> list[str]:
    """Priorities that no engine of some model heeds: all are first come, first served, or do not say."""
    heeds: dict[str, bool] = {}
    for node in assignment.nodes:
        for model in node.models:
            heeds[model] = heeds.get(model, False) or node.honours_priority
    if all(heeds.values()):
        return []
    tiers = assignment.policy.tiers
    return [pointer_of(("tiers", tier, "engine_priority")) for tier in TIERS if tiers[tier].engine_priority]
