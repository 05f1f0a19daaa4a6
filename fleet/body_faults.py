"""Whose fault a failed request is: the node's, or the body's that no engine can stand.

Owns what is remembered of bodies that were failed, by digest, and of the tenants that sent them. Times are
monotonic seconds. A node is at fault when another one answers the same body; the body is when two nodes
fail it. Prevents: one client taking all nodes out with one body that makes each engine answer 500, and a
node that fails whatever it gets passing for the victim of its clients.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

#: What is known of a body, or of who sent it, is used for so long.
KEPT_S = 300.0
#: Bodies and tenants remembered at most; then the one whose failure is oldest is forgotten.
MOST_KEPT = 1_024


class BodyFaults:
    """What one gateway remembers of bodies that nodes failed."""

    __slots__ = ("_failed_at", "_suspected_at")

    def __init__(self) -> None:
        self._failed_at: dict[bytes, dict[str, float]] = {}  # by body and node: when; newest bodies last
        self._suspected_at: dict[str, float] = {}  # by tenant: when several nodes failed a body of its

    def answered(self, body: bytes) -> None:
        """Note that a node answered a body that others had failed: it is innocent."""
        self._failed_at.pop(body, None)

    def is_node_at_fault(
        self, body: bytes, tenant: str, nodes: Collection[str], is_alive: bool, now_s: float
    ) -> bool:
        """Judge a request that no node answered. True: it counts against the one node that failed it.

        `nodes`: those that failed it, at least one. `is_alive`: that one answered something lately. A node
        that does not live is at fault unless another one failed the body, too. Of one that does, a body
        counts once; and not at all when lately several nodes failed a body of the same tenant.
        """
        was_suspected = now_s - self._suspected_at.get(tenant, -inf) <= KEPT_S
        before = self.failed(body, tenant, nodes, now_s)
        if len(before.union(nodes)) > 1:
            return False
        return not (is_alive and (bool(before) or was_suspected))

    def failed(self, body: bytes, tenant: str, nodes: Collection[str], now_s: float) -> set[str]:
        """Note that nodes failed a body. Return those that had failed it before."""
        was_failed_at = self._failed_at.pop(body, {})
        before = {node for node, at_s in was_failed_at.items() if now_s - at_s <= KEPT_S}
        known = before.union(nodes)
        self._failed_at[body] = dict.fromkeys(known, now_s)
        drop_oldest(self._failed_at)
        if len(known) > 1:
            self._suspected_at.pop(tenant, None)
            self._suspected_at[tenant] = now_s
            drop_oldest(self._suspected_at)
        return before


def drop_oldest(kept: dict[Key, Value]) -> None:
    """Forget what came first where more than `MOST_KEPT` are kept."""
    if len(kept) > MOST_KEPT:
        del kept[next(iter(kept))]
