"""The last requests and what was decided about each, in memory, by request id.

Owns a ring of fixed length: nothing is written to disk, and prompts are not kept. Times are seconds on the
monotonic scale but for `at_s` (Unix). Prevents: an explanation that costs every request more than it is
worth, and a memory that grows with traffic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from admission.calls import COMPLETIONS_MAX_TOKENS
from fleet import decision as words
from fleet.offers import Evicted, Lease, Limit, Refused, Ticket
from fleet.outcomes import Outcome, Tier
from fleet.tickets import CLIENT


class PrefillTry:
    """A node that was asked to compute the prompt."""

    __slots__ = ("at_s", "failure", "node", "took_s")

    def __init__(self, node: str, at_s: float) -> None:
        self.node, self.at_s = node, at_s
        self.took_s: float | None = None
        self.failure: str | None = None


class Attempt:
    """A node the request was sent to, after those that computed its prompt elsewhere."""

    __slots__ = ("at_s", "failure", "lease", "prefills")

    def __init__(self, lease: Lease, at_s: float) -> None:
        self.lease = lease
        self.at_s = at_s
        self.failure: str | None = None
        self.prefills: list[PrefillTry] | None = None


class Entry:
    """What is noted about one request while it passes."""

    __slots__ = (
        "arrived_s", "asked_tier", "at_s", "attempts", "bytes_per_token", "choices", "ended_s", "endpoint",
        "is_exact", "key_id", "left_queue_s", "limit", "max_tokens", "model", "outcome", "prompt_basis",
        "prompt_bytes", "prompt_tokens", "reason", "request_id", "retry_after_s", "revision", "tenant",
        "ticket", "ttft_s", "used_output", "used_prompt",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        at_s: float,
        arrived_s: float,
        tenant: str,
        key_id: str,
        asked_tier: Tier | None,
        model: str,
        endpoint: str,
        revision: int | None,
        prompt_bytes: int,
        bytes_per_token: float,
        max_tokens: int | None,
        choices: int,
    ) -> None:
        self.request_id = request_id
        self.at_s = at_s
        self.arrived_s = arrived_s
        self.tenant = tenant
        self.key_id = key_id
        self.asked_tier = asked_tier
        self.model = model
        self.endpoint = endpoint
        self.revision = revision
        self.prompt_bytes = prompt_bytes
        self.bytes_per_token = bytes_per_token
        self.max_tokens = max_tokens
        self.choices = choices
        self.prompt_tokens = 0
        self.prompt_basis = ""  # who counted it; "": estimated
        self.ticket: Ticket | None = None
        self.left_queue_s: float | None = None
        self.attempts: list[Attempt] = []
        self.outcome: Outcome | None = None
        self.reason = ""
        self.retry_after_s: int | None = None
        self.limit: Limit | None = None
        self.used_prompt = 0
        self.used_output = 0
        self.is_exact = False
        self.ttft_s: float | None = None
        self.ended_s = 0.0

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

    def prefilling(self, node: str, now_s: float) -> None:
        """Note a node that is asked to compute the prompt for the last attempt."""
        last = self.attempts[-1]
        last.prefills = [*(last.prefills or ()), PrefillTry(node, now_s)]

    def prefilled(self, now_s: float, failure: str | None = None) -> None:
        """Note that it answered, or how it failed."""
        if prefills := self.attempts[-1].prefills:
            prefills[-1].took_s, prefills[-1].failure = now_s - prefills[-1].at_s, failure

    def failed(self, why: str) -> None:
        """Note why the last node brought no answer."""
        if self.attempts:
            self.attempts[-1].failure = why

    def told(self, gateway: str, now_s: float) -> words.Decision:
        """Return the entry as it is handed out."""
        ticket = self.ticket
        return words.Decision(
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
            wait=self._wait(now_s),
            attempts=tuple(self._attempt(one) for one in self.attempts),
            ending=self._ending(),
        )

    def _estimate(self, ticket: Ticket | None) -> words.Estimate:
        return words.Estimate(
            prompt_tokens=self.prompt_tokens,
            prompt_bytes=self.prompt_bytes,
            bytes_per_token=self.bytes_per_token,
            prompt_basis=self.prompt_basis,
            output_tokens=None if ticket is None else ticket.output_tokens,
            output_basis="" if ticket is None else self._output_basis(ticket),
            max_tokens=self.max_tokens,
            choices=self.choices,
            size_class=None if ticket is None else ticket.size_class,
        )

    def _output_basis(self, ticket: Ticket) -> str:
        """Return what the booked output comes from; a bound may be the endpoint's and not the client's."""
        if ticket.output_basis == CLIENT and self.endpoint == "embeddings":
            return "embeddings have none"
        is_usual = self.max_tokens == COMPLETIONS_MAX_TOKENS * self.choices
        if ticket.output_basis == CLIENT and self.endpoint == "completions" and is_usual:
            return f"max_tokens, {COMPLETIONS_MAX_TOKENS} where the client names none"
        return ticket.output_basis

    def _wait(self, now_s: float) -> words.Wait | None:
        """Return its first wait; those before later nodes stand with these."""
        first = self.attempts[0].lease if self.attempts else None
        ticket = self.ticket if first is None else first.ticket
        if ticket is None or ticket.ahead_requests is None:
            return None
        waited_s = (self.ended_s or now_s) - ticket.arrived_at_s if first is None else first.queued_s
        return words.Wait(
            ahead_requests=ticket.ahead_requests,
            ahead_tokens=ticket.ahead_tokens,
            expected_s=ticket.expected_wait_s,
            waited_s=max(0.0, waited_s),
        )

    def _attempt(self, one: Attempt) -> words.Attempt:
        lease = one.lease
        return words.Attempt(
            node=lease.node,
            rule=lease.rule,
            candidates=lease.candidates,
            room_tokens=lease.room_tokens,
            after_s=one.at_s - self.arrived_s,
            waited_s=lease.queued_s,
            failure=one.failure,
            prefills=tuple(
                words.Prefill(node=each.node, took_s=each.took_s, failure=each.failure)
                for each in one.prefills or ()
            ),
        )

    def _ending(self) -> words.Ending | None:
        if self.outcome is None:
            return None
        limit = self.limit
        return words.Ending(
            outcome=self.outcome,
            reason=self.reason,
            retry_after_s=self.retry_after_s,
            limit=None
            if limit is None
            else words.LimitMet(name=limit.name, quota=limit.quota, used=limit.used, needed=limit.needed),
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
        self._ring = deque[Entry](maxlen=length)

    def add(self, entry: Entry) -> None:
        """Keep an entry; the oldest makes room for it."""
        self._ring.append(entry)

    def find(self, request_id: str) -> Entry | None:
        """Return a request's entry; None when it is not, or no longer, kept.

        It looks through them all: people ask now and then, requests come by the thousand.
        """
        return next((one for one in reversed(self._ring) if one.request_id == request_id), None)

    def newest_first(self) -> Iterator[Entry]:
        """Yield the entries, newest first."""
        return reversed(self._ring)
