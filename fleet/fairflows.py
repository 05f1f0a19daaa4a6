"""One level of a start-time fair queue: virtual time, the flows on it, and whose turn it is.

Owns the tags and heaps that `fleet.fairqueue` joins into tiers. Tokens are counts, weights whole numbers
above 0, times monotonic seconds. Prevents: a flow that returns from idleness with credit, and cost that
grows with the number of flows.
Source: Goyal, Vin, Cheng, "Start-time Fair Queuing" (SIGCOMM 1996).
"""

from __future__ import annotations

import bisect
import heapq
from typing import TYPE_CHECKING, Final

from fleet.offers import Ticket
from fleet.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fleet.lines import Line

#: How many tokens a flow that ran while others were blocked may owe them at least.
LARGEST_DEBT_TOKENS: Final = 65_536
#: A flow is looked through for what stands before a newcomer up to so many.
_LOOKED_THROUGH: Final = 32
#: It is kept in order up to so many; beyond, moving them up would cost more than a heap's cold steps.
_IN_ORDER: Final = 512
#: Sizes from 2^63 tokens on count as one.
_MOST_BITS: Final = 64


def _bits(tokens: int) -> int:
    bits = tokens.bit_length()
    return bits if bits < _MOST_BITS else _MOST_BITS - 1


def _key(ticket: Ticket) -> float:
    return ticket.key


class Tag:
    """Where one key's last start ends in virtual time: kept at hand, so that nobody looks it up twice."""

    __slots__ = ("finish", "weight")

    def __init__(self) -> None:
        self.finish = 0.0
        self.weight = 1  # at which that start was counted


class FairTags:
    """Virtual time of one level, and where each key's next start lies on it."""

    __slots__ = ("by_key", "most_owed", "virtual")

    def __init__(self) -> None:
        self.virtual = 0.0
        self.by_key: dict[str, Tag] = {}
        self.most_owed = LARGEST_DEBT_TOKENS

    def find(self, key: str) -> Tag:
        """Return the tag of a key, the same until it is forgotten.

        Its next request starts at `finish`, or at `virtual` where that is later: idle time is no credit.
        """
        tag = self.by_key.get(key)
        if tag is None:
            tag = self.by_key[key] = Tag()
        return tag

    def apply(self, weights: Mapping[str, int], in_use: Collection[str]) -> None:
        """Let what each key owes weigh as it weighs now: virtual time ahead is tokens by weight.

        Drops the tags that say nothing: of keys not `in_use` whose next start is at virtual time.
        """
        virtual = self.virtual
        for key, tag in self.by_key.items():
            weight = weights.get(key, tag.weight)
            if tag.finish > virtual and weight != tag.weight:
                tag.finish = virtual + (tag.finish - virtual) * tag.weight / weight
                tag.weight = weight
        self.by_key = {
            key: tag for key, tag in self.by_key.items() if tag.finish > virtual or key in in_use
        }

    def charge(self, tag: Tag, tokens: int, weight: int, in_turn: bool) -> None:
        """Count a start. Virtual time moves only with starts in turn, so that the blocked keep theirs."""
        virtual, start = self.virtual, tag.finish
        if start < virtual:
            start = virtual
        if 4 * tokens > self.most_owed:
            self.most_owed = 4 * tokens
        tag.weight = weight
        ends = start + tokens / weight
        if in_turn:  # nobody owes more than one request
            self.virtual = start
            tag.finish = ends
            return
        latest = virtual + self.most_owed / weight
        tag.finish = ends if ends < latest else latest


#: The heap of each flow that never was long; nothing is put into it.
_NOTHING: Final[list[tuple[float, int, Ticket]]] = []


