"""Requests at engines whose room an interactive request may take: stopped here, and waiting again.

One event loop calls everything here. Seconds are engine time spent in vain, tokens the prompts booked.
Prevents: an engine that goes on with what the gate has queued again, an answer sent after the room was
given away, and a place in the queue that outlives its request.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from admission.metrics import Family, Flow
from admission.upstream import NodeFailed
from fleet.gate import Gate
from fleet.offers import Event, Lease, Ticket

Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request waits again."""

    ticket: Ticket
    waiter: asyncio.Future[Event]


class Recalled(Exception):
    """The room was taken back before the answer began; the request waits again at `place`."""

    def __init__(self, lease: Lease, place: Place) -> None:
        super().__init__("its room went to an interactive request")
        self.lease = lease
        self.place = place


class TooLate(Exception):
    """The answer begins after its room was taken back: the client must not see it."""


class RecallBook:
    """The requests of one gateway that run and may be taken back."""

    def __init__(self, gate: Gate, give_up: Callable[[Place], None]) -> None:
        """`give_up` leaves a place in the queue whose request is gone."""
        self._gate = gate
        self._give_up = give_up
        self._bounds: dict[int, asyncio.Timeout] = {}
        self._places: dict[int, Place] = {}  # by id of the lease that was taken back
        self._requests: Counter[Flow] = Counter()
        self._seconds: defaultdict[Flow, float] = defaultdict(float)
        self._tokens: Counter[Flow] = Counter()

    def taken(self, lease: Lease, place: Place) -> None:
        """Stop what runs under a lease that the gate took back."""
        self._places[lease.lease_id] = place
        bound = self._bounds.get(lease.lease_id)
        if bound is not None:
            bound.reschedule(asyncio.get_running_loop().time())

    def is_safe(self, lease: Lease) -> bool:
        """Say whether nobody can take the lease's room back: its work needs no guard."""
        return lease.is_open and not self._gate.recalls.is_recallable(lease)

    async def guarded(self, lease: Lease, work: Callable[[], Awaitable[Done]]) -> Done:
        """Return what the work under a lease returns. Raises Recalled where its room is taken back."""
        bound = self._bounds[lease.lease_id] = asyncio.timeout(None)
        try:
            async with bound:
                if lease.lease_id in self._places:  # before its task came to run
                    raise TooLate
                return await work()
        except (TimeoutError, NodeFailed, TooLate) as exc:
            place = self._places.pop(lease.lease_id, None)
            if place is None:
                raise
            raise Recalled(lease, place) from exc
        finally:
            del self._bounds[lease.lease_id]
            self.forget(lease)  # its client left meanwhile

    def forget(self, lease: Lease) -> None:
        """Leave the place that a lease's request has in the queue, if there is one."""
        place = self._places.pop(lease.lease_id, None)
        if place is not None:
            self._give_up(place)

    def begins(self, lease: Lease) -> None:
        """Note that the answer begins: from here on it is the client's. Raises TooLate."""
        if not lease.is_open:
            raise TooLate
        self._gate.recalls.began(lease)

    def count(self, flow: Flow, engine_s: float, prompt_tokens: int) -> None:
        """Count what an engine did in vain."""
        self._requests[flow] += 1
        self._seconds[flow] += engine_s
        self._tokens[flow] += prompt_tokens

    def families(self) -> Iterator[Family]:
        """Yield what was taken back so far."""
        prefix, flow = "rhodeck_gateway_requeued_", ("tenant", "tier")
        yield Family(prefix + "total", "Started requests queued again.", flow, self._requests, "counter")
        yield Family(
            prefix + "engine_seconds_total", "Engine time it cost.", flow, self._seconds, "counter"
        )
        yield Family(
            prefix + "prompt_tokens_total", "Prompt tokens booked for it.", flow, self._tokens, "counter"
        )
