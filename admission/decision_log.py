"""The last requests and what was decided about each, in memory, by request id.

Owns a ring of fixed length: nothing is written to disk, and prompts are not kept. Times are seconds on the
monotonic scale but for `at_s` (Unix). Prevents: an explanation that costs every request more than it is
worth, and a memory that grows with traffic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from fleet import decision as told
from fleet.offers import Evicted, Lease, Limit, Refused, Ticket
from fleet.outcomes import Outcome, Tier


@dataclass(slots=True)
class Attempt:
    """A node the request was sent to."""

    lease: Lease
    at_s: float
    failure: str | None = None


@dataclass(slots=True, eq=False)
class Entry:
    """What is noted about one request while it passes."""

    request_id: str
    at_s: float
    arrived_s: float
    tenant: str
    key_id: str
    asked_tier: Tier | None
    model: str
    endpoint: str
    revision: int | None
    prompt_bytes: int
    bytes_per_token: float
    max_tokens: int | None
    choices: int
    prompt_tokens: int = 0
    prompt_basis: str = ""  # who counted it; "": estimated
    ticket: Ticket | None = None
    left_queue_s: float | None = None
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    outcome: Outcome | None = None
    reason: str = ""
    retry_after_s: int | None = None
    limit: Limit | None = None
    used_prompt: int = 0
    used_output: int = 0
    is_exact: bool = False
    ttft_s: float | None = None
    ended_s: float = 0.0

    def refused(self, decision: Refused | Evicted) -> None:
        """Note why it got no node."""
        self.ticket = decision.ticket or self.ticket
        self.reason = decision.reason
        self.retry_after_s = decision.retry_after_s
        self.limit = decision.limit if isinstance(decision, Refused) else None

    def sent(self, lease: Lease, now_s: float) -> None:
        """Note a node it is sent to."""
        self.ticket = lease.ticket
        self.attempts.append(Attempt(lease, now_s))
        if self.left_queue_s is None:
            self.left_queue_s = now_s

    def failed(self, why: str) -> None:
        """Note why the last node brought no answer."""
        if self.attempts:
            self.attempts[-1].failure = why

    def told(self, gateway: str, now_s: float) -> told.Decision:
        """Return the entry as it is handed out."""
        ticket = self.ticket
        return told.Decision(
            gateway=gateway,
            revision=self.revision,
            request_id=self.request_id,
            at_s=self.at_s,
            tenant=self.tenant,
            key_id=self.key_id,
            asked_tier=self.asked_tier,
            tier=None if ticket is None else ticket.tier,
            model=self.model,
            endpoint=self.endpoint,
            estimate=self._estimate(ticket),
            would_refuse=() if ticket is None else tuple(one.value for one in ticket.would_refuse),
            wait=self._wait(ticket, now_s),
            attempts=tuple(self._attempt(one) for one in self.attempts),
            ending=self._ending(),
        )

    def _estimate(self, ticket: Ticket | None) -> told.Estimate:
        return told.Estimate(
            prompt_tokens=self.prompt_tokens,
            prompt_bytes=self.prompt_bytes,
            bytes_per_token=self.bytes_per_token,
            prompt_basis=self.prompt_basis,
            output_tokens=None if ticket is None else ticket.output_tokens,
            output_basis="" if ticket is None else ticket.output_basis,
            max_tokens=self.max_tokens,
            choices=self.choices,
            size_class=None if ticket is None else ticket.size_class,
        )

    def _wait(self, ticket: Ticket | None, now_s: float) -> told.Wait | None:
        if ticket is None or ticket.ahead_requests is None:
            return None
        until_s = self.left_queue_s if self.left_queue_s is not None else self.ended_s or now_s
        return told.Wait(
            ahead_requests=ticket.ahead_requests,
            ahead_tokens=ticket.ahead_tokens,
            expected_s=ticket.expected_wait_s,
            waited_s=max(0.0, until_s - ticket.arrived_at_s),
        )

    def _attempt(self, one: Attempt) -> told.Attempt:
        lease = one.lease
        return told.Attempt(
            node=lease.node,
            rule=lease.rule,
            candidates=lease.candidates,
            room_tokens=lease.room_tokens,
            after_s=one.at_s - self.arrived_s,
            failure=one.failure,
        )

    def _ending(self) -> told.Ending | None:
        if self.outcome is None:
            return None
        limit = self.limit
        return told.Ending(
            outcome=self.outcome,
            reason=self.reason,
            retry_after_s=self.retry_after_s,
            limit=None
            if limit is None
            else told.LimitMet(name=limit.name, quota=limit.quota, used=limit.used, needed=limit.needed),
            prompt_tokens=self.used_prompt,
            output_tokens=self.used_output,
            is_exact=self.is_exact,
            ttft_s=self.ttft_s,
            total_s=self.ended_s - self.arrived_s,
        )


class DecisionLog:
    """A ring of entries. One event loop reads and writes it."""

    def __init__(self, length: int) -> None:
        """`length` (>= 0) requests are kept; 0: none."""
        self._ring: deque[Entry] = deque()
        self._length = length
        self._by_id: dict[str, Entry] = {}

    def add(self, entry: Entry) -> None:
        """Keep an entry; the oldest makes room for it."""
        if not self._length:
            return
        if len(self._ring) >= self._length:
            del self._by_id[self._ring.popleft().request_id]
        self._ring.append(entry)
        self._by_id[entry.request_id] = entry

    def find(self, request_id: str) -> Entry | None:
        """Return a request's entry; None when it is not, or no longer, kept."""
        return self._by_id.get(request_id)

    def newest_first(self) -> Iterator[Entry]:
        """Yield the entries, newest first."""
        return reversed(self._ring)
