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
    """Priorities that no engine heeds: every node schedules first come, first served, or does not say."""
    if not assignment.nodes or any(node.honours_priority for node in assignment.nodes):
        return []
    tiers = assignment.policy.tiers
    return [pointer_of(("tiers", tier, "engine_priority")) for tier in TIERS if tiers[tier].engine_priority]
