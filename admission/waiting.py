"""The waiting room: ties the gate's tickets to the tasks that wait for them.

Owns the one timer that polls the gate. Times are seconds on the clock's monotonic scale. One event loop
calls everything here, so there is no lock. Prevents: a queued request that nobody wakes, and a lease
opened for a task that is already gone.
"""

from __future__ import annotations

import asyncio
from typing import Final

from admission.exact_quota import ExactQuotas
from admission.recalls import Place, RecallBook, Recalled
from fleet.clock import Clock
from fleet.gate import Gate
from fleet.offers import (
    Decision,
    Dispatch,
    Event,
    Evicted,
    Lease,
    Queued,
    Refused,
    Request,
    Started,
    Ticket,
)
from fleet.outcomes import Outcome

_NEVER: Final = float("inf")


class WaitingRoom:
    """Admits requests through the gate, waiting where the gate says so."""

    def __init__(self, gate: Gate, clock: Clock) -> None:
        self._gate = gate
        self._now_s = clock.monotonic_s
        self._waiters: dict[Ticket, asyncio.Future[Event]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at_s = _NEVER  # by when it does at the latest
        self.exact: ExactQuotas | None = None  # set where a store is configured
        self.recalls = RecallBook(gate, self._give_up)

    async def admit(self, request: Request) -> Dispatch | Refused | Evicted:
        """Return the gate's answer, after the wait if there is one.

        Cancelled while waiting: the place in the queue, or the lease just opened, is given back. A tenant
        whose quota is counted exactly is asked for in the store first.
        """
        exact = self.exact
        hold = None if exact is None else await exact.reserve(request)
        if exact is None or hold is None:
            return await self._admit(request)
        if isinstance(hold, Refused):
            return hold
        try:
            decision = await self._admit(request)
        except BaseException:
            exact.give_back(hold)
            raise
        if isinstance(decision, Dispatch):
            exact.bind(decision.lease, hold)
        else:
            exact.give_back(hold)
        return decision

    async def _admit(self, request: Request) -> Dispatch | Refused | Evicted:
        decision = self._offer(request)
        return await self.wait(decision.ticket) if isinstance(decision, Queued) else decision

    def at_once(self, request: Request) -> Decision | None:
        """Return what the gate decides now; None: `admit` it, the store must be asked first.

        Of a request that is Queued, `wait` for what becomes of it, before anything else.
        """
        return self._offer(request) if self.exact is None else None

    def _offer(self, request: Request) -> Decision:
        now_s = self._now_s()
        decision = self._gate.offer(request, now_s)
        if not isinstance(decision, Queued):
            due_s = self._gate.next_deadline_s()
            if due_s is not None and due_s <= now_s:  # the offer started or displaced others
                self.pump()
        return decision

    async def wait(self, ticket: Ticket) -> Dispatch | Evicted:
        """Return what becomes of a queued request. Cancelled: its place, or its lease, is given back."""
        waiter: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self._waiters[ticket] = waiter
        self.pump()
        try:
            event = await waiter
        except asyncio.CancelledError:
            self._give_back(ticket, waiter)
            raise
        return Dispatch(event.node, event.lease) if isinstance(event, Started) else event

    async def wait_again(self, recalled: Recalled) -> Dispatch | Evicted:
        """Return what becomes of a request whose room was taken back. Its quota is held all along."""
        exact, place = self.exact, recalled.place
        hold = None if exact is None else exact.unbind(recalled.lease)
        try:
            event = await place.waiter
        except asyncio.CancelledError:
            self._give_up(place)
            if exact is not None and hold is not None:
                exact.give_back(hold)
            raise
        if exact is not None and hold is not None:
            exact.bind(event.lease, hold) if isinstance(event, Started) else exact.give_back(hold)
        return Dispatch(event.node, event.lease) if isinstance(event, Started) else event

    def release(
        self, lease: Lease, *, prompt_tokens: int | None, output_tokens: int | None, outcome: Outcome
    ) -> bool:
        """Close a lease and start what fits now. False when it was closed before."""
        if self.exact is not None:
            used_prompt = lease.prompt_tokens if prompt_tokens is None else prompt_tokens
            used_output = lease.output_tokens if output_tokens is None else output_tokens
            self.exact.settle(lease, used_prompt + used_output)
        is_first = self._gate.release(
            lease,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            outcome=outcome,
            now_s=self._now_s(),
        )
        if not is_first:
            self.recalls.forget(lease)
        self.pump()
        return is_first

    def pump(self) -> None:
        """Poll the gate, wake whom it names, and set the timer for the next time it must be polled."""
        for one in self._gate.recalls.requeued():
            again = asyncio.get_running_loop().create_future()
            self._waiters[one.ticket] = again
            self.recalls.taken(one.lease, Place(one.ticket, again))
        for event in self._gate.poll(self._now_s()):
            waiter = self._waiters.pop(event.ticket, None)
            if waiter is not None and not waiter.done():
                waiter.set_result(event)
            elif isinstance(event, Started):
                self._return_unused(event.lease)
        self._set_timer()

    def close(self) -> None:
        """Stop the timer."""
        self._rings_at_s = _NEVER
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self, place: Place) -> None:
        self._give_back(place.ticket, place.waiter)

    def _give_back(self, ticket: Ticket, waiter: asyncio.Future[Event]) -> None:
        self._waiters.pop(ticket, None)
        if self._gate.cancel(ticket, self._now_s()):
            self.pump()
        elif waiter.done() and not waiter.cancelled():
            event = waiter.result()
            if isinstance(event, Started):
                self._return_unused(event.lease)
                self.pump()

    def _return_unused(self, lease: Lease) -> None:
        self.recalls.forget(lease)
        self._gate.release(
            lease,
            prompt_tokens=0,
            output_tokens=0,
            outcome=Outcome.CLIENT_GONE,
            now_s=self._now_s(),
        )

    def _set_timer(self) -> None:
        """See that the timer rings by the time the gate is due; ringing too soon is no fault."""
        due_s = self._gate.next_deadline_s()
        if due_s is None or due_s >= self._rings_at_s:
            return
        self.close()
        self._rings_at_s = due_s
        delay_s = max(due_s - self._now_s(), 0.001)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self.close()
        self.pump()
