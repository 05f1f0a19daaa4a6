"""The gate: decides for each request whether it starts now, waits, or is refused.

One writer, no clock, no I/O: `now_s` is monotonic seconds and never goes back, randomness is passed in.
Tokens are counts. Prevents: reservations that leak, overload passed on to engines, and one tenant or
tier standing in front of all others.

    gate = Gate(random.Random())
    gate.apply(assignment, now_s); gate.observe(node_states, now_s)
    match gate.offer(request, now_s):
        case Dispatch(node, lease): send, then gate.release(lease, ...) in a finally
        case Queued(ticket): wait for Started or Evicted out of gate.poll(now_s); if the client leaves,
            gate.cancel(ticket, now_s)
        case Refused(outcome, reason, retry_after_s, ...): answer HTTP_STATUS[outcome]

The owner calls `poll` after every `release`, `cancel`, `observe` and `apply`, and whenever
`next_deadline_s()` is reached; an `offer` can make it due at once.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

from fleet.accounts import Accounts
from fleet.backlog import Backlog
from fleet.budget import NodeBudget
from fleet.entry import NOTHING, Entry
from fleet.gate_snapshot import GateSnapshot
from fleet.limiters import Limiter, Mode
from fleet.lines import Lines
from fleet.messages import Assignment
from fleet.offers import (
    Decision,
    Dispatch,
    Event,
    Evicted,
    Holding,
    Lease,
    NodeState,
    Queued,
    Refused,
    Request,
    Started,
    Ticket,
)
from fleet.outcomes import TIERS, Outcome, Tier
from fleet.phases import Phases
from fleet.placement import LATER, Placement
from fleet.places import Places
from fleet.queue_bounds import QueueBounds
from fleet.refusals import Refusals
from fleet.requeue import Recalls
from fleet.tally import Tally
from fleet.tickets import Tickets

_COMPLETED: Final = Outcome.COMPLETED  # to get a member of an enumeration costs as much as a call


class Gate:
    """Admission of one gateway. Closed (NO_NODES) until the first assignment."""

    def __init__(
        self, rng: random.Random, *, prior_output_tokens: int = 1024, max_queued_requests: int | None = None
    ) -> None:
        """Make a closed gate.

        `prior_output_tokens`: reserved for output until an endpoint has 200 completions.
        `max_queued_requests`: bounds all tiers together, beside the policy's own bound. At one of them
        an interactive request displaces the newest queued ones of the lowest tier.
        """
        self._placement = Placement()
        self.accounts = Accounts()
        self._tally = Tally()
        lines = Lines(self._tally)
        self._backlog = Backlog(self._placement, lines)
        self._queue = self._backlog.queue
        self._tickets = Tickets(lines, prior_output_tokens)
        self._refusals = Refusals(rng)
        self.phases = Phases(self._placement, self._refusals)
        self._entry = Entry(self.accounts, self._refusals)
        self._is_due = False
        self._bounds = QueueBounds(self._backlog, self._refusals, max_queued_requests)
        self._leases: Places[Lease] = Places()
        self.recalls = Recalls(self._placement, self._backlog, self._tickets, self._leases)
        self._events: list[Event] = []  # decided outside `poll`, handed out by the next one
        self._now_s = 0.0

    @property
    def is_ready(self) -> bool:
        """Say whether an assignment is in force and a node was open when last heard of."""
        return self._entry.policy is not None and any(
            book.closed_because is None for book in self._placement
        )

    def apply(self, assignment: Assignment, now_s: float) -> None:
        """Put an assignment in force. Whether it is newer is the caller's question.

        Changes no bucket level (but for clamping to a smaller burst), no lease and no place in a flow: a
        push mints no capacity. New weights hold at once. Nodes that vanish keep their leases until
        released; what waits and has no node left in the assignment leaves with the next poll, as NO_NODES.
        """
        policy = assignment.policy
        self._entry.apply(policy)
        self._tickets.apply(policy)
        self._bounds.apply(policy)
        self._refusals.bounds = policy.retry_after
        self.accounts.apply(assignment, now_s)
        self._placement.apply(assignment)
        self._backlog.apply(policy)
        self.recalls.apply(policy)
        for ticket in self._backlog.stranded():
            self._events.append(self._evict(ticket, now_s))
        self._touch(now_s)

    def tokens_of(self, request: Request, tier: Tier) -> int:
        """Return what a request would book in a tier: its prompt and its reserved output."""
        return request.prompt_tokens + self._tickets.output(request, tier)

    def observe(self, states: Iterable[NodeState], now_s: float) -> None:
        """Take in what nodes said. Nodes that are not in the assignment are ignored."""
        self._placement.observe(states)
        self._touch(now_s)

    def _touch(self, now_s: float) -> None:
        self._now_s = now_s
        self._is_due = self._queue.requests > 0

    def offer(self, request: Request, now_s: float) -> Decision:
        """Decide on a request. A refused one uses up nothing."""
        self._now_s = now_s
        entry, would_refuse = self._entry, NOTHING
        account = self.accounts.listed.get(request.tenant)  # None: it may still count as the default's
        tier = request.tier if request.tier is not None or account is None else account.tier
        is_known = account is not None and tier is not None and tier in account.allowed_tiers
        if account is None or tier is None or not is_known or account.is_over_budget or entry.is_shut:
            self._refusals.about = None
            standing = entry.standing(request)
            if isinstance(standing, Refused):
                return standing
            account, tier, would_refuse = standing
        ticket = self._tickets.make(request, account, tier, now_s)
        if would_refuse:
            ticket.would_refuse = would_refuse
        if entry.limiters is not None or not account.admits(ticket.tokens, now_s):
            self._refusals.about = ticket
            refused = self._over_quota(ticket, now_s)
            if refused is not None:
                return refused
        is_alone = not self._queue.requests
        if is_alone or not self._placement.is_contended(ticket):
            place = self._placement.place_freely if is_alone else self._backlog.place
            book = place(ticket, now_s)
            if book is not None:
                return self._start_now(ticket, book, now_s)
        self._refusals.about = ticket
        hopeless = self._hopeless(ticket, now_s)
        if hopeless is not None:
            return hopeless
        book = self._room_otherwise(ticket, now_s)
        return self._enqueue(ticket, now_s) if book is None else self._start_now(ticket, book, now_s)

    def _over_quota(self, ticket: Ticket, now_s: float) -> Refused | None:
        """Return the refusal by the first limit of the tenant that is met and enforced."""
        exceeded = self._entry.exceeded(ticket, now_s)
        if exceeded is None:
            return None
        hopeless = self._hopeless(ticket, now_s)
        if hopeless is not None and hopeless.outcome is Outcome.REJECTED_TOO_LARGE:
            return hopeless
        return self._refusals.refuse_quota(ticket.holder.name, *exceeded)

    def _room_otherwise(self, ticket: Ticket, now_s: float) -> NodeBudget | None:
        """Return a node without room: some is taken back there, or room is not enforced. None: it waits."""
        if self.recalls.is_on and self._backlog.place(ticket, now_s) is None:
            book = self.recalls.make_room(ticket, now_s)
            if book is not None:
                self._is_due = True  # where others have room they may start again
                return book
        limiters = self._entry.limiters
        if limiters is None or limiters.node_room is Mode.ENFORCE:
            return None
        book = self._placement.choose_regardless(ticket, now_s)
        if book is not None and limiters.node_room is Mode.SHADOW:
            ticket.would_refuse += (Limiter.NODE_ROOM,)
        return book

    def _start_now(self, ticket: Ticket, book: NodeBudget, now_s: float) -> Dispatch:
        ticket.holder.accept(ticket.tokens, ticket.is_ghost, ticket.is_charged)
        if self._queue.requests:
            self._backlog.start_directly(ticket, book)
        else:
            self._queue.charge_alone(ticket)
        return Dispatch(book.name, self._open_lease(ticket, book, now_s))

    def _hopeless(self, ticket: Ticket, now_s: float) -> Refused | None:
        """Return a refusal when no node can serve the request, however long it waits."""
        outlook = self._placement.outlook(ticket, now_s)
        if outlook is LATER:
            return None
        return self._refusals.hopeless(ticket, outlook, self._placement.largest_tokens(ticket))

    def _enqueue(self, ticket: Ticket, now_s: float) -> Decision:
        refused = self._bounds.refusal(ticket, now_s)
        if refused is not None:
            return refused
        victims = self._bounds.to_displace(ticket)
        if victims is None:
            return self._bounds.full(ticket, now_s)
        ahead = ticket.line.state
        ticket.ahead_requests, ticket.ahead_tokens = ahead.requests, ahead.tokens
        account = ticket.holder
        account.accept(ticket.tokens, ticket.is_ghost, ticket.is_charged)
        account.queued += 1
        self._backlog.join(ticket, now_s)
        dispatch = self._start_joined(ticket, now_s)
        if victims and dispatch is None:
            for victim in victims:
                if victim.is_waiting:
                    self._displace(victim, now_s)
            dispatch = self._start_joined(ticket, now_s)
        return dispatch or Queued(ticket)

    def _start_joined(self, ticket: Ticket, now_s: float) -> Dispatch | None:
        """Start what fits, where who just joined may be among it. None: it waits."""
        dispatch: Dispatch | None = None
        if self._is_due or self._backlog.place(ticket, now_s) is not None:
            for started in self._start_what_fits(now_s):
                if started.ticket is ticket:
                    dispatch = Dispatch(started.node, started.lease)
                else:
                    self._events.append(started)
        return dispatch

    def _start_what_fits(self, now_s: float) -> list[Started]:
        self._is_due = False
        started: list[Started] = []
        self._backlog.look()
        while (ticket := self._backlog.next_start(now_s)) is not None:
            book = self._backlog.book
            ticket.holder.queued -= 1
            started.append(Started(ticket, book.name, self._open_lease(ticket, book, now_s)))
        return started

    def _displace(self, victim: Ticket, now_s: float) -> None:
        self._leave(victim, now_s)
        reason = "an interactive request took its place in a full queue"
        base_s = self._bounds.clearing_s(victim, now_s)
        evicted = self._refusals.evict(victim, Outcome.EVICTED_DISPLACED, reason, base_s)
        self._events.append(evicted)

    def _leave(self, ticket: Ticket, now_s: float) -> None:
        """Take a waiting request out and give back all it held."""
        self._backlog.leave(ticket, now_s)
        account, tokens = ticket.holder, ticket.tokens
        account.queued -= 1
        account.end(tokens, tokens, 0, ticket.is_ghost, ticket.is_charged)

    def _open_lease(self, ticket: Ticket, book: NodeBudget, now_s: float) -> Lease:
        tokens, held, placement = ticket.tokens, ticket.held, self._placement
        book.hold(1, tokens, ticket.size_class, held)
        lease = Lease(
            ticket,
            book,
            ticket.output_tokens,
            tokens,
            now_s - ticket.arrived_at_s,
            now_s,
            placement.rule,
            placement.candidates,
            book.room,
            held,
        )
        lease.place = self._leases.add(lease)
        if self.recalls.is_on:
            self.recalls.opened(lease)
        ticket.line.tally.open(lease)
        return lease

    def poll(self, now_s: float) -> list[Event]:
        """Evict what has waited too long, start what fits now, and return both in order."""
        self._now_s = now_s
        events, self._events = self._events, []
        for ticket in self._queue.expired(now_s):
            events.append(self._evict(ticket, now_s))
        if self._is_due or events:
            events += self._start_what_fits(now_s)
        return events

    def _evict(self, ticket: Ticket, now_s: float) -> Evicted:
        self._leave(ticket, now_s)
        hopeless = self._hopeless(ticket, now_s)
        if hopeless is not None and hopeless.outcome is Outcome.NO_NODES:
            return self._refusals.evict(ticket, Outcome.NO_NODES, hopeless.reason, None)
        reason = f"waited {now_s - ticket.arrived_at_s:.1f} s as {ticket.tier} without starting"
        base_s = self._bounds.clearing_s(ticket, now_s)
        return self._refusals.evict(ticket, Outcome.EVICTED_WAIT, reason, base_s)

    def next_deadline_s(self) -> float | None:
        """Return when `poll` is due at the latest; None while nothing waits."""
        if self._is_due or self._events or self.recalls.is_due:
            return self._now_s
        return self._queue.next_deadline_s()

    def cancel(self, ticket: Ticket, now_s: float) -> bool:
        """Take a queued request out: its client left. False when it is no longer queued.

        When False the request was started or evicted by an earlier `poll`; a started one has a lease
        that must be released.
        """
        if not ticket.is_waiting:
            return False
        self._leave(ticket, now_s)
        self._touch(now_s)
        return True

    def extend(self, lease: Lease, output_tokens: int, now_s: float) -> None:
        """Raise a lease's booked output to what has been streamed, when that is more.

        May exceed the node's budget: the tokens are there already. What is over is admitted against.
        What streams is not taken back any more.
        """
        more = output_tokens - lease.output_tokens
        if not lease.is_open or more <= 0:
            return
        if self.recalls.by_node:
            self.recalls.began(lease)
        lease.output_tokens = output_tokens
        lease.tokens += more
        if lease.held is not None:
            lease.held = Holding(lease.held.tokens + more, lease.held.variance)
        ticket = lease.ticket
        lease.book.hold(0, more, ticket.size_class, None)
        ticket.holder.grow(more, is_ghost=ticket.is_ghost)
        ticket.line.tally.in_flight_tokens += more
        self._now_s = now_s

    def release(
        self,
        lease: Lease,
        *,
        prompt_tokens: int | None,
        output_tokens: int | None,
        outcome: Outcome,
        now_s: float,
    ) -> bool:
        """Close a lease: return what was booked, charge what was used. False when already closed.

        `prompt_tokens`, `output_tokens`: used, as counted by the engine; None: the engine did not say,
        then what was booked is charged. Pass 0 when the engine never saw the request.
        """
        if not lease.is_open:
            return False
        lease.is_open = False
        ticket, book = lease.ticket, lease.book
        self._leases.remove(lease.place)
        if self.recalls.by_node:
            self.recalls.began(lease)
        tokens = lease.tokens
        book.hold(-1, -tokens, ticket.size_class, lease.held)
        if book.target is None:
            self._placement.forget_if_empty(book)
        used = ticket.prompt_tokens if prompt_tokens is None else prompt_tokens
        used += lease.output_tokens if output_tokens is None else output_tokens
        ticket.holder.end(tokens, ticket.tokens, used, ticket.is_ghost, ticket.is_charged)
        if outcome is _COMPLETED and output_tokens is not None:
            self._tickets.learn(ticket, output_tokens)
        ticket.line.tally.in_flight_tokens -= tokens
        self._now_s = now_s  # as `_touch`: a call less for each request
        self._is_due = self._queue.requests > 0
        return True

    def drain(self) -> None:
        """Refuse every new request as DRAINING from now on; what waits or runs goes on."""
        self._entry.drain()

    def snapshot(self, now_s: float) -> GateSnapshot:
        """Return what is held and what waits. O(tenants + nodes): for status and metrics."""
        oldest = self._leases.oldest()
        return GateSnapshot(
            is_ready=self._entry.policy is not None and self._placement.any_open(now_s),
            in_flight_requests=self._leases.taken,
            in_flight_tokens=sum(self._tally.in_flight_tokens().values()),
            in_flight_tokens_by_tier=self._tally.in_flight_tokens(),
            queues={tier: self._queue.state(tier, now_s) for tier in TIERS},
            dispatched_tokens_by_tier=self._tally.dispatched_tokens(),
            longest_wait_s_by_tier=self._tally.longest_wait_s(),
            tenants={account.name: account.use(now_s) for account in self.accounts},
            nodes={book.name: book.use(now_s) for book in self._placement},
            oldest_lease_age_s=0.0 if oldest is None else now_s - oldest.opened_at_s,
            most_passed_ratio_by_tier=self._tally.most_passed_ratio(),
            most_ahead_ratio_by_tier={
                tier: state.most_ahead_ratio for tier, state in self._queue.tiers.items()
            },
            jain_by_tier={tier: self._queue.jain(tier, now_s) for tier in TIERS},
            queue_timeout_s_by_tier=dict(self._tickets.timeouts_s),
        )
