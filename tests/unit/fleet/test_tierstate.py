"""Who waits in a tier, by age and by deadline, against a plain list; and whom a full queue displaces."""

from __future__ import annotations

import random
from itertools import takewhile

import pytest
from gate_world import assignment, open_gate, request

from fleet.gate import Dispatch, Evicted, Gate, Queued, Refused, Ticket
from fleet.lines import Lines
from fleet.outcomes import Outcome, Tier
from fleet.tally import Tally


def ticket_like(like: Ticket, number: int, now_s: float, timeout_s: float, requeues: int) -> Ticket:
    """Return a ticket that joins now."""
    made = like.again(number, now_s)
    made.deadline_s, made.requeues = now_s + timeout_s, requeues
    return made


def waiting_ticket(gate: Gate, tier: Tier = Tier.INTERACTIVE) -> Ticket:
    """Return the ticket of a request that the gate queues."""
    decision = gate.offer(request(tier=tier), 0.0)
    assert isinstance(decision, Queued)
    return decision.ticket


def full_gate(**options: int) -> Gate:
    """Return a gate in front of a node without room."""
    gate = open_gate(assignment(tiers={"interactive": {"queue_timeout_s": 30}}), **options)
    for number in range(85):
        assert isinstance(gate.offer(request(number), 0.0), Dispatch)
    return gate


def newest_first(waiting: list[Ticket]) -> list[Ticket]:
    return [one for one in waiting if not one.requeues][::-1] + [one for one in waiting if one.requeues]


def oldest_s(waiting: list[Ticket]) -> float | None:
    return min([one.arrived_at_s for one in waiting], default=None)


def first_due(waiting: list[Ticket]) -> Ticket | None:
    fresh = [one for one in waiting if not one.requeues]
    back = [one for one in waiting if one.requeues]
    return min([*fresh[:1], *back[:1]], key=lambda one: one.deadline_s, default=None)


def expired(waiting: list[Ticket], now_s: float) -> list[Ticket]:
    """Return those due in each part, up to the first of it that is not."""
    found: list[Ticket] = []
    for part in (False, True):
        listed = [one for one in waiting if bool(one.requeues) is part]
        found += takewhile(lambda one: one.deadline_s <= now_s, listed)
    return found


@pytest.mark.parametrize("most", [1, 3, 400])
@pytest.mark.parametrize("leaves", ["oldest", "newest", "any"])
def test_who_waits_is_found_by_age_whoever_left_and_however_often_it_was_empty(leaves: str, most: int):
    like = waiting_ticket(full_gate())
    state = Lines(Tally()).states[Tier.INTERACTIVE]
    rng, now_s = random.Random(most), 0.0
    waiting: list[Ticket] = []
    like.line = type(like.line)(like.line.model, state, like.line.tally)
    for step in range(6_000):
        now_s += 0.01
        grows = step % 1_500 < 900
        if len(waiting) < most and rng.random() < (0.8 if grows else 0.2):
            one = ticket_like(like, step, now_s, rng.choice([1.0, 1.0, 2.0]), int(rng.random() < 0.2))
            before = [other.deadline_s for other in waiting if bool(other.requeues) == bool(one.requeues)]
            is_early = state.add(one)
            assert is_early or one.deadline_s >= max(before, default=0.0)
            waiting.append(one)
        elif waiting:
            place = {"oldest": 0, "newest": -1, "any": rng.randrange(len(waiting))}[leaves]
            state.remove(waiting.pop(place))
        assert (state.requests, state.tokens) == (len(waiting), sum(one.tokens for one in waiting))
        match rng.randrange(8):  # one question at a time: each tidies up, and hides what another left
            case 0:
                assert list(state.newest_first()) == newest_first(waiting)
            case 1:
                assert state.oldest_s() == oldest_s(waiting)
            case 2:
                assert state.first_due() is first_due(waiting)
            case 3:
                assert list(state.expired(now_s)) == expired(waiting, now_s)
            case _:
                pass


def test_who_joins_after_a_search_for_somebody_to_displace_can_leave_and_is_evicted_in_time():
    gate = full_gate(max_queued_requests=3)
    first = waiting_ticket(gate, Tier.BEST_EFFORT)
    second = waiting_ticket(gate, Tier.BEST_EFFORT)
    gate.cancel(first, 0.0)
    assert gate.snapshot(0.0).queues[Tier.BEST_EFFORT].requests == 1  # it looks for the oldest: the second
    gate.cancel(second, 0.0)
    others = [waiting_ticket(gate) for _ in range(3)]
    refused = gate.offer(request(tier=Tier.INTERACTIVE), 0.0)  # no best effort to displace
    assert isinstance(refused, Refused)
    assert refused.outcome is Outcome.REJECTED_QUEUE_FULL
    gate.cancel(others[0], 0.0)
    gate.cancel(others[1], 0.0)
    late = waiting_ticket(gate, Tier.BEST_EFFORT)
    last = waiting_ticket(gate, Tier.BEST_EFFORT)
    assert gate.snapshot(10.0).queues[Tier.BEST_EFFORT].oldest_wait_s == 10.0
    assert gate.cancel(last, 10.0)
    events = gate.poll(30.0)  # all tiers wait 30 s here
    assert [event.ticket for event in events if isinstance(event, Evicted)] == [others[2], late]
    assert gate.next_deadline_s() is None
