"""Failures of requests, held against a node only when the request's body is not at fault.

Times are seconds on the clock's monotonic scale. What failed for a reason of its own (a refused connection,
an answer about our key) is not doubted and does not come here. Prevents: a node taken out because a client
sends what no engine can stand, and such a client taking out one after the other.
"""

from __future__ import annotations

import hashlib

from admission.nodes import NodeBook
from admission.passage import Passage
from fleet.body_faults import BodyFaults
from fleet.tenant_votes import TenantVotes


class Blame:
    """Decides for each request that nodes failed whether they are at fault."""

    def __init__(self, nodes: NodeBook) -> None:
        self._nodes = nodes
        self._faults = BodyFaults()
        self._votes = TenantVotes()

    def worked(self, passage: Passage, node: str) -> None:
        """Note that a node answered a request as it should."""
        self._votes.answered(passage.caller.tenant, node, self._nodes.clock.monotonic_s())

    def suspect(self, passage: Passage, node: str, fetched_from: str | None = None) -> None:
        """Note that a node failed a request. What follows from it is decided when it is answered or ends.

        `fetched_from`: where the node was to fetch the prompt's KV cache.
        """
        passage.suspects = (*passage.suspects, (node, fetched_from))

    def answered(self, passage: Passage) -> None:
        """Count it against those that failed it: another node answers it."""
        suspects, passage.suspects = passage.suspects, ()
        self._faults.answered(_digest(passage))
        for node, fetched_from in suspects:
            self._nodes.request_failed(node, fetched_from)

    def refused(self, passage: Passage, node: str) -> None:
        """Count it against nobody: another node says that the request is not as it should be."""
        suspects, passage.suspects = passage.suspects, ()
        names, now_s = {name for name, _ in suspects}, self._nodes.clock.monotonic_s()
        self._faults.failed(_digest(passage), passage.caller.tenant, {node, *names}, now_s)
        self._nodes.outliers.excuse(names)

    def late(self, passage: Passage, node: str, fetched_from: str | None) -> None:
        """Count it against a node that did not answer it in time, or fell silent.

        What is long in coming may be so because the request asks for much: see `TenantVotes`.
        """
        if self._counts(passage, node):
            self._nodes.request_failed(node, fetched_from)
        else:
            self._nodes.outliers.excuse((node,))

    def _counts(self, passage: Passage, node: str) -> bool:
        within_s, now_s = self._nodes.outliers.rules.interval_s, self._nodes.clock.monotonic_s()
        return self._votes.counts(passage.caller.tenant, node, within_s, now_s)

    def ended(self, passage: Passage) -> None:
        """Judge those that failed it: nobody answers it."""
        suspects, passage.suspects = passage.suspects, ()
        node, fetched_from = suspects[-1]
        names = {name for name, _ in suspects}
        is_alive, now_s = self._nodes.has_answered_lately(node), self._nodes.clock.monotonic_s()
        body, tenant = _digest(passage), passage.caller.tenant
        is_at_fault = self._faults.is_node_at_fault(body, tenant, names, is_alive, now_s)
        if is_at_fault and self._counts(passage, node):
            self._nodes.request_failed(node, fetched_from)
        else:
            self._nodes.outliers.excuse(names)


def _digest(passage: Passage) -> bytes:
    call = passage.call
    return hashlib.blake2b(call.raw, key=call.endpoint.encode(), digest_size=16).digest()
