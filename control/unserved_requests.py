"""Which requests would lose their last node by a policy, with the nodes that are registered now.

Prevents: a policy that every gateway accepts and that leaves a model's requests without a node, published
unseen.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from control.reconcile_store import node_targets
from fleet.errors import InvalidPolicy
from fleet.policy import Policy, parse
from fleet.unserved import newly_unserved


def lose_their_nodes(session: Session, before: dict[str, Any] | None, after: Policy) -> list[str]:
    """Return in words what no node would take under `after` and some node takes under `before`.

    `before` None, or of a release whose policies are not accepted any more: all that no node would take.
    """
    try:
        known = None if before is None else parse(before)
    except InvalidPolicy:
        known = None
    return newly_unserved(known, after, node_targets(session))
