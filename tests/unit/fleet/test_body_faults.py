"""Whether a failed request counts against the node that failed it. Times are seconds."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from fleet.body_faults import KEPT_S, MOST_KEPT, BodyFaults


def test_a_body_that_two_nodes_failed_is_at_fault_wherever_it_fails_next():
    faults = BodyFaults()
    assert not faults.is_node_at_fault(b"odd", "acme", {"n1", "n2"}, True, 0.0)
    for name, is_alive in itertools.product(("n1", "n2", "n3"), (True, False)):
        assert not faults.is_node_at_fault(b"odd", "acme", {name}, is_alive, 1.0)


def test_what_one_node_fails_first_and_another_later_is_at_fault_too():
    faults = BodyFaults()
    assert faults.is_node_at_fault(b"odd", "acme", {"n1"}, True, 0.0)
    assert not faults.is_node_at_fault(b"odd", "acme", {"n2"}, True, 1.0)


def test_of_a_node_that_lives_a_body_counts_once_and_of_one_that_does_not_each_time():
    faults = BodyFaults()
    told = [
        faults.is_node_at_fault(b"odd", "acme", {"n1"}, is_alive, 0.0)
        for is_alive in (True, True, True, False, False)
    ]
    assert told == [True, False, False, True, True]


def test_different_bodies_count_each_unless_their_tenant_sent_one_that_several_nodes_failed():
    faults = BodyFaults()
    assert all(faults.is_node_at_fault(b"%d" % one, "acme", {"n1"}, True, 0.0) for one in range(5))
    faults.failed(b"odd", "acme", {"n1", "n2"}, 1.0)
    assert not faults.is_node_at_fault(b"new", "acme", {"n1"}, True, 2.0)
    assert faults.is_node_at_fault(b"new too", "globex", {"n1"}, True, 2.0)
    assert faults.is_node_at_fault(b"newer", "acme", {"n1"}, False, 2.0)  # it answers nobody any more
    assert faults.is_node_at_fault(b"newest", "acme", {"n1"}, True, 1.1 + KEPT_S)


def test_a_body_that_is_answered_is_innocent_again():
    faults = BodyFaults()
    faults.failed(b"odd", "acme", {"n1", "n2"}, 0.0)
    faults.answered(b"odd")
    assert faults.is_node_at_fault(b"odd", "globex", {"n1"}, True, 1.0)


def test_what_is_remembered_is_bounded_and_what_failed_last_stays():
    faults = BodyFaults()
    for one in range(3 * MOST_KEPT):
        faults.failed(b"%d" % one, f"tenant {one}", {"n1", "n2"}, float(one) / MOST_KEPT)
    assert len(faults._failed_at) == len(faults._suspected_at) == MOST_KEPT
    last = b"%d" % (3 * MOST_KEPT - 1)
    assert not faults.is_node_at_fault(last, "globex", {"n3"}, True, 3.0)


sent = st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.sampled_from(["n1", "n2"]), st.floats(0, 20))


@given(st.lists(sent, max_size=40))
def test_one_body_counts_at_most_once_against_the_nodes_that_live(requests: list[tuple[bytes, str, float]]):
    """However it comes and to whichever nodes: one count for each body, against one of them."""
    faults, counted, now_s = BodyFaults(), {b"a": 0, b"b": 0, b"c": 0}, 0.0
    for body, name, later_s in requests:
        now_s = min(now_s + later_s, KEPT_S)
        counted[body] += faults.is_node_at_fault(body, "acme", {name}, True, now_s)
    assert max(counted.values()) <= 1