class Flow:
    """The queue of one tenant in one lane of one tier.

    While it is short its requests stand in order; a flow that was long once is a heap until it is empty.
    """

    __slots__ = (
        "account",
        "heap",
        "is_gone",
        "is_long",
        "lane",
        "listed",
        "requests",
        "served_tokens",
        "since_s",
        "tag",
        "tokens",
        "tokens_by_bits",
        "turn",
        "turn_number",
        "weight",
    )

    def __init__(self, account: str, weight: int, lane: Lane, tag: Tag) -> None:
        self.turn = 0.0  # it has its turn from this start tag on, by `Turns`
        self.turn_number = 0  # in which it was put in there
        self.requests = 0
        self.tag = tag
        self.lane = lane
        self.listed: list[Ticket] = []  # while it is short: all that waits, in order
        self.is_long = False
        self.is_gone = False  # it was empty when its turn came; its tenant's next request makes another
        self.tokens = 0
        self.account = account
        self.weight = weight
        self.heap = _NOTHING  # while it is long; those that left stay until they are next
        self.tokens_by_bits: list[int] | None = None  # by size in bits, once asked for while long
        self.since_s = 0.0  # it has been backlogged since then
        self.served_tokens = 0  # started since then

    def push(self, ticket: Ticket) -> None:
        """Queue a request."""
        if not self.requests:
            self.since_s = ticket.arrived_at_s
            self.served_tokens = 0
        if not self.is_long and len(self.listed) >= _IN_ORDER:
            self.heap = [(one.key, one.ticket_id, one) for one in self.listed]
            self.listed.clear()
            self.is_long = True
        if self.is_long:
            heapq.heappush(self.heap, (ticket.key, ticket.ticket_id, ticket))
        else:
            listed, key = self.listed, ticket.key
            low, high = 0, len(listed)
            if high and key >= listed[-1].key:
                low = high
            while low < high:  # to where its key belongs, after equal ones: numbers only grow
                middle = (low + high) >> 1
                if key < listed[middle].key:
                    high = middle
                else:
                    low = middle + 1
            listed.insert(low, ticket)
        tokens = ticket.tokens
        self.requests += 1
        self.tokens += tokens
        if self.tokens_by_bits is not None:
            self.tokens_by_bits[_bits(tokens)] += tokens

    def first(self) -> Ticket | None:
        """Return what is next in it; None when nothing waits."""
        if not self.is_long:
            return self.listed[0] if self.listed else None
        heap = self.heap
        while heap:
            ticket = heap[0][2]
            if ticket.is_waiting:
                return ticket
            heapq.heappop(heap)
        self.is_long = False
        return None

    def leave(self, ticket: Ticket) -> None:
        """Count a request out that left, or was set aside; from the middle of a heap later."""
        tokens = ticket.tokens
        self.requests -= 1
        self.tokens -= tokens
        if self.tokens_by_bits is not None:
            self.tokens_by_bits[_bits(tokens)] -= tokens
        if not self.is_long:
            listed = self.listed
            if listed[0] is ticket:
                self.lane.next = None
                del listed[0]
                return
            place = bisect.bisect_left(listed, ticket.key, key=_key)
            while listed[place] is not ticket:
                place += 1
            del listed[place]
            return
        heap = self.heap
        if heap[0][2] is ticket:
            heapq.heappop(heap)
            self.lane.next = None
        elif len(heap) > 2 * self.requests + _LOOKED_THROUGH:
            self.heap = [entry for entry in heap if entry[2].is_waiting]
            heapq.heapify(self.heap)

    def tokens_before(self, ticket: Ticket) -> int:
        """Return the tokens of what stands before one about to join; in a long queue by size alone."""
        key = ticket.key
        if not self.is_long and len(self.listed) <= _LOOKED_THROUGH:
            tokens, listed = self.tokens, self.listed
            place = len(listed)
            while place:
                place -= 1
                one = listed[place]
                if one.key <= key:
                    break
                tokens -= one.tokens
            return tokens
        if self.is_long and len(self.heap) <= _LOOKED_THROUGH:
            return sum(one.tokens for at, _, one in self.heap if at <= key and one.is_waiting)
        if self.tokens_by_bits is None:
            self.tokens_by_bits = by_bits = [0] * _MOST_BITS
            for one in self.listed:
                by_bits[_bits(one.tokens)] += one.tokens
            for _, _, one in self.heap:
                if one.is_waiting:
                    by_bits[_bits(one.tokens)] += one.tokens
        return sum(self.tokens_by_bits[: _bits(ticket.tokens) + 1])


class Lane:
    """One tier's flows for one model and size class, by start tag."""

    __slots__ = (
        "active_weight",
        "failed_head_look",
        "flows",
        "line",
        "next",
        "next_flow",
        "next_tag",
        "parked",
        "size_class",
        "turns",
    )

    def __init__(self, line: Line, size_class: str | None) -> None:
        self.line = line
        self.size_class = size_class
        self.flows: dict[str, Flow] = {}
        self.turns = Turns()
        self.active_weight = 0
        self.parked: Ticket | None = None  # it was next and did not fit
        self.next: Ticket | None = None  # its head, while that is surely still it
        self.next_flow: Flow | None = None  # the head's, and its start tag
        self.next_tag = 0.0
        self.failed_head_look = 0  # of the backlog, at which the head did not fit

    def push(self, ticket: Ticket, tags: FairTags) -> None:
        """Queue a request; a tenant that was idle joins the round."""
        account = ticket.holder.name
        flow = self.flows.get(account)
        if flow is None:
            tag = tags.find(account)
            flow = self.flows[account] = Flow(account, ticket.holder.weight, self, tag)
            self.active_weight += flow.weight
            start = tag.finish if tag.finish > tags.virtual else tags.virtual
            self.turns.add(start, flow)
            if start < self.next_tag:
                self.next = None
        ticket.flow = flow
        flow.push(ticket)
        if flow is self.next_flow:
            self.next = None

    def apply(self, weights: Mapping[str, int], tags: FairTags) -> None:
        """Take in weights, and let flows that owe less virtual time than before start earlier for it."""
        turns, virtual = self.turns, tags.virtual
        self.turns, self.next, self.active_weight = Turns(), None, 0
        for flow in turns:
            flow.weight = weights.get(flow.account, flow.weight)
            self.active_weight += flow.weight
            self.turns.add(min(flow.turn, max(flow.tag.finish, virtual)), flow)

    def head(self, tags: FairTags) -> Ticket | None:
        """Return the request that is next, and keep it at hand with its flow and start tag; None: empty."""
        turns, virtual = self.turns, tags.virtual
        while (flow := turns.first()) is not None:
            if not flow.requests:
                turns.drop_first()
                del self.flows[flow.account]
                flow.is_gone = True
                self.active_weight -= flow.weight
                continue
            start = flow.tag.finish
            if start < virtual:
                start = virtual
            if start > flow.turn:
                turns.put_back_first(start, flow)
                continue
            self.next, self.next_flow, self.next_tag = flow.first(), flow, flow.turn
            return self.next
        return None
