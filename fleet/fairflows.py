"""One level of a start-time fair queue: virtual time, the flows on it, and whose turn it is.

Owns the tags and heaps that `fleet.fairqueue` joins into tiers. Tokens are counts, weights whole numbers
above 0, times monotonic seconds. Prevents: a flow that returns from idleness with credit, and cost that
grows with the number of flows.
Source: Goyal, Vin, Cheng, "Start-time Fair Queuing" (SIGCOMM 1996).
"""

from __future__ import annotations

import heapq

from fleet.offers import Ticket

#: How many tokens a flow that ran while others were blocked may owe them at least.
_LARGEST_DEBT_TOKENS = 65_536


class FairTags:
    """Virtual time of one level, and where each key's next start lies on it."""

    __slots__ = ("_finish", "_largest_tokens", "_virtual")

    def __init__(self) -> None:
        self._virtual = 0.0
        self._finish: dict[str, float] = {}
        self._largest_tokens = 0

    def start(self, key: str) -> float:
        """Return the start tag of `key`'s next request. Smallest goes first; idle time is no credit."""
        finish = self._finish.get(key, 0.0)
        return finish if finish > self._virtual else self._virtual

    def charge(self, key: str, tokens: int, weight: int, *, in_turn: bool) -> None:
        """Count a start. Virtual time moves only with starts in turn, so that the blocked keep theirs."""
        virtual = self._virtual
        start = self._finish.get(key, 0.0)
        if start < virtual:
            start = virtual
        if in_turn:
            self._virtual = virtual = start
        if tokens > self._largest_tokens:
            self._largest_tokens = tokens
        most_owed = 4 * self._largest_tokens
        if most_owed < _LARGEST_DEBT_TOKENS:
            most_owed = _LARGEST_DEBT_TOKENS
        finish = start + tokens / weight
        latest = virtual + most_owed / weight
        self._finish[key] = finish if finish < latest else latest


class Flow:
    """The queue of one tenant in one lane of one tier."""

    __slots__ = (
        "account",
        "heap",
        "requests",
        "served_tokens",
        "since_s",
        "tokens",
        "tokens_by_bits",
        "weight",
    )

    def __init__(self, account: str, weight: int) -> None:
        self.account = account
        self.weight = weight
        self.heap: list[tuple[float, int, Ticket]] = []
        self.requests = 0
        self.tokens = 0
        self.tokens_by_bits: dict[int, int] = {}
        self.since_s = 0.0  # it has been backlogged since then
        self.served_tokens = 0  # started since then

    def push(self, ticket: Ticket) -> None:
        """Queue a request."""
        if not self.requests:
            self.since_s = ticket.arrived_at_s
            self.served_tokens = 0
        heapq.heappush(self.heap, (ticket.key, ticket.ticket_id, ticket))
        self.count(ticket, 1)

    def count(self, ticket: Ticket, sign: int) -> None:
        """Count a ticket in (+1) or out (-1)."""
        tokens = ticket.tokens
        bits = tokens.bit_length()
        more = tokens if sign > 0 else -tokens
        self.requests += sign
        self.tokens += more
        self.tokens_by_bits[bits] = self.tokens_by_bits.get(bits, 0) + more

    def head(self) -> Ticket | None:
        """Return the next request, dropping those that left; None when empty."""
        heap = self.heap
        while heap:
            ticket = heap[0][2]
            if ticket.is_waiting:
                return ticket
            heapq.heappop(heap)
        return None

    def compact(self) -> None:
        """Bound the memory of requests that left from the middle."""
        if len(self.heap) > 2 * self.requests + 32:
            self.heap = [entry for entry in self.heap if entry[2].is_waiting]
            heapq.heapify(self.heap)


class Lane:
    """One tier's flows for one model and size class, by start tag."""

    __slots__ = ("_turn", "active_weight", "flows", "heap")

    def __init__(self) -> None:
        self.flows: dict[str, Flow] = {}
        self.heap: list[tuple[float, int, Flow]] = []
        self.active_weight = 0
        self._turn = 0

    def flow(self, account: str, weight: int, tags: FairTags) -> Flow:
        """Return the tenant's flow, joining the round if it was idle."""
        flow = self.flows.get(account)
        if flow is None:
            flow = self.flows[account] = Flow(account, weight)
            self.active_weight += weight
            self._turn += 1
            heapq.heappush(self.heap, (tags.start(account), self._turn, flow))
        return flow

    def head(self, tags: FairTags) -> tuple[float, Ticket] | None:
        """Return (start tag, request) of the flow that is next; None when the lane is empty."""
        heap = self.heap
        while heap:
            tag, _, flow = heap[0]
            ticket = flow.head()
            if ticket is None:
                heapq.heappop(heap)
                del self.flows[flow.account]
                self.active_weight -= flow.weight
                continue
            start = tags.start(flow.account)
            if start > tag:
                self._turn += 1
                heapq.heapreplace(heap, (start, self._turn, flow))
                continue
            return tag, ticket
        return None
