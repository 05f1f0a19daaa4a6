"""How often one tenant's failed requests count against a node that others are content with.

Owns who was answered by which node last, and whose failure counted. Times are monotonic seconds. Failures
that no other node can judge (broken off after the first bytes, or not retried) come with different bodies
from a client whose every request fails, wherever it goes. Prevents: one such client taking out one node
after the other. A fleet of one tenant is judged as if this were not there: nobody else is harmed.
"""

from __future__ import annotations

from math import inf

from fleet.body_faults import KEPT_S, drop_oldest


class _Answered:
    """Whom a node answered."""

    __slots__ = ("at_s", "before_s", "tenant")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant  # the last one
        self.at_s = self.before_s = -inf  # when that was, and when it was another one


class TenantVotes:
    """What one gateway remembers of answers and failures, by tenant and node."""

    __slots__ = ("_answered", "_counted_at")

    def __init__(self) -> None:
        self._answered: dict[str, _Answered] = {}
        self._counted_at: dict[tuple[str, str], float] = {}  # by tenant and node

    def answered(self, tenant: str, node: str, now_s: float) -> None:
        """Note that a node answered a tenant: its next failure counts again."""
        seen = self._answered.get(node)
        if seen is None:
            seen = self._answered[node] = _Answered(tenant)
            drop_oldest(self._answered)
        elif seen.tenant != tenant:
            seen.tenant, seen.before_s = tenant, seen.at_s
        seen.at_s = now_s
        if self._counted_at:
            self._counted_at.pop((tenant, node), None)

    def counts(self, tenant: str, node: str, within_s: float, now_s: float) -> bool:
        """Say whether a tenant's failure counts against a node, which is noted.

        Each does where the node answered no other tenant `within_s`. Else one does, until the node answers
        that tenant or `KEPT_S` are over.
        """
        seen = self._answered.get(node)
        if seen is None or now_s - (seen.before_s if seen.tenant == tenant else seen.at_s) > within_s:
            return True
        key = tenant, node
        if now_s - self._counted_at.pop(key, -inf) <= KEPT_S:
            self._counted_at[key] = now_s
            return False
        self._counted_at[key] = now_s
        drop_oldest(self._counted_at)
        return True
