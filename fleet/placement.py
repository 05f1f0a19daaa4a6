"""Which node a request goes to.

Tokens are counts, times monotonic seconds. A node is a candidate when it serves the model, may serve the
tier, is open and has room; among candidates the policy's strategy decides. Prevents: interactive work on
a spot node while a guaranteed one has room, and a prefix's home node being fed past the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from fleet.budget import NodeBudget, Shares
from fleet.messages import Assignment, NodeTarget
from fleet.offers import NodeState
from fleet.outcomes import TIERS, Tier
from fleet.policy import Routing, SizeClass

#: A prefix's home is passed over when it holds more than this times the mean load of the candidates.
HOME_LOAD_CAP = 1.25
_MASK = (1 << 64) - 1


class Outlook(Enum):
    """Whether a request that does not fit now could fit later."""

    LATER = "later"
    TOO_LARGE = "too_large"
    NO_NODES = "no_nodes"


@dataclass(frozen=True, slots=True)
class Need:
    """What a request asks of a node."""

    model: str
    tier: Tier
    tokens: int
    size_class: str | None
    class_ratio: float
    prefix_key: str | None = None
    avoid: tuple[str, ...] = ()


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
        self._candidates: dict[tuple[str, Tier], list[tuple[int, NodeBudget]]] = {}
        self._names: dict[tuple[str, Tier], set[str]] = {}
        self._routing = Routing()
        self._turn = 0

    def __iter__(self) -> Iterator[NodeBudget]:
        return iter(self._books.values())

    def apply(self, assignment: Assignment) -> None:
        """Take in nodes, shares and routing rules. Books of vanished nodes stay until they are empty."""
        self._routing = assignment.policy.routing
        shares = Shares(assignment.policy.admission.kv_target_ratio, assignment.kv_share_ratio)
        targets = {target.name: target for target in assignment.nodes}
        for name in targets.keys() - self._books.keys():
            self._books[name] = NodeBudget(name, hash_of(name))
        for name, book in list(self._books.items()):
            book.assign(targets.get(name), shares)
            if book.target is None and book.requests == 0:
                del self._books[name]
        self._candidates = {}
        for target in assignment.nodes:
            for model in target.models:
                for tier in TIERS:
                    rank = price_rank(target, tier, self._routing)
                    if rank is not None:
                        listed = self._candidates.setdefault((model, tier), [])
                        listed.append((rank, self._books[target.name]))
        self._names = {key: {book.name for _, book in listed} for key, listed in self._candidates.items()}

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

    def any_open(self, now_s: float) -> bool:
        """Say whether any node takes work."""
        return any(book.is_open(now_s) for book in self._books.values())

    def choose(self, need: Need, keep_free: Sequence[Need], now_s: float) -> NodeBudget | None:
        """Return the node to send to now, or None when none has room. O(nodes).

        Nodes that a request in `keep_free` waits for are left out. Nodes in `need.avoid` come last.
        """
        fitting = self._fitting(need, keep_free, now_s)
        if not fitting:
            return None
        if need.avoid:
            fitting = [one for one in fitting if one[1].name not in need.avoid] or fitting
        first_rank = min(rank for rank, _ in fitting)
        books = [book for rank, book in fitting if rank == first_rank]
        self._turn += 1  # ties go round, or every gateway's first request goes to the same node
        if len(books) == 1:
            return books[0]
        if need.prefix_key is not None and self._routing.prefix_affinity:
            return self._home(need.prefix_key, books)
        start = self._turn % len(books)
        books = books[start:] + books[:start]
        if self._routing.strategy == "kv_room":
            return max(books, key=_room)
        return min(books, key=_load)

    def _fitting(self, need: Need, keep_free: Sequence[Need], now_s: float) -> list[tuple[int, NodeBudget]]:
        return [
            ranked
            for ranked in self._candidates.get((need.model, need.tier), ())
            if ranked[1].is_open(now_s)
            and ranked[1].has_room(need.tokens, need.size_class, need.class_ratio)
            and not (keep_free and self._is_kept(ranked[1], need, keep_free))
        ]

    def _home(self, prefix_key: str, books: list[NodeBudget]) -> NodeBudget:
        """Return the highest-weighted node that is not hot.

        Source: Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads" (SODA 2018).
        """
        prefix_hash = hash_of(prefix_key)
        total = sum(book.others_requests + book.requests for book in books)
        budget = sum(book.budget_tokens or 0 for book in books)
        cap = HOME_LOAD_CAP * (total + 1) / budget
        cool = [book for book in books if _load(book) <= cap] or [min(books, key=_load)]
        return max(cool, key=lambda book: affinity(prefix_hash, book.seed))

    def outlook(self, need: Need, now_s: float) -> Outlook:
        """Say whether `need` could ever fit: on an open node, or at least on a node now closed."""
        fits_closed = False
        any_open = False
        for _, book in self._candidates.get((need.model, need.tier), ()):
            fits = need.tokens <= book.largest(need.class_ratio)
            if book.is_open(now_s):
                any_open = True
                if fits:
                    return Outlook.LATER
            fits_closed = fits_closed or fits
        return Outlook.TOO_LARGE if any_open and not fits_closed else Outlook.NO_NODES

    def largest_tokens(self, need: Need) -> int:
        """Return the largest request any candidate could hold, in tokens, for the refusal's message."""
        books = self._candidates.get((need.model, need.tier), ())
        return max((book.largest(need.class_ratio) for _, book in books), default=0)

    def may_use(self, need: Need, book: NodeBudget) -> bool:
        """Say whether `need` could ever run on `book`'s node."""
        names = self._names.get((need.model, need.tier))
        return names is not None and book.name in names and need.tokens <= book.largest(need.class_ratio)

    def _is_kept(self, book: NodeBudget, need: Need, keep_free: Sequence[Need]) -> bool:
        """Say whether a request waits for the room that `need` would take on `book`'s node.

        One that waits for its own size class only, while the node has room, is not kept from by others.
        """
        return any(
            self.may_use(one, book)
            and (one.size_class == need.size_class or not book.has_room(one.tokens, None, 1.0))
            for one in keep_free
        )


def _load(book: NodeBudget) -> float:
    """Requests in the engine, others' and ours, per token of budget: big nodes carry more."""
    return (book.others_requests + book.requests) * book.per_token


def _room(book: NodeBudget) -> int:
    return book.limit_tokens - book.tokens
