"""The gate: decides for each request whether it starts now, waits, or is refused.

One writer, no clock, no I/O: `now_s` is monotonic seconds and never goes back, randomness is passed in.
Tokens are counts. Prevents: reservations that leak, overload passed on to engines, and one tenant or
tier standing in front of all others.

    gate = Gate(random.Random())
    gate.apply(assignment, now_s); gate.observe(node_states, now_s)
    match gate.offer(request, now_s):
        case Dispatch(node, lease): send, then gate.release(lease, ...) in a finally
        case Queued(ticket): wait for Started or Evicted out of gate.poll(now_s); if the client leaves,
            gate.cancel(ticket, now_s)
        case Refused(outcome, reason, retry_after_s, ...): answer HTTP_STATUS[outcome]

The owner calls `poll` after every `release`, `extend`, `cancel`, `observe` and `apply`, and at
`next_deadline_s()`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from fleet.messages import Assignment
from fleet.offers import (
    Decision,
    Dispatch,
    Event,
    Evicted,
    GateSnapshot,
    Lease,
    Limit,
    NodeState,
    NodeUse,
    Queued,
    Refused,
    Request,
    Started,
    TenantUse,
    Ticket,
    TierQueue,
)
from fleet.outcomes import TIERS, Outcome

__all__ = [
    "Decision",
    "Dispatch",
    "Event",
    "Evicted",
    "Gate",
    "GateSnapshot",
    "Lease",
    "Limit",
    "NodeState",
    "NodeUse",
    "Queued",
    "Refused",
    "Request",
    "Started",
    "TenantUse",
    "Ticket",
    "TierQueue",
]


class Gate:
    """Admission of one gateway. Closed (NO_NODES) until the first assignment."""

    def __init__(
        self,
        rng: random.Random,
        *,
        prior_output_tokens: int = 1024,
        max_queued_requests: int | None = None,
    ) -> None:
        """Make a closed gate.

        `prior_output_tokens` is reserved for output until an endpoint has 200 completions.
        `max_queued_requests` bounds all tiers together; when it is reached an interactive request
        displaces the newest queued request of the lowest tier. None: only the tiers' own bounds.
        """
        self._rng = rng
        self._prior_output_tokens = prior_output_tokens
        self._max_queued_requests = max_queued_requests

    @property
    def is_ready(self) -> bool:
        """Say whether an assignment is in force and at least one node takes work."""
        return False

    def apply(self, assignment: Assignment, now_s: float) -> None:
        """Put an assignment in force. Whether it is newer is the caller's question.

        Changes no bucket level (but for clamping to a smaller burst), no lease and no place in the
        queue: a push mints no capacity. Nodes that vanish keep their leases until released.
        """

    def observe(self, states: Iterable[NodeState], now_s: float) -> None:
        """Take in what nodes said. Nodes that are not in the assignment are ignored."""

    def offer(self, request: Request, now_s: float) -> Decision:
        """Decide on a request. A refused one uses up nothing."""
        return Refused(Outcome.NO_NODES, "no assignment yet", 1, 1000)

    def poll(self, now_s: float) -> list[Event]:
        """Evict what has waited too long, start what fits now, and return both in order."""
        return []

    def next_deadline_s(self) -> float | None:
        """Return when `poll` is due at the latest; None while nothing waits."""
        return None

    def cancel(self, ticket: Ticket, now_s: float) -> bool:
        """Take a queued request out: its client left. False when it is no longer queued.

        When False the request was started or evicted by an earlier `poll`; a started one has a lease
        that must be released.
        """
        return False

    def extend(self, lease: Lease, output_tokens: int, now_s: float) -> None:
        """Raise a lease's booked output to what has been streamed, when that is more."""

    def release(
        self,
        lease: Lease,
        *,
        prompt_tokens: int | None,
        output_tokens: int | None,
        outcome: Outcome,
        now_s: float,
    ) -> bool:
        """Close a lease: return what was booked, charge what was used. False when already closed.

        `prompt_tokens`, `output_tokens`: used, as counted by the engine; None: the engine did not say,
        then what was booked is charged. Pass 0 when the engine never saw the request.
        """
        return False

    def drain(self) -> None:
        """Refuse every new request as DRAINING from now on; what waits or runs goes on."""

    def snapshot(self, now_s: float) -> GateSnapshot:
        """Return what is held and what waits. O(tenants + nodes): for status and metrics."""
        empty = dict.fromkeys(TIERS, 0)
        return GateSnapshot(
            is_ready=False,
            in_flight_requests=0,
            in_flight_tokens=0,
            in_flight_tokens_by_tier=empty,
            queues={tier: TierQueue(0, 0, 0.0) for tier in TIERS},
            dispatched_tokens_by_tier=empty,
            longest_wait_s_by_tier=dict.fromkeys(TIERS, 0.0),
            tenants={},
            nodes={},
            oldest_lease_age_s=0.0,
        )
