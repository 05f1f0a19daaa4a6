"""Which node a request goes to.

Tokens are counts, times monotonic seconds. A node is a candidate when it serves the model, may serve the
tier, is open and has room; among candidates the policy's strategy decides. Prevents: interactive work on
a spot node while a guaranteed one has room, and a prefix's home node being fed past the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import groupby, product
from typing import Final

from fleet.budget import STALE_AFTER_S, NodeBudget, Pool, Shares
from fleet.messages import Assignment, NodeTarget
from fleet.offers import NodeState, Ticket
from fleet.outcomes import TIERS, Tier
from fleet.overbooking import Overbooking, deviations
from fleet.policy import Admission, Routing, SizeClass
from fleet.pool_names import classes_by_pool, pool_names

#: A prefix's home is passed over when it holds more than this times the mean load of the candidates.
HOME_LOAD_CAP = 1.25
#: Rules by which a node is chosen among those with room, in words.
BY_LOAD: Final = "least loaded"
BY_ROOM: Final = "most KV room"
BY_PREFIX: Final = "home of the prompt's beginning, while not hot"
REGARDLESS = "least loaded, full or not: node_room is not enforced"
_MASK: Final = (1 << 64) - 1


class Outlook(Enum):
    """Whether a request that does not fit now could fit later."""

    LATER = "later"
    TOO_LARGE = "too_large"
    NO_NODES = "no_nodes"


LATER: Final = Outlook.LATER  # to get a member of an enumeration costs as much as a call


def price_rank(target: NodeTarget, tier: Tier, routing: Routing) -> int | None:
    """Return the order in which price classes are tried, smaller first; None: not for this tier.

    Interactive takes spot only when no guaranteed node has room, whatever the strategy. `cost_aware`
    sends the other spot tiers to spot first, and prefers reserved (already paid) to on-demand nodes.
    """
    is_spot = target.price_class == "spot"
    if is_spot and tier not in routing.spot_tiers:
        return None
    if routing.strategy == "cost_aware":
        if is_spot:
            return 3 if tier is Tier.INTERACTIVE else 0
        return 1 if target.price_class == "reserved" else 2
    return 1 if is_spot and tier is Tier.INTERACTIVE else 0


def stand_ins(assignment: Assignment) -> set[frozenset[str]]:
    """Return the sets of nodes that serve the same requests: those of a name (`pool_names`) and a tier.

    Nodes that drain stand in for nobody.
    """
    policy = assignment.policy
    bound = classes_by_pool(policy.admission.size_classes)
    found: dict[tuple[str, Tier], set[str]] = {}
    for target in assignment.nodes:
        if target.draining:
            continue
        for name, tier in product(pool_names(target, bound), TIERS):
            if price_rank(target, tier, policy.routing) is not None:
                found.setdefault((name, tier), set()).add(target.name)
    return {frozenset(names) for names in found.values()}


def size_class_of(tokens: int, classes: tuple[SizeClass, ...]) -> SizeClass | None:
    """Return the smallest class that covers `tokens`; None: above all, only the node bounds it."""
    covering = [one for one in classes if tokens <= one.max_tokens]
    return min(covering, key=lambda one: one.max_tokens) if covering else None


def affinity(prefix_hash: int, seed: int) -> int:
    """Return the rendezvous weight (64 bits) of a node for a prefix; the largest is its home.

    Source: Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates" (1998); mixing
    function of SplitMix64.
    """
    mixed = ((prefix_hash ^ seed) + 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def hash_of(text: str) -> int:
    """Return a stable 64-bit hash, the same on every gateway."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class Placement:
    """The books of all nodes, and the choice among them."""

    def __init__(self) -> None:
        self._books: dict[str, NodeBudget] = {}
        self._pools: dict[tuple[str, Tier], Pool] = {}
        self._class_ratios: dict[str, float] = {}
        self._routing = Routing()
        self._by_room = False
        self.rule = ""  # by which the last node was chosen
        self.candidates = 0  # among how many

    def __iter__(self) -> Iterator[NodeBudget]:
        return iter(self._books.values())

    @property
    def pools(self) -> Mapping[tuple[str, Tier], Pool]:
        """Return the nodes of each (name, tier) that has any; names as in `fleet.pool_names`."""
        return self._pools

    def apply(self, assignment: Assignment) -> None:
        """Take in nodes, shares and routing rules. Books of vanished nodes stay until they are empty."""
        policy = assignment.policy
        self._routing = policy.routing
        self._by_room = policy.routing.strategy == "kv_room"
        self._class_ratios = {one.name: one.kv_share_ratio for one in policy.admission.size_classes}
        targets = {target.name: target for target in assignment.nodes}
        for name in targets.keys() - self._books.keys():
            self._books[name] = NodeBudget(name, hash_of(name))
        self._pools = self._made_pools(assignment)
        pools = list({id(pool): pool for pool in self._pools.values()}.values())
        for pool in pools:
            pool.overlapping = tuple(one for one in pools if not one.names.isdisjoint(pool.names))
        shares = Shares(
            policy.admission.kv_target_ratio, assignment.kv_share_ratio, _overbooking(policy.admission)
        )
        for name, book in list(self._books.items()):
            book.belong(pool for pool in pools if name in pool.names)
            book.assign(targets.get(name), shares)
            self.forget_if_empty(book)

    def _made_pools(self, assignment: Assignment) -> dict[tuple[str, Tier], Pool]:
        """Return the pool of each (name, tier); those with the same nodes in the same order are one."""
        ranked: dict[tuple[str, Tier], list[tuple[int, str]]] = {}
        bound = classes_by_pool(assignment.policy.admission.size_classes)
        for target in assignment.nodes:
            ranks = [(tier, price_rank(target, tier, self._routing)) for tier in TIERS]
            for name in pool_names(target, bound):
                for tier, rank in ranks:
                    if rank is not None:
                        ranked.setdefault((name, tier), []).append((rank, target.name))
        # Equal nodes are tried from another start by each gateway, or all would open on the same one.
        turn = hash_of(assignment.gateway)
        made: dict[tuple[tuple[int, str], ...], Pool] = {}
        pools: dict[tuple[str, Tier], Pool] = {}
        for key, listed in ranked.items():
            start = turn % len(listed)
            order = tuple(sorted(listed[start:] + listed[:start], key=lambda one: one[0]))
            if order not in made:
                groups = [[self._books[name] for _, name in group] for _, group in groupby(order, _rank)]
                made[order] = Pool(groups)
            pools[key] = made[order]
        return pools

    def observe(self, states: Iterable[NodeState]) -> None:
        """Take in polled states; names that are not ours are ignored."""
        for state in states:
            book = self._books.get(state.name)
            if book is not None:
                book.observe(state)

    def book(self, name: str) -> NodeBudget:
        """Return a node's book; it exists while the node is assigned or holds a lease."""
        return self._books[name]

    def forget_if_empty(self, book: NodeBudget) -> None:
        """Drop the book of a node that left the assignment once its last lease is closed."""
        if book.target is None and book.requests == 0:
            self._books.pop(book.name, None)

    def pool(self, name: str, tier: Tier) -> Pool | None:
        """Return the nodes of one of the `pool_names` that may serve a tier; None: there are none."""
        return self._pools.get((name, tier))

    def any_open(self, now_s: float) -> bool:
        """Say whether any node takes work."""
        return any(book.is_open(now_s) for book in self._books.values())

    def _ratio(self, ticket: Ticket) -> float:
        return 1.0 if ticket.size_class is None else self._class_ratios.get(ticket.size_class, 1.0)

    def count_most_room(self, ticket: Ticket) -> int:
        """Return exactly the tokens that fit on its roomiest node; -1: none takes a request. O(nodes)."""
        pool = ticket.line.pool
        return -1 if pool is None else pool.count_most_room()

    def may_have_room(self, ticket: Ticket) -> bool:
        """Say whether looking for a node is worth it: False is sure, True is not. O(1)."""
        pool = ticket.line.pool
        return pool is not None and ticket.room_tokens <= pool.most_room

    def most_room(self, ticket: Ticket) -> int:
        """Return at least the tokens that fit on its roomiest node; -1: none takes a request."""
        pool = ticket.line.pool
        return -1 if pool is None else pool.most_room

    def is_contended(self, ticket: Ticket) -> bool:
        """Say whether it could run on a node that something waits for."""
        pool = ticket.line.pool
        if pool is None:
            return False
        return pool.waiting > 0 or any(one.waiting for one in pool.overlapping)

    def place_freely(self, ticket: Ticket, now_s: float) -> NodeBudget | None:
        """Return the node to send to while nothing waits; None when none has room."""
        pool, request = ticket.line.pool, ticket.request
        if pool is None or ticket.room_tokens > pool.most_room:
            return None
        if request.avoid or request.prefix_key or ticket.size_class:
            return self.choose(ticket, (), now_s)
        tokens, seen_since_s, by_room = ticket.room_tokens, now_s - STALE_AFTER_S, self._by_room
        for group in pool.groups:  # as `_choose_freely`, which would cost a call for each request
            book = group.choose(tokens, seen_since_s, by_room)
            if book is not None:
                self.rule = BY_ROOM if by_room else BY_LOAD
                self.candidates = group.candidates
                return book
        pool.count_most_room()
        return None

    def choose(self, ticket: Ticket, keep_free: Sequence[Ticket], now_s: float) -> NodeBudget | None:
        """Return the node to send to now, or None when none has room. O(nodes).

        Nodes that a request in `keep_free` waits for are left out. Nodes in `avoid` come last.
        """
        request = ticket.request
        pool = ticket.line.pool
        if pool is None:
            return None
        if not (keep_free or request.avoid or request.prefix_key or ticket.size_class):
            return self._choose_freely(pool, ticket.room_tokens, now_s - STALE_AFTER_S)
        has_room = False
        for avoid in (request.avoid, ()) if request.avoid else ((),):
            for group in pool.groups:
                books = [
                    book
                    for book in group
                    if book.room >= ticket.room_tokens and now_s - book.seen_at_s <= STALE_AFTER_S
                ]
                has_room = has_room or bool(books)
                if books and (keep_free or avoid or ticket.size_class is not None):
                    books = [book for book in books if self._may_take(book, ticket, keep_free, avoid)]
                if books:
                    self.candidates = len(books)
                    return self._best(books, request.prefix_key)
        if not has_room:
            pool.count_most_room()
        return None

    def _choose_freely(self, pool: Pool, tokens: int, seen_since_s: float) -> NodeBudget | None:
        """Return the node for a request that no rule but the strategy's binds."""
        by_room = self._by_room
        self.rule = BY_ROOM if by_room else BY_LOAD
        for group in pool.groups:
            book = group.choose(tokens, seen_since_s, by_room)
            if book is not None:
                self.candidates = group.candidates
                return book
        pool.count_most_room()
        return None

    def keeps_all(self, waiting: Ticket, ticket: Ticket) -> bool:
        """Say whether `waiting`, not to be passed, could use each node of the other. False: perhaps."""
        pool = waiting.line.pool
        if pool is None or pool is not ticket.line.pool:
            return False
        if waiting.size_class is None:
            return waiting.tokens <= (pool.known_budgets or pool.budgets())[0]
        smallest = int(pool.budgets()[0] * self._ratio(waiting))
        return waiting.size_class == ticket.size_class and waiting.tokens <= smallest

    def _may_take(
        self, book: NodeBudget, ticket: Ticket, keep_free: Sequence[Ticket], avoid: tuple[str, ...]
    ) -> bool:
        if book.name in avoid:
            return False
        size_class = ticket.size_class
        if size_class is not None and not book.class_has_room(
            ticket.tokens, size_class, self._ratio(ticket)
        ):
            return False
        return not any(self._is_kept(book, ticket, one) for one in keep_free)

    def _is_kept(self, book: NodeBudget, ticket: Ticket, waiting: Ticket) -> bool:
        """Say whether `waiting` waits for the room that `ticket` would take on `book`'s node.

        One that waits there for its own size class is not kept from by others.
        """
        size_class = waiting.size_class
        if (
            size_class is not None
            and size_class != ticket.size_class
            and not book.class_has_room(waiting.tokens, size_class, self._ratio(waiting))
        ):
            return False
        return self.may_use(waiting, book)

    def _best(self, books: list[NodeBudget], prefix_key: str | None) -> NodeBudget:
        if prefix_key is not None and self._routing.prefix_affinity and len(books) > 1:
            self.rule = BY_PREFIX
            return self._home(prefix_key, books)
        if self._routing.strategy == "kv_room":
            self.rule = BY_ROOM
            return max(books, key=_room)
        self.rule = BY_LOAD
        return min(books, key=_load)

    def _home(self, prefix_key: str, books: list[NodeBudget]) -> NodeBudget:
        """Return the highest-weighted node that is not hot.

        Source: Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads" (SODA 2018).
        """
        prefix_hash = hash_of(prefix_key)
        total = sum(book.others_requests + book.requests for book in books)
        budget = sum(book.budget_tokens or 0 for book in books)
        cap = HOME_LOAD_CAP * (total + 1) / max(1, budget)
        cool = [book for book in books if _load(book) <= cap] or [min(books, key=_load)]
        return max(cool, key=lambda book: affinity(prefix_hash, book.seed))

    def outlook(self, ticket: Ticket, now_s: float) -> Outlook:
        """Say whether it could ever fit: on an open node, or at least on a node now closed."""
        pool = ticket.line.pool
        if pool is None:
            return Outlook.NO_NODES
        ratio = 1.0 if ticket.size_class is None else self._ratio(ticket)
        if pool.surely_fits_one(ticket.tokens, ratio, now_s):
            return LATER
        fits_closed = any_open = False
        for book in pool:
            fits = ticket.tokens <= book.largest(ratio)
            if book.is_open(now_s):
                any_open = True
                if fits:
                    pool.remember_roomy(book)
                    return LATER
            fits_closed = fits_closed or fits
        return Outlook.TOO_LARGE if any_open and not fits_closed else Outlook.NO_NODES

    def class_has_room(self, ticket: Ticket, book: NodeBudget) -> bool:
        """Say whether its size class may hold it on a node."""
        size_class = ticket.size_class
        return size_class is None or book.class_has_room(ticket.tokens, size_class, self._ratio(ticket))

    def choose_regardless(self, ticket: Ticket, now_s: float) -> NodeBudget | None:
        """Return the least loaded open node that could ever hold the request, full or not; None: none."""
        request, ratio = ticket.request, self._ratio(ticket)
        books = [
            book
            for book in ticket.line.pool or ()
            if book.is_open(now_s) and ticket.tokens <= book.largest(ratio)
        ]
        books = [book for book in books if book.name not in request.avoid] or books
        self.rule, self.candidates = REGARDLESS, len(books)
        return min(books, key=_load, default=None)

    def largest_tokens(self, ticket: Ticket) -> int:
        """Return the largest request of its class any node could hold, in tokens."""
        pool = ticket.line.pool or ()
        return max((book.largest(self._ratio(ticket)) for book in pool), default=0)

    def may_use(self, ticket: Ticket, book: NodeBudget) -> bool:
        """Say whether it could ever run on `book`'s node."""
        pool = ticket.line.pool
        return pool in book.pools and ticket.tokens <= book.largest(self._ratio(ticket))


def _overbooking(admission: Admission) -> Overbooking | None:
    if admission.reservation == "quantile":
        return None
    return Overbooking(deviations(admission.overflow_probability), admission.overbook_guard_ratio)


def _rank(ranked: tuple[int, str]) -> int:
    return ranked[0]


def _load(book: NodeBudget) -> float:
    return book.load  # big nodes carry more


def _room(book: NodeBudget) -> int:
    return book.room
