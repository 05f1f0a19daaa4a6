"""How often one tenant's failed requests count against a node that others are content with.

Owns who was answered by which node last, and whose failure counted. Times are monotonic seconds. Failures
that no other node can judge (broken off after the first bytes, or not retried) come with different bodies
from a client whose every request fails, wherever it goes. Prevents: one such client taking out one node
after the other, and a node that fails one tenant alone passing for that tenant's victim. A fleet of one
tenant is judged as if this were not there: nobody else is harmed.
"""

from __future__ import annotations

from math import inf

from fleet.body_faults import KEPT_S, drop_oldest


class _Last:
    """Who it was last, and when; when it was another one before."""

    __slots__ = ("at_s", "before_s", "name")

    def __init__(self, name: str) -> None:
        self.name, self.at_s, self.before_s = name, -inf, -inf

    def note(self, name: str, now_s: float) -> None:
        if name != self.name:
            self.name, self.before_s = name, self.at_s
        self.at_s = now_s


class TenantVotes:
    """What one gateway remembers of answers and failures, by tenant and node."""

    __slots__ = ("_answered", "_answerers", "_counted_at", "_failers")

    def __init__(self) -> None:
        self._answered: dict[str, _Last] = {}  # by node: the tenant it answered
        self._answerers: dict[str, _Last] = {}  # by tenant: the node that answered it
        self._failers: dict[str, _Last] = {}  # by tenant: the node that failed it
        self._counted_at: dict[tuple[str, str], float] = {}  # by tenant and node

    def answered(self, tenant: str, node: str, now_s: float) -> None:
        """Note that a node answered a tenant: its next failure counts again."""
        _note(self._answered, node, tenant, now_s)
        _note(self._answerers, tenant, node, now_s)
        if self._counted_at:
            self._counted_at.pop((tenant, node), None)

    def counts(self, tenant: str, node: str, within_s: float, now_s: float) -> bool:
        """Say whether a tenant's failure counts against a node, which is noted.

        Each does where the node answered no other tenant `within_s`, and where another node answers this
        one and none has failed it for `KEPT_S`. Else one does, until the node answers that tenant or
        `KEPT_S` are over.
        """
        is_elsewhere = _age_s(self._failers, tenant, node, now_s) <= KEPT_S
        _note(self._failers, tenant, node, now_s)
        if _age_s(self._answered, node, tenant, now_s) > within_s:
            return True
        if not is_elsewhere and _age_s(self._answerers, tenant, node, now_s) <= within_s:
            return True
        key = tenant, node
        before_s = self._counted_at.pop(key, -inf)
        self._counted_at[key] = now_s
        drop_oldest(self._counted_at)
        return now_s - before_s > KEPT_S


def _note(kept: dict[str, _Last], of: str, name: str, now_s: float) -> None:
    last = kept.get(of)
    if last is None:
        last = kept[of] = _Last(name)
        drop_oldest(kept)
    last.note(name, now_s)


def _age_s(kept: dict[str, _Last], of: str, name: str, now_s: float) -> float:
    """Return for how long it has been nobody but `name`."""
    last = kept.get(of)
    if last is None:
        return inf
    return now_s - (last.before_s if last.name == name else last.at_s)
