"""One level of a start-time fair queue: virtual time, the flows on it, and whose turn it is.

Owns the tags and heaps that `fleet.fairqueue` joins into tiers. Tokens are counts, weights whole numbers
above 0, times monotonic seconds. Prevents: a flow that returns from idleness with credit, and cost that
grows with the number of flows.
Source: Goyal, Vin, Cheng, "Start-time Fair Queuing" (SIGCOMM 1996).
"""

from __future__ import annotations

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
#: Its requests stand in lists of at most so many: moving these up costs less than a heap's cold steps.
_IN_ORDER: Final = 512
#: Sizes from 2^63 tokens on count as one.
_MOST_BITS: Final = 64


def _bits(tokens: int) -> int:
    bits = tokens.bit_length()
    return bits if bits < _MOST_BITS else _MOST_BITS - 1


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


#: What stands further behind in a flow that is short; nothing is put into it.
_NOTHING: Final[list[list[Ticket]]] = []


class Flow:
    """The queue of one tenant in one lane of one tier, in order: by key, equal ones as they came."""

    __slots__ = (
        "account",
        "is_gone",
        "lane",
        "last_key",
        "listed",
        "lists_behind",
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

    def __init__(self, account: str, lane: Lane, tag: Tag) -> None:
        self.turn = 0.0  # it has its turn from this start tag on, by `Turns`
        self.turn_number = 0  # in which it was put in there
        self.requests = 0
        self.tag = tag
        self.lane = lane
        self.listed: list[Ticket] = []  # the first of what waits, in order
        self.last_key = 0.0  # no key in it is larger
        self.tokens = 0
        self.lists_behind = _NOTHING  # the rest, in order, in lists that are never empty
        self.is_gone = True  # it has no turn; its tenant's next request brings it back
        self.account = account
        self.weight = 1  # its tenant's, as it came back, or by the last push
        self.tokens_by_bits: list[int] | None = None  # by size in bits, once asked for while long
        self.since_s = 0.0  # it has been backlogged since then
        self.served_tokens = 0  # started since then

    def push(self, ticket: Ticket) -> None:
        """Queue a request."""
        key, listed = ticket.key, self.listed
        if not self.requests:
            self.since_s = ticket.arrived_at_s
            self.served_tokens = 0
            self.last_key = key
        if self.lists_behind:
            self._push_behind(ticket)
        elif key >= self.last_key:
            self.last_key = key
            listed.append(ticket)
        else:
            listed.insert(_place_after(listed, key), ticket)
        tokens = ticket.tokens
        self.requests += 1
        self.tokens += tokens
        if self.tokens_by_bits is not None:
            self.tokens_by_bits[_bits(tokens)] += tokens
        if len(listed) > _IN_ORDER:
            if self.tokens_by_bits is None:
                self.tokens_by_bits = self._sum_by_bits()  # later it would take too long
            self.lists_behind = [_cut(listed), *self.lists_behind]

    def _push_behind(self, ticket: Ticket) -> None:
        """Put a request into one of several lists."""
        key, behind = ticket.key, self.lists_behind
        if key > self.last_key:
            self.last_key = key
        low, high = 0, len(behind)
        while low < high:  # to the last list that begins with no larger key
            middle = (low + high) >> 1
            if key < behind[middle][0].key:
                high = middle
            else:
                low = middle + 1
        listed = behind[low - 1] if low else self.listed
        listed.insert(_place_after(listed, key), ticket)
        if low and len(listed) > _IN_ORDER:
            behind.insert(low, _cut(listed))

    def first(self) -> Ticket | None:
        """Return what is next in it; None when nothing waits."""
        return self.listed[0] if self.listed else None

    def leave(self, ticket: Ticket) -> None:
        """Take out a request that starts, leaves or is set aside."""
        tokens, listed = ticket.tokens, self.listed
        self.requests -= 1
        self.tokens -= tokens
        if self.tokens_by_bits is not None:
            self.tokens_by_bits[_bits(tokens)] -= tokens
        if listed[0] is ticket:
            self.lane.next = None
            del listed[0]
        elif not self.lists_behind or not _is_before(listed[-1], ticket):
            del listed[_place_of(listed, ticket)]
        else:
            self._leave_behind(ticket)
        if self.lists_behind and (not listed or self.requests <= _LOOKED_THROUGH):
            self.listed += self.lists_behind.pop(0)

    def _leave_behind(self, ticket: Ticket) -> None:
        """Take a request out that does not stand in the first of several lists."""
        behind = self.lists_behind
        low, high = 0, len(behind) - 1
        while low < high:
            middle = (low + high) >> 1
            if _is_before(behind[middle][-1], ticket):
                low = middle + 1
            else:
                high = middle
        listed = behind[low]
        del listed[_place_of(listed, ticket)]
        if not listed:
            del behind[low]

    def tokens_before(self, ticket: Ticket) -> int:
        """Return the tokens of what stands before one about to join; in a long queue by size alone."""
        listed, key = self.listed, ticket.key
        if self.requests <= _LOOKED_THROUGH and not self.lists_behind:
            tokens = self.tokens
            if key >= self.last_key:
                return tokens
            place = len(listed)
            while place:
                place -= 1
                one = listed[place]
                if one.key <= key:
                    break
                tokens -= one.tokens
            return tokens
        if self.tokens_by_bits is None:
            self.tokens_by_bits = self._sum_by_bits()
        return sum(self.tokens_by_bits[: _bits(ticket.tokens) + 1])

    def _sum_by_bits(self) -> list[int]:
        by_bits = [0] * _MOST_BITS
        for one in self.listed:
            by_bits[_bits(one.tokens)] += one.tokens
        return by_bits


def _place_after(listed: list[Ticket], key: float) -> int:
    """Return the place of a new request in a list in order: after equal keys, for they came before."""
    low, high = 0, len(listed)
    while low < high:
        middle = (low + high) >> 1
        if key < listed[middle].key:
            high = middle
        else:
            low = middle + 1
    return low


def _is_before(one: Ticket, other: Ticket) -> bool:
    """Say whether a request stands before another."""
    return one.key < other.key or (one.key == other.key and one.ticket_id < other.ticket_id)


def _place_of(listed: list[Ticket], ticket: Ticket) -> int:
    """Return the place of a request in a list in order that it stands in."""
    low, high = 0, len(listed) - 1
    while low < high:
        middle = (low + high) >> 1
        if _is_before(listed[middle], ticket):
            low = middle + 1
        else:
            high = middle
    return low


def _cut(listed: list[Ticket]) -> list[Ticket]:
    """Take the upper half off a list, and return it."""
    middle = len(listed) >> 1
    upper = listed[middle:]
    del listed[middle:]
    return upper


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
        self.flows: dict[str, Flow] = {}  # by tenant, also those that are gone
        self.turns = Turns()
        self.active_weight = 0  # of the flows that are not gone; 0: all are
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
            flow = self.flows[account] = Flow(account, self, tags.find(account))
        if flow.is_gone:
            flow.is_gone = False
            flow.weight = ticket.holder.weight
            self.active_weight += flow.weight
            start = flow.tag.finish
            if start < tags.virtual:
                start = tags.virtual
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

    def forget_gone(self) -> None:
        """Forget the flows of tenants that have no turn here."""
        self.flows = {account: flow for account, flow in self.flows.items() if not flow.is_gone}

    def head(self, tags: FairTags) -> Ticket | None:
        """Return the request that is next, and keep it at hand with its flow and start tag; None: empty."""
        turns, virtual = self.turns, tags.virtual
        while (flow := turns.first()) is not None:
            if not flow.requests:
                turns.drop_first()
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
