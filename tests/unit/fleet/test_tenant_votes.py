"""How often a tenant's failures count against a node. Times are seconds."""

from __future__ import annotations

import random

from fleet.body_faults import KEPT_S, MOST_KEPT
from fleet.tenant_votes import TenantVotes

WITHIN_S = 10.0


def counts(votes: TenantVotes, tenant: str, now_s: float, node: str = "n1") -> bool:
    return votes.counts(tenant, node, WITHIN_S, now_s)


def test_each_failure_counts_against_a_node_that_answers_nobody():
    votes = TenantVotes()
    assert all(counts(votes, "acme", 0.0) for _ in range(5))


def test_each_failure_of_the_only_tenant_there_is_counts_however_many_were_answered():
    votes = TenantVotes()
    for at_s in range(5):
        votes.answered("acme", "n1", at_s)
        assert all(counts(votes, "acme", at_s) for _ in range(3))


def test_one_failure_counts_against_a_node_that_answers_another_tenant():
    votes = TenantVotes()
    votes.answered("globex", "n1", 0.0)
    assert [counts(votes, "acme", 1.0) for _ in range(4)] == [True, False, False, False]
    assert counts(votes, "initech", 1.0)  # a third one has a vote of its own
    assert counts(votes, "acme", 1.0, node="n2")  # of which nobody says that it is well


def test_an_answer_to_the_tenant_itself_makes_its_next_failure_count():
    votes = TenantVotes()
    votes.answered("globex", "n1", 0.0)
    assert [counts(votes, "acme", 1.0) for _ in range(2)] == [True, False]
    votes.answered("acme", "n1", 2.0)
    assert [counts(votes, "acme", 3.0) for _ in range(2)] == [True, False]


def test_each_failure_counts_against_a_node_that_fails_one_tenant_whom_others_answer():
    votes = TenantVotes()
    for at_s in range(20):
        votes.answered("globex", "n1", at_s)
        votes.answered("acme", "n2", at_s)
        assert counts(votes, "acme", at_s)


def test_a_tenant_that_is_failed_all_over_has_one_vote_whatever_good_requests_it_mixes_in():
    votes = TenantVotes()
    for node in ("n1", "n2", "n3"):
        votes.answered("globex", node, 0.0)
        votes.answered("acme", node, 0.0)
    assert all(counts(votes, "acme", 1.0) for _ in range(3))  # so far it is this node's alone
    for at_s in range(2, 8):
        votes.answered("acme", "n3", at_s)
        assert counts(votes, "acme", at_s, node="n2") is (at_s == 2)
        assert counts(votes, "acme", at_s) is (at_s == 2)


def test_a_node_that_answers_others_no_more_has_each_failure_count():
    votes = TenantVotes()
    votes.answered("globex", "n1", 0.0)
    votes.answered("acme", "n1", 5.0)
    assert [counts(votes, "acme", WITHIN_S) for _ in range(2)] == [True, False]
    assert all(counts(votes, "acme", WITHIN_S + 0.1) for _ in range(2))


def test_a_vote_comes_back_after_a_while_without_failures():
    votes = TenantVotes()
    votes.answered("globex", "n1", 0.0)
    assert [counts(votes, "acme", 1.0) for _ in range(2)] == [True, False]
    votes.answered("globex", "n1", 1.0 + KEPT_S)
    assert not counts(votes, "acme", 1.0 + KEPT_S)
    votes.answered("globex", "n1", 2.0 + 2 * KEPT_S)
    assert counts(votes, "acme", 2.0 + 2 * KEPT_S)


def test_nobody_gets_three_in_a_row_against_a_node_that_others_are_answered_by():
    """Three in a row take a node out. Whatever a tenant mixes in, an answer stands between its failures."""
    draw, votes, in_row, most = random.Random(7), TenantVotes(), 0, 0
    for step in range(5_000):
        now_s = step * 0.1
        if step % 50 == 0 or draw.random() < 0.3:
            votes.answered("globex" if step % 50 == 0 else "acme", "n1", now_s)
            in_row = 0
        elif counts(votes, "acme", now_s):
            in_row += 1
            most = max(most, in_row)
    assert most == 1


def test_what_is_remembered_is_bounded():
    votes = TenantVotes()
    for one in range(2 * MOST_KEPT):
        votes.answered("globex", f"n{one}", 0.0)
        counts(votes, f"tenant {one}", 0.0, node=f"n{one}")
    kept = (votes._answered, votes._counted_at, votes._failers)
    assert [len(one) for one in kept] == [MOST_KEPT] * 3
