"""One level of a start-time fair queue: virtual time, the flows on it, and whose turn it is.

Owns the tags and heaps that `fleet.fairqueue` joins into tiers. Tokens are counts, weights whole numbers
above 0, times monotonic seconds. Prevents: a flow that returns from idleness with credit, and cost that
grows with the number of flows.
Source: Goyal, Vin, Cheng, "Start-time Fair Queuing" (SIGCOMM 1996).
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from fleet.offers import Ticket

if TYPE_CHECKING:
    from fleet.lines import Line

#: How many tokens a flow that ran while others were blocked may owe them at least.
LARGEST_DEBT_TOKENS = 65_536
#: A flow is looked through for what stands before a newcomer up to so many.
_LOOKED_THROUGH = 32
#: Sizes from 2^63 tokens on count as one.
_MOST_BITS = 64


def _bits(tokens: int) -> int:
    bits = tokens.bit_length()
    return bits if bits < _MOST_BITS else _MOST_BITS - 1


class Tag:
    """Where one key's last start ends in virtual time: kept at hand, so that nobody looks it up twice."""

    __slots__ = ("finish",)

    def __init__(self) -> None:
        self.finish = 0.0


class FairTags:
    """Virtual time of one level, and where each key's next start lies on it."""

    __slots__ = ("by_key", "most_owed", "virtual")

    def __init__(self) -> None:
        self.virtual = 0.0
        self.by_key: dict[str, Tag] = {}
        self.most_owed = LARGEST_DEBT_TOKENS

    def find(self, key: str) -> Tag:
        """Return the tag of a key, the same for ever.

        Its next request starts at `finish`, or at `virtual` where that is later: idle time is no credit.
        """
        tag = self.by_key.get(key)
        if tag is None:
            tag = self.by_key[key] = Tag()
        return tag

    def charge(self, tag: Tag, tokens: int, weight: int, in_turn: bool) -> None:
        """Count a start. Virtual time moves only with starts in turn, so that the blocked keep theirs."""
        virtual, start = self.virtual, tag.finish
        if start < virtual:
            start = virtual
        if 4 * tokens > self.most_owed:
            self.most_owed = 4 * tokens
        ends = start + tokens / weight
        if in_turn:  # nobody owes more than one request
            self.virtual = start
            tag.finish = ends
            return
        latest = virtual + self.most_owed / weight
        tag.finish = ends if ends < latest else latest


class Flow:
    """The queue of one tenant in one lane of one tier."""

    __slots__ = (
        "_latest_key",
        "account",
        "heap",
        "lane",
        "requests",
        "served_tokens",
        "since_s",
        "tag",
        "tokens",
        "tokens_by_bits",
        "weight",
    )

    def __init__(self, account: str, weight: int, lane: Lane, tag: Tag) -> None:
        self.account = account
        self.tag = tag
        self.weight = weight
        self.lane = lane
        self.heap: list[tuple[float, int, Ticket]] = []
        self.requests = 0
        self.tokens = 0
        self.tokens_by_bits: list[int] | None = None  # by size in bits, once it has been long
        self.since_s = 0.0  # it has been backlogged since then
        self.served_tokens = 0  # started since then
        self._latest_key = 0.0  # no key in it is larger

    def push(self, ticket: Ticket) -> None:
        """Queue a request."""
        if not self.requests:
            self.since_s = ticket.arrived_at_s
            self.served_tokens = 0
        key = ticket.key
        if not self.requests or key > self._latest_key:
            self._latest_key = key
        heapq.heappush(self.heap, (key, ticket.ticket_id, ticket))
        tokens = ticket.tokens
        self.requests += 1
        self.tokens += tokens
        if self.tokens_by_bits is not None:
            self.tokens_by_bits[_bits(tokens)] += tokens

    def leave(self, ticket: Ticket) -> None:
        """Count a request out that left, or was set aside; from the middle it stays until it is next."""
        tokens = ticket.tokens
        self.requests -= 1
        self.tokens -= tokens
        if self.tokens_by_bits is not None:
            self.tokens_by_bits[_bits(tokens)] -= tokens
        heap = self.heap
        if heap[0][2] is ticket:
            heapq.heappop(heap)
            self.lane.next = None
        elif len(heap) > 2 * self.requests + 32:
            self.heap = [entry for entry in heap if entry[2].is_waiting]
            heapq.heapify(self.heap)

    def tokens_before(self, ticket: Ticket) -> int:
        """Return the tokens of what stands before one about to join; in a long queue by size alone."""
        heap, key = self.heap, ticket.key
        if len(heap) <= _LOOKED_THROUGH:
            if key >= self._latest_key:
                return self.tokens
            tokens = 0
            for at, _, one in heap:
                if at <= key and one.is_waiting:
                    tokens += one.tokens
            return tokens
        if self.tokens_by_bits is None:
            self.tokens_by_bits = by_bits = [0] * _MOST_BITS
            for _, _, one in heap:
                if one.is_waiting:
                    by_bits[_bits(one.tokens)] += one.tokens
        return sum(self.tokens_by_bits[: _bits(ticket.tokens) + 1])


class Lane:
    """One tier's flows for one model and size class, by start tag."""

    __slots__ = (
        "_turn",
        "active_weight",
        "failed_head_look",
        "failed_look",
        "flows",
        "heap",
        "line",
        "next",
        "parked",
        "size_class",
    )

    def __init__(self, line: Line, size_class: str | None) -> None:
        self.line = line
        self.size_class = size_class
        self.flows: dict[str, Flow] = {}
        self.heap: list[tuple[float, int, Flow]] = []
        self.active_weight = 0
        self.parked: Ticket | None = None  # it was next and did not fit
        self.next: tuple[float, int, Ticket, Lane] | None = None  # its head, while that is surely still it
        self.failed_look = 0  # at which the parked one did not fit
        self.failed_head_look = 0  # at which the head did not
        self._turn = 0

    def push(self, ticket: Ticket, tags: FairTags) -> None:
        """Queue a request; a tenant that was idle joins the round."""
        account = ticket.holder.name
        flow = self.flows.get(account)
        if flow is None:
            tag = tags.find(account)
            flow = self.flows[account] = Flow(account, ticket.weight, self, tag)
            self.active_weight += ticket.weight
            self._turn += 1
            heapq.heappush(self.heap, (max(tag.finish, tags.virtual), self._turn, flow))
        ticket.flow = flow
        flow.push(ticket)
        if flow.heap[0][2] is ticket and self.heap[0][2] is flow:
            self.next = None

    def head(self, tags: FairTags) -> tuple[float, int, Ticket, Lane] | None:
        """Return (start tag, number, request, lane) of the flow that is next; None: all are empty."""
        heap, virtual = self.heap, tags.virtual
        while heap:
            tag, _, flow = heap[0]
            entries = flow.heap
            while entries and not entries[0][2].is_waiting:
                heapq.heappop(entries)
            if not entries:
                heapq.heappop(heap)
                del self.flows[flow.account]
                self.active_weight -= flow.weight
                continue
            start = flow.tag.finish
            if start < virtual:
                start = virtual
            if start > tag:
                self._turn += 1
                heapq.heapreplace(heap, (start, self._turn, flow))
                continue
            _, number, ticket = entries[0]
            self.next = found = (tag, number, ticket, self)
            return found
        return None
