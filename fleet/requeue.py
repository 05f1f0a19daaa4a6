"""Started requests that are taken back to the queue so that an interactive one can start.

Off unless a tier's policy allows it. Tokens are counts, times monotonic seconds. Only requests are taken
back whose answer has not begun, the lowest tier first, the newest first: the least work is lost. Prevents:
interactive requests waiting for the end of long batch work, a batch request that is started and stopped
for ever, and one that loses its place, or its turn to wait, by having been started.

A request taken back waits at its old place in its flow, with its tier's whole timeout from then on. Nobody
is taken back while an interactive request waits already: then tiers share by weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleet.backlog import Backlog
from fleet.budget import NodeBudget
from fleet.offers import Lease, Ticket
from fleet.outcomes import TIERS, Tier
from fleet.placement import Outlook, Placement
from fleet.places import Places
from fleet.policy import Policy
from fleet.tickets import Tickets

#: How the node of the request that took the room was chosen, in words.
BY_RECALL = "room taken back from requests that had not begun to answer"
#: No more are taken back for one request.
MAX_TAKEN_BACK = 8


@dataclass(frozen=True)
class Requeued:
    """A started request waits again: `lease` is closed, stop its engine; `ticket` is its place now."""

    lease: Lease
    ticket: Ticket


class Recalls:
    """The started requests of one gate that may be taken back."""

    def __init__(
        self,
        placement: Placement,
        backlog: Backlog,
        tickets: Tickets,
        leases: Places[Lease],
    ) -> None:
        self._placement = placement
        self._backlog = backlog
        self._tickets = tickets
        self._leases = leases
        self._most = dict.fromkeys(TIERS, 0)
        self.by_node: dict[str, dict[int, Lease]] = {}  # what may be taken back, by number
        self._requeued: list[Requeued] = []
        self.is_on = False

    def apply(self, policy: Policy) -> None:
        """Take in how often each tier's requests may be taken back, and where they would stand again."""
        self._most = {tier: policy.tiers[tier].max_requeues for tier in TIERS}
        self.is_on = any(self._most.values())
        for leases in self.by_node.values():
            for lease in leases.values():
                self._tickets.move(lease.ticket)

    @property
    def is_due(self) -> bool:
        """Say whether `requeued` has something to tell."""
        return bool(self._requeued)

    def requeued(self) -> list[Requeued]:
        """Return what was taken back since the last call. Ask before `Gate.poll`."""
        found, self._requeued = self._requeued, []
        return found

    def is_recallable(self, lease: Lease) -> bool:
        """Say whether a lease may be taken back now or later, if nothing is streamed before."""
        return lease.lease_id in self.by_node.get(lease.node, ())

    def opened(self, lease: Lease) -> None:
        """Note a start."""
        if self.is_on and self._may_take(lease):
            self.by_node.setdefault(lease.node, {})[lease.lease_id] = lease

    def began(self, lease: Lease) -> None:
        """Note that the answer begins, or that the lease is closed: it cannot be taken back any more."""
        listed = self.by_node.get(lease.node)
        if listed is not None and listed.pop(lease.lease_id, None) is not None and not listed:
            del self.by_node[lease.node]

    def make_room(self, ticket: Ticket, now_s: float) -> NodeBudget | None:
        """Take back what it needs to start now; return the node with the room. None: nothing is taken."""
        queue = self._backlog.queue
        if not self.by_node or ticket.tier is not Tier.INTERACTIVE or queue.length(ticket.tier):
            return None
        chosen: tuple[NodeBudget, Sequence[Lease]] | None = None
        kept_for = self._backlog.kept_from(ticket)
        for book in ticket.line.pool or ():
            if book.name not in self.by_node or not self._may_use(ticket, book, kept_for, now_s):
                continue
            most = MAX_TAKEN_BACK if chosen is None else len(chosen[1]) - 1
            leases = self._enough(ticket, book, most, now_s)
            if leases is not None:
                chosen = book, leases
        if chosen is None:
            return None
        book, taken = chosen
        for lease in taken:
            self._take_back(lease, book, now_s)
        self._placement.rule, self._placement.candidates = BY_RECALL, 1
        return book

    def _may_use(self, ticket: Ticket, book: NodeBudget, kept_for: Iterable[Ticket], now_s: float) -> bool:
        placement = self._placement
        return (
            book.is_open(now_s)
            and book.name not in ticket.request.avoid
            and placement.may_use(ticket, book)
            and placement.class_has_room(ticket, book)
            and not any(placement.may_use(one, book) for one in kept_for)
        )

    def _enough(self, ticket: Ticket, book: NodeBudget, most: int, now_s: float) -> list[Lease] | None:
        """Return whom to take back on one node, at most `most`; None: they would not suffice."""
        freed: list[Lease] = []
        listed = [one for one in self.by_node[book.name].values() if self._may_wait_again(one, now_s)]
        listed.sort(key=lambda one: (TIERS.index(one.tier), one.opened_at_s, one.lease_id), reverse=True)
        for lease in listed[:most]:
            book.free(lease.tokens, lease.size_class, lease.held)
            freed.append(lease)
            if book.room >= ticket.room_tokens:
                break
        suffices = book.room >= ticket.room_tokens
        needed: list[Lease] = []
        for lease in reversed(freed):  # who was freed last was needed; earlier ones may have been too small
            book.book(lease.tokens, lease.size_class, lease.held)
            if suffices and book.room < ticket.room_tokens:
                book.free(lease.tokens, lease.size_class, lease.held)
                needed.append(lease)
        for lease in needed:
            book.book(lease.tokens, lease.size_class, lease.held)
        return needed[::-1] or None

    def _may_wait_again(self, lease: Lease, now_s: float) -> bool:
        """Say whether the policy in force allows it, and some open node could take it again."""
        return self._may_take(lease) and self._placement.outlook(lease.ticket, now_s) is Outlook.LATER

    def _may_take(self, lease: Lease) -> bool:
        """Say whether the policy in force allows it."""
        return lease.ticket.requeues < self._most[lease.tier]

    def _take_back(self, lease: Lease, book: NodeBudget, now_s: float) -> None:
        """Close a lease and queue its request again. Its tenant holds the same tokens as before."""
        self.began(lease)
        lease.is_open = False
        self._leases.remove(lease.place)
        book.free(lease.tokens, lease.size_class, lease.held)
        lease.ticket.line.tally.in_flight_tokens -= lease.tokens
        ticket = self._tickets.again(lease, now_s)
        ticket.holder.queued += 1
        self._backlog.join(ticket, now_s)
        self._requeued.append(Requeued(lease, ticket))
