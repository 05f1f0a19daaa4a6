"""Between the proxy and the nodes: the address, the body policy makes of a call, and what failures teach.

Counts are requests. Prevents: a retry storm (retries are a part of recent requests, never more), and a
node that fails every request while its metrics look idle attracting all traffic.
"""

from __future__ import annotations

import asyncio
from typing import Final

from admission.blame import Blame
from admission.disaggregation import Prefills
from admission.nodes import NodeBook
from admission.passage import Passage
from admission.state import GatewayState
from admission.upstream import Exchange, NodeFailed, Upstream
from fleet.offers import Dispatch
from fleet.outcomes import Outcome
from fleet.readings import Reason

_WORKED: Final = frozenset({Outcome.COMPLETED, Outcome.ENGINE_REFUSED})
_RETRY_PART: Final = 0.1  # retries per request, over the long run
_RETRY_BURST: Final = 10.0
_EXTEND_BY_TOKENS: Final = 64


class EngineLink:
    """Opens exchanges with nodes for one gateway."""

    def __init__(self, state: GatewayState, nodes: NodeBook, upstream: Upstream) -> None:
        self._state = state
        self._nodes = nodes
        self._upstream = upstream
        self._retry_allowance = _RETRY_BURST
        self.blame = Blame(nodes)
        self.prefills = Prefills(state, nodes, upstream, self.may_retry, self.blame)
        upstream.may_renew = self.may_renew

    async def open(self, passage: Passage, dispatch: Dispatch) -> Exchange:
        """Send the call to the dispatched node. Raises NodeFailed when no answer began."""
        self._retry_allowance = min(self._retry_allowance + _RETRY_PART, _RETRY_BURST)
        node = self._nodes.standing(dispatch.node)
        if node is None:
            raise NodeFailed(Reason.REFUSED, "the node left the fleet")
        priority = self._state.engine_priority(dispatch.lease.tier) if node.honours_priority else None
        passage.sending()
        try:
            exchange = await self._upstream.post(
                node.urls[passage.call.endpoint],
                passage.call.body(priority, self._transfer(passage)),
                passage.request_id,
                passage.trace_lines(dispatch.node),
                passage.unsent,
            )
        except NodeFailed as exc:
            self.failed(passage, dispatch.node, exc)
            raise
        except asyncio.CancelledError:
            if passage.may_have_left:  # on its way already: it counts as received
                passage.reached()
            raise
        passage.reached()
        if exchange.status >= 300 and (wrong := _misled(exchange.status)):
            exchange.close()
            self._nodes.request_failed(dispatch.node)
            raise NodeFailed(Reason.HTTP_ERROR, wrong)
        return exchange

    def _transfer(self, passage: Passage) -> object:
        """Return the `kv_transfer_params` for the engine: a prefill node's or the client's, if allowed."""
        if passage.transfer is None and self._state.passes_client_transfer:
            return passage.call.document.get("kv_transfer_params")
        return passage.transfer

    async def catch_up(self) -> bool:
        """Say whether to ask the gate again after this process stood still (`NodeBook.catch_up`)."""
        return await self._nodes.catch_up()

    def begins(self, passage: Passage) -> None:
        """Note that the answer begins. Raises TooLate where its room was taken back just before."""
        if passage.lease is not None:
            self._state.room.recalls.begins(passage.lease)

    def may_retry(self) -> bool:
        """Say whether the retry budget allows one more, and take it."""
        if self._retry_allowance < 1.0:
            return False
        self._retry_allowance -= 1.0 + _RETRY_PART  # it is no request of its own when it is sent
        return True

    def may_renew(self) -> bool:
        """Say whether the retry budget allows to send one again to its own node, and take it."""
        if self._retry_allowance < 1.0:
            return False
        self._retry_allowance -= 1.0
        return True

    def failed(self, passage: Passage, node: str, exc: NodeFailed) -> None:
        """Note that a node failed an exchange: perhaps for want of a prompt's KV cache, or by the body."""
        is_said = exc.reason in (Reason.HTTP_ERROR, Reason.TIMEOUT)  # by a node that lives
        fetched_from = passage.prefill_node if is_said else None
        if exc.reason is Reason.REFUSED or not passage.may_have_left:
            self._nodes.request_failed(node, fetched_from)
        elif exc.is_timeout:
            self.blame.late(passage, node, fetched_from)
        else:
            self.blame.suspect(passage, node, fetched_from)

    def unanswered(self, passage: Passage) -> None:
        """Note that it ends without an answer: what nodes failed it for is judged now."""
        if passage.suspects:
            self.blame.ended(passage)

    def judged(self, passage: Passage, outcome: Outcome) -> None:
        """Note how an exchange ended as far as the node is concerned."""
        if passage.lease is None:
            return
        node = passage.lease.node
        if outcome in _WORKED:
            self._nodes.request_worked(node, passage.seconds_per_token())
            self.blame.worked(passage, node)
            if passage.suspects:
                self._acquit(passage, outcome)
        elif outcome is Outcome.UPSTREAM_TIMEOUT:
            self.blame.late(passage, node, passage.prefill_node)
        else:
            self.blame.suspect(passage, node, passage.prefill_node)
            self.blame.ended(passage)

    def _acquit(self, passage: Passage, outcome: Outcome) -> None:
        """Decide between a request and those that failed it: answered, they are at fault."""
        if outcome is Outcome.COMPLETED:
            self.blame.answered(passage)
        elif passage.lease is not None:
            self.blame.refused(passage, passage.lease.node)

    def extend(self, passage: Passage) -> None:
        """Book more output for a stream that outgrew its reservation."""
        lease = passage.lease
        streamed = 0 if lease is None else passage.streamed_tokens()
        if lease is not None and streamed > lease.output_tokens:
            booked = streamed + _EXTEND_BY_TOKENS
            self._state.gate.extend(lease, booked, self._state.clock.monotonic_s())
            passage.extended(lease)


def _misled(status: int) -> str:
    """Say what is wrong with an answer that is about us and not about the client's request; "" if nothing.

    A redirect is never followed: it could lead anywhere with our key and a tenant's prompt.
    """
    if 300 <= status < 400:
        return f"it answered {status}, a redirect"
    if status in (401, 403, 407):
        return f"it answered {status}: it does not take this gateway's key"
    return ""
