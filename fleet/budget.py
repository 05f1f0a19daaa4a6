"""What one gateway holds on one node, and how much more that node takes.

Tokens are KV tokens (prompt + reserved output), times monotonic seconds. A node's budget is
capacity * kv_target_ratio * this gateway's share, further bounded by what the node said at its last poll
and by what was sent since. Prevents: 200 arrivals between two polls landing on one node, and a node whose
state is unknown being taken for an empty one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from fleet.gate_snapshot import NodeUse
from fleet.messages import NodeTarget
from fleet.offers import Holding, NodeState
from fleet.overbooking import Expected, Overbooking

#: A node not heard of for longer takes no new work.
STALE_AFTER_S: Final = 5.0
_NO_BOUND: Final = 1 << 60
_NOT_COUNTED: Final = -2


@dataclass(frozen=True)
class Shares:
    """How much of each node is ours."""

    kv_target_ratio: float
    kv_share_ratio: float
    overbooking: Overbooking | None = None


class Group:
    """Nodes of one rank: room and load of each at hand, in the order in which equal ones are tried."""

    __slots__ = ("books", "candidates", "least_room", "loads", "rooms", "seen_since_s")

    def __init__(self, books: list[NodeBudget]) -> None:
        self.books = books
        self.rooms = [book.room for book in books]
        self.loads = [book.load for book in books]
        self.least_room = _NOT_COUNTED  # at most the room of each node, once counted
        self.seen_since_s = float("-inf")  # each node was heard of since then, or later
        self.candidates = 0  # nodes with room at the last choice

    def __iter__(self) -> Iterator[NodeBudget]:
        return iter(self.books)

    def choose(self, tokens: int, seen_since_s: float, by_room: bool) -> NodeBudget | None:
        """Return the least loaded node with room, or the roomiest; of equal ones the first."""
        if self.least_room == _NOT_COUNTED:
            self.least_room = min(self.rooms)
            self.seen_since_s = min(book.seen_at_s for book in self.books)
        if tokens <= self.least_room and self.seen_since_s >= seen_since_s:
            self.candidates = len(self.books)
            if by_room:
                return self.books[self.rooms.index(max(self.rooms))]
            loads = self.loads
            return self.books[loads.index(min(loads))]
        found = [book for book in self.books if book.room >= tokens and book.seen_at_s >= seen_since_s]
        self.candidates = len(found)
        if not found:
            return None
        best = found[0]
        if len(found) > 1:
            for book in found:  # as `max` and `min`, which would call a function for each
                if book.room > best.room if by_room else book.load < best.load:
                    best = book
        return best


class Pool:
    """Nodes that serve the same requests, cheapest rank first.

    `most_room` is at least the room of its roomiest node: what needs more need not look.
    """

    __slots__ = (
        "_roomy",
        "groups",
        "is_counted",
        "known_budgets",
        "most_room",
        "names",
        "overlapping",
        "waiting",
    )

    def __init__(self, groups: list[list[NodeBudget]]) -> None:
        self.groups = [Group(books) for books in groups]
        self.names = frozenset(book.name for books in groups for book in books)
        self.overlapping: tuple[Pool, ...] = (self,)  # pools that have a node in common with it
        self.waiting = 0  # requests that wait for these nodes
        self.most_room = -1
        self.is_counted = False  # `most_room` is exact
        self.known_budgets: tuple[int, int] | None = None
        self._roomy: NodeBudget | None = None  # open when last asked, and large

    def __iter__(self) -> Iterator[NodeBudget]:
        for group in self.groups:
            yield from group

    def forget_budgets(self) -> None:
        """Note that the budget of a node changed, or that it was heard of."""
        self.known_budgets = None
        for group in self.groups:
            group.least_room = _NOT_COUNTED

    def budgets(self) -> tuple[int, int]:
        """Return the smallest and the largest node's budget in tokens; one that is not known is 0."""
        found = self.known_budgets
        if found is None:
            listed = [book.budget_tokens or 0 for book in self]
            found = self.known_budgets = (min(listed, default=0), max(listed, default=0))
        return found

    def count_most_room(self) -> int:
        """Make `most_room` exact and return it. O(nodes), once after its roomiest node has less."""
        if self.is_counted:
            return self.most_room
        most = -1
        for group in self.groups:
            for room in group.rooms:  # as `max`, which would compare objects
                if room > most:
                    most = room
        self.most_room = most
        self.is_counted = True
        return most

    def surely_fits_one(self, tokens: int, class_ratio: float, now_s: float) -> bool:
        """Say whether the open node remembered could ever hold `tokens`. False: perhaps another. O(1)."""
        roomy = self._roomy
        return (
            roomy is not None
            and roomy.closed_because is None
            and now_s - roomy.seen_at_s <= STALE_AFTER_S
            and tokens <= int((roomy.budget_tokens or 0) * class_ratio)
        )

    def remember_roomy(self, book: NodeBudget) -> None:
        """Note an open node that could hold a request, to be asked first for the next one."""
        self._roomy = book


