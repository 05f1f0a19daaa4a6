"""Whether what an alert is about still exists.

Asked only of subjects no rule saw in a round. Prevents: an alert that is resolved because its source was
silent for a round, and one about a removed node that stays for ever.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from control.tables import GatewayRow, NodeRow, PolicyRevisionRow, PoolRow
from fleet.alert_rules import BUDGET_RULES, CAPACITY_DRIFT, HOT_NODE, KV_EXHAUSTION

#: Rules about nodes that take work: one that drains is no subject of them any more.
WORKING_ONLY = frozenset({HOT_NODE, KV_EXHAUSTION, CAPACITY_DRIFT})


def is_gone(session: Session, rule: str, scope: str, subject: str) -> bool:
    """Return whether the subject was removed (a node: or rests; a budget: or was lifted).

    The fleet and the tiers never are.
    """
    if scope in ("node", "engine"):
        node = session.get(NodeRow, subject.partition("/")[0] if scope == "engine" else subject)
        if node is None or node.state in ("removed", "maintenance"):
            return True
        return node.state == "draining" and rule in WORKING_ONLY
    if scope == "pool":
        return session.get(PoolRow, subject) is None
    if scope == "gateway":
        gateway = session.get(GatewayRow, subject)
        return gateway is None or gateway.state == "removed"
    if scope == "tenant":
        newest = select(PolicyRevisionRow.document).order_by(PolicyRevisionRow.number.desc()).limit(1)
        document: dict[str, Any] | None = session.scalar(newest)
        if document is None:
            return False
        tenant: dict[str, Any] | None = document.get("tenants", {}).get(subject)
        return tenant is None or (rule in BUDGET_RULES and not _has_budget(tenant))
    return False


def _has_budget(tenant: dict[str, Any]) -> bool:
    """Say whether a tenant's entry sets a monthly budget; amounts are numbers or texts in JSON."""
    stored = tenant.get("monthly_budget_usd")
    return stored is not None and Decimal(str(stored)) > 0
