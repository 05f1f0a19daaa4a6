"""Invariants of the gate, each an oracle over what was seen: a snapshot, a lease, what is live.

Tokens are counts, times monotonic seconds. They hold at every step of any history; `test_gate_machine` asks
them after each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from fleet.accounts import Account
from fleet.budget import STALE_AFTER_S
from fleet.gate import Lease, Ticket
from fleet.gate_snapshot import GateSnapshot
from fleet.outcomes import TIERS, Tier


def g1_in_flight_is_the_sum_of_live_leases(
    snapshot: GateSnapshot, live: Iterable[Lease], waiting: Iterable[Ticket]
) -> None:
    """In flight, by node, tier and tenant, is what live leases hold; tenants hold what waits too."""
    by_node: Counter[str] = Counter()
    by_tier: Counter[Tier] = Counter()
    held: Counter[str] = Counter()
    leases, tickets = list(live), list(waiting)
    for lease in leases:
        by_node[lease.node] += lease.tokens
        by_tier[lease.tier] += lease.tokens
        held[lease.account] += lease.tokens
    for ticket in tickets:
        held[ticket.account] += ticket.tokens
    assert snapshot.in_flight_requests == len(leases)
    assert snapshot.in_flight_tokens == sum(by_tier.values())
    assert {name: use.tokens for name, use in snapshot.nodes.items() if use.tokens} == dict(+by_node)
    assert {tier: n for tier, n in snapshot.in_flight_tokens_by_tier.items() if n} == dict(+by_tier)
    assert {name: use.tokens for name, use in snapshot.tenants.items() if use.tokens} == dict(+held)
    assert sum(queue.requests for queue in snapshot.queues.values()) == len(tickets)
    for tier in TIERS:
        assert snapshot.queues[tier].tokens == sum(t.tokens for t in tickets if t.tier is tier)


def g2_no_node_is_booked_beyond_its_budget(
    booked: Mapping[int, int], live: Mapping[int, Lease], budgets: Mapping[str | None, int]
) -> None:
    """At booking no node went beyond its budget, nor beyond a size class's part. Key None: the node's."""
    in_all: Counter[str] = Counter()
    in_class: Counter[tuple[str, str]] = Counter()
    for number, lease in live.items():
        in_all[lease.node] += booked[number]
        if lease.size_class in budgets:
            in_class[lease.node, str(lease.size_class)] += booked[number]
    assert all(tokens <= budgets[None] for tokens in in_all.values())
    assert all(tokens <= budgets[size_class] for (_, size_class), tokens in in_class.items())


def g3_nothing_waits_beyond_its_tiers_timeout(lease: Lease, timeout_s: float) -> None:
    """What starts has waited less than its tier's timeout."""
    assert lease.queued_s < timeout_s


def g4_who_is_next_is_passed_by_no_more_than_its_own_size(ticket: Ticket, passed_tokens: int) -> None:
    """Inside its tier no more tokens start past a request that is next and does not fit than it needs.

    `passed_tokens` are counted by who asks, not by the gate.
    """
    assert passed_tokens <= ticket.tokens


def g5_a_push_moves_nothing(
    before: GateSnapshot, after: GateSnapshot, burst_tokens: int, stranded: Collection[Ticket] = ()
) -> None:
    """A push changes no lease, no place in a queue, and no bucket level but to clamp it.

    `stranded` lost their model's last node: they leave the queues and give back what they held.
    """
    assert after.in_flight_requests == before.in_flight_requests
    assert after.in_flight_tokens_by_tier == before.in_flight_tokens_by_tier
    if stranded:
        for tier in TIERS:
            left = [ticket.tokens for ticket in stranded if ticket.tier is tier]
            had, has = before.queues[tier], after.queues[tier]
            assert (has.requests, has.tokens) == (had.requests - len(left), had.tokens - sum(left))
        return
    assert after.queues == before.queues
    for name, use in after.tenants.items():
        had = before.tenants[name]
        assert (use.requests, use.tokens, use.queued_requests) == (
            had.requests,
            had.tokens,
            had.queued_requests,
        )
        assert use.rate_tokens_left == min(had.rate_tokens_left, burst_tokens)


def g6_a_refusal_used_up_nothing(before: GateSnapshot, after: GateSnapshot) -> None:
    """Who is refused leaves tenants and nodes as they were."""
    assert (after.tenants, after.nodes) == (before.tenants, before.nodes)


def g7_nothing_starts_on_a_node_not_heard_of(lease: Lease, seen_at_s: Mapping[str, float]) -> None:
    """What starts goes to a node that was heard of within `STALE_AFTER_S`."""
    assert lease.opened_at_s - seen_at_s[lease.node] <= STALE_AFTER_S


def g8_ghosts_are_those_a_shadowed_quota_let_through(
    accounts: Iterable[Account], live: Iterable[Lease], waiting: Iterable[Ticket]
) -> None:
    """A tenant's ghosts are the requests that hold tokens and were let through by a quota in shadow."""
    requests: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for one in (*live, *waiting):
        if one.is_ghost:
            requests[one.account] += 1
            tokens[one.account] += one.tokens
    for account in accounts:
        assert (account.ghost_requests, account.ghost_tokens) == (
            requests[account.name],
            tokens[account.name],
        )


def g9_the_queue_keeps_its_bounds(snapshot: GateSnapshot, requests: int, tokens: int) -> None:
    """Right after a request joined, all queues together are within their bounds."""
    assert sum(queue.requests for queue in snapshot.queues.values()) <= requests
    assert sum(queue.tokens for queue in snapshot.queues.values()) <= tokens


def g10_nothing_waits_for_what_no_listed_node_serves(waiting: Iterable[Ticket], served: set[str]) -> None:
    """After a push and the poll that follows it nothing waits for a model that left with its last node."""
    assert all(ticket.request.model in served for ticket in waiting)