class NodeBudget:
    """One node's book: own reservations against budget and live state."""

    __slots__ = (
        "_own_requests_seen",
        "_own_tokens_seen",
        "_waiting_before",
        "budget_tokens",
        "closed_because",
        "expected",
        "held_by_class",
        "limit_requests",
        "limit_tokens",
        "load",
        "name",
        "others_requests",
        "per_token",
        "places",
        "pools",
        "requests",
        "room",
        "seed",
        "seen_at_s",
        "shares",
        "state",
        "target",
        "tokens",
    )

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.seed = seed
        self.target: NodeTarget | None = None
        self.shares = Shares(1.0, 1.0)
        self.state: NodeState | None = None
        self.seen_at_s = float("-inf")
        self._waiting_before: int | None = None
        self._own_tokens_seen = 0
        self._own_requests_seen = 0
        self.requests = 0
        self.tokens = 0
        self.expected = Expected()
        self.held_by_class: dict[str, int] = {}
        self.others_requests = 0
        self.budget_tokens: int | None = None
        self.per_token = 0.0
        self.limit_tokens = 0
        self.limit_requests = 0
        self.closed_because: str | None = "not seen yet"
        self.room = -1  # tokens that fit now; -1: not even an empty request does
        self.load = 0.0  # requests in the engine, others' and ours, per token of budget
        self.pools: list[Pool] = []
        self.places: list[tuple[Pool, Group, int]] = []  # where its room and load are kept at hand

    def belong(self, pools: Iterable[Pool]) -> None:
        """Take in the pools that it is in."""
        self.pools = list(pools)
        self.places = [
            (pool, group, group.books.index(self))
            for pool in self.pools
            for group in pool.groups
            if self in group.books
        ]

    def assign(self, target: NodeTarget | None, shares: Shares) -> None:
        """Take in what the assignment says; None: the node is no longer ours. Leases stay."""
        self.target = target
        self.shares = shares
        self._refresh()

    def observe(self, state: NodeState) -> None:
        """Take in what the node said. States older than the last one are ignored."""
        if state.seen_at_s <= self.seen_at_s:
            return
        self._waiting_before = self.state.waiting if self.state is not None else state.waiting
        self.state = state
        self.seen_at_s = state.seen_at_s
        self.expected.observe(state)
        rule = self.shares.overbooking
        self._own_tokens_seen = self.tokens if rule is None else self.expected.in_use(self.tokens, rule)
        self._own_requests_seen = self.requests
        self._refresh()

    def _refresh(self) -> None:
        """Work out budget and limits from assignment and state."""
        target, state = self.target, self.state
        capacity = target.kv_capacity_tokens if target is not None else None
        is_declared = capacity is not None
        if capacity is None and state is not None:
            capacity = state.kv_capacity_tokens
        self.budget_tokens = self._budget_of(capacity)
        for pool in self.pools:
            pool.forget_budgets()
        self.per_token = 1.0 / self.budget_tokens if self.budget_tokens else 0.0
        self.closed_because = self._reason_closed(is_declared)
        if self.closed_because is not None or state is None or capacity is None:
            self.limit_tokens = self.limit_requests = 0
            self.hold(0, 0, None, None)
            return
        measured = int((state.kv_used_ratio or 0.0) * capacity)  # None only where capacity is declared
        others_tokens = max(0, measured - self._own_tokens_seen)
        live_limit = int(capacity * self.shares.kv_target_ratio) - others_tokens
        self.limit_tokens = min(self.budget_tokens or 0, live_limit)
        rule = self.shares.overbooking
        if rule is not None and (state.kv_used_ratio or 0.0) > rule.guard_ratio:
            self.limit_tokens = -1  # open, and full
        self._refresh_requests(state)
        self.hold(0, 0, None, None)

    def _budget_of(self, capacity: int | None) -> int | None:
        if capacity is None:
            return None
        return int(capacity * self.shares.kv_target_ratio * self.shares.kv_share_ratio)

    def _refresh_requests(self, state: NodeState) -> None:
        in_engine = (state.running or 0) + (state.waiting or 0)
        self.others_requests = max(0, in_engine - self._own_requests_seen)
        limit = _NO_BOUND
        max_num_seqs = self.target.max_num_seqs if self.target is not None else None
        if max_num_seqs is not None:
            limit = max(1, int(max_num_seqs * self.shares.kv_share_ratio))
            limit = min(limit, max_num_seqs - self.others_requests)
        # As in CoDel, the smaller of two readings is the queue that stands; the rest is in passing.
        standing = min(state.waiting or 0, self._waiting_before or 0)
        if standing > 0:
            limit = min(limit, self._own_requests_seen - standing)
        if state.most_requests is not None:
            limit = min(limit, state.most_requests)
        self.limit_requests = max(0, limit)

    def _reason_closed(self, is_declared: bool) -> str | None:
        if self.target is None:
            return "not in the assignment"
        if self.target.draining:
            return "draining"
        if self.state is None:
            return "not seen yet"
        if not self.state.healthy:
            return "unhealthy"
        if self.budget_tokens is None:
            return "KV capacity is not known"
        if self.state.kv_used_ratio is None and not is_declared:
            return "KV use is not known"
        return None

    def is_open(self, now_s: float) -> bool:
        """Say whether the node takes work at all: known, healthy, seen within `STALE_AFTER_S`."""
        return self.closed_because is None and now_s - self.seen_at_s <= STALE_AFTER_S

    def hold(self, requests: int, tokens: int, size_class: str | None, held: Holding | None) -> None:
        """Hold so many requests and tokens more, or less; `held`: what of them on average. None: all."""
        self.requests = requests = self.requests + requests
        self.tokens = in_use = self.tokens + tokens
        if size_class is not None:
            self.held_by_class[size_class] = self.held_by_class.get(size_class, 0) + tokens
        if held is not None:
            self.expected.count(tokens, held)
        self.load = load = (self.others_requests + requests) * self.per_token
        rule = self.shares.overbooking
        if rule is not None:
            in_use = self.expected.in_use(in_use, rule)
        room = self.limit_tokens - in_use
        if room < 0 or requests >= self.limit_requests:
            room = -1
        before, self.room = self.room, room
        for pool, group, place in self.places:
            group.rooms[place] = room
            group.loads[place] = load
            if room >= pool.most_room:
                pool.most_room = room
                pool.is_counted = True
            elif before == pool.most_room:
                pool.is_counted = False
            if room < group.least_room:
                group.least_room = room

    def class_has_room(self, tokens: int, size_class: str, class_ratio: float) -> bool:
        """Say whether a size class may hold `tokens` more here."""
        return self.held_by_class.get(size_class, 0) + tokens <= self.largest(class_ratio)

    def largest(self, class_ratio: float) -> int:
        """Return the largest request this node could ever hold for us, in tokens; 0 if not known."""
        return int((self.budget_tokens or 0) * class_ratio)

    def book(self, tokens: int, size_class: str | None, held: Holding | None = None) -> None:
        """Hold tokens for one more request; `held`: what it holds of them on average. None: all."""
        self.hold(1, tokens, size_class, held)

    def free(self, tokens: int, size_class: str | None, held: Holding | None = None) -> None:
        """Return one request's tokens, exactly as booked."""
        self.hold(-1, -tokens, size_class, held)

    def use(self, now_s: float) -> NodeUse:
        """Return what is held and why the node is closed, if it is."""
        closed_because = self.closed_because
        if closed_because is None and not self.is_open(now_s):
            closed_because = f"not seen for {now_s - self.seen_at_s:.1f} s"
        state, measured = self.state, None
        if state is not None and state.kv_capacity_tokens is not None and state.kv_used_ratio is not None:
            measured = int(state.kv_used_ratio * state.kv_capacity_tokens)
        return NodeUse(
            self.requests,
            self.tokens,
            self.budget_tokens,
            closed_because,
            self.tokens - self.expected.left_out,
            measured,
            self.shares.overbooking is not None and self.expected.is_used,
        )
