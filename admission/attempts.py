"""The attempts of one request: admitted, sent, and sent again to another node while no byte has come.

Counts are requests. Never again to a node that had it: a request that takes an engine down would take it
down again. Prevents: a retry after the first byte, a retry storm, and a lease that outlives its attempt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from admission.answers import Answer, outcome_answer, refusal_answer
from admission.disaggregation import PrefillFailed
from admission.engine_link import EngineLink
from admission.inbound import Inbound
from admission.passage import Passage
from admission.recalls import Recalled
from admission.state import GatewayState
from admission.upstream import NodeFailed
from fleet.offers import Decision, Dispatch, Evicted, Queued, Refused, Request
from fleet.outcomes import Outcome

#: Sends to the dispatched node and relays its answer. Raises NodeFailed only before the client got a byte.
ExchangeWith = Callable[[Passage, Inbound, Dispatch], Awaitable[None]]


class Attempts:
    """Makes the attempts of one gateway's requests."""

    def __init__(self, state: GatewayState, link: EngineLink) -> None:
        self._state = state
        self._link = link
        self._retries = state.settings.retries

    async def serve(self, passage: Passage, request: Inbound, exchange: ExchangeWith) -> Answer | None:
        """Admit and send until it is answered. Return what the client is to be told instead; None: nothing.

        The passage has ended when this returns.
        """
        avoid: list[str] = []
        had: dict[str, NodeFailed] = {}  # by node that received it: how that ended
        if (counts := self._state.prompt_counts) is not None:
            passage.counted(await counts.tokens(passage.call), counts.basis)
        room, tries_left = self._state.room, self._retries
        decision: Dispatch | Refused | Evicted
        asked = self._asked(passage, ())
        first = room.at_once(asked)
        decision = first if isinstance(first, Dispatch) else await self._admitted(asked, first)
        while True:
            passage.decided(decision)
            if not isinstance(decision, Dispatch):
                self._link.unanswered(passage)
                passage.finish(decision.outcome)
                return refusal_answer(decision)
            if decision.node in had:  # no other has room
                lease, outcome = decision.lease, Outcome.UPSTREAM_ERROR
                room.release(lease, prompt_tokens=0, output_tokens=0, outcome=outcome)
                return self._failed(passage, had[decision.node])
            passage.dispatched(decision)
            try:
                if not self._is_plain(passage, decision):
                    return await self._guarded(passage, request, decision, exchange)
                await exchange(passage, request, decision)
                return None
            except Recalled as recalled:  # compiled, a name holds one kind of exception in a function
                passage.taken_back(str(recalled))
                again = await room.wait_again(recalled)
                decision = await self._offered_anew(again, recalled.lease.request)
            except PrefillFailed as unfilled:
                return self._failed(passage, unfilled)
            except NodeFailed as exc:
                reached = passage.may_have_left
                if (exc.is_timeout and reached) or not tries_left or not self._link.may_retry():
                    return self._failed(passage, exc)
                tries_left -= 1
                passage.gave_up(str(exc), reached_engine=reached)
                avoid.append(decision.node)
                if reached:
                    had[decision.node] = exc
                asked = self._asked(passage, tuple(avoid))
                decision = await self._admitted(asked, room.at_once(asked))

    def _asked(self, passage: Passage, avoid: tuple[str, ...]) -> Request:
        passage.waiting()
        asked = self._request(passage, avoid)
        passage.entry.prompt_tokens = asked.prompt_tokens
        return asked

    async def _admitted(self, asked: Request, first: Decision | None) -> Dispatch | Refused | Evicted:
        """Return what becomes of it, where the gate said `first` at once (`WaitingRoom.at_once`)."""
        room = self._state.room
        decision: Dispatch | Refused | Evicted
        if first is None:
            decision = await room.admit(asked)
        elif isinstance(first, Queued):
            decision = await room.wait(first.ticket)
        else:
            decision = first
        return await self._offered_anew(decision, asked)

    async def _offered_anew(
        self, decision: Dispatch | Refused | Evicted, asked: Request
    ) -> Dispatch | Refused | Evicted:
        """Offer it again where it found no node because this process stood still, however it waited."""
        while not isinstance(decision, Dispatch) and decision.outcome is Outcome.NO_NODES:
            if not await self._link.catch_up():
                break
            decision = await self._state.room.admit(asked)
        return decision

    def _is_plain(self, passage: Passage, dispatch: Dispatch) -> bool:
        """Say whether one exchange is all there is to it: no other phase, and its room is its own."""
        is_safe = self._state.room.recalls.is_safe(dispatch.lease)
        return is_safe and not self._link.prefills.has_phases(passage, dispatch)

    def _guarded(
        self, passage: Passage, request: Inbound, dispatch: Dispatch, exchange: ExchangeWith
    ) -> Awaitable[Answer | None]:
        """Attempt it, in both its phases, stopped where its room is taken back (Recalled)."""
        recalls, lease = self._state.room.recalls, dispatch.lease
        if recalls.is_safe(lease):
            return self._attempt(passage, request, dispatch, exchange)
        return recalls.guarded(lease, lambda: self._attempt(passage, request, dispatch, exchange))

    async def _attempt(
        self, passage: Passage, request: Inbound, dispatch: Dispatch, exchange: ExchangeWith
    ) -> Answer | None:
        refused: Refused | None = None
        if self._link.prefills.has_phases(passage, dispatch):
            refused = await self._link.prefills.run(passage, dispatch)
        if refused is None:
            await exchange(passage, request, dispatch)
            return None
        passage.decided(refused)
        passage.finish(refused.outcome)
        return refusal_answer(refused)

    def _request(self, passage: Passage, avoid: tuple[str, ...]) -> Request:
        call, state = passage.call, self._state
        return Request(
            request_id=passage.request_id,
            tenant=passage.caller.tenant,
            tier=passage.caller.tier,
            model=call.model,
            endpoint=call.endpoint,
            prompt_tokens=passage.prompt_tokens(),
            max_tokens=call.max_tokens,
            choices=call.choices,
            prefix_key=call.prefix_key() if state.has_prefix_affinity else None,
            avoid=avoid,
        )

    def _failed(self, passage: Passage, exc: NodeFailed) -> Answer:
        if passage.may_have_left and not isinstance(exc, PrefillFailed):
            passage.reached()
        self._link.unanswered(passage)
        outcome = Outcome.UPSTREAM_TIMEOUT if exc.is_timeout else Outcome.UPSTREAM_ERROR
        passage.entry.failed(str(exc))
        passage.finish(outcome)
        return outcome_answer(outcome, f"The engine failed: {exc}.")
