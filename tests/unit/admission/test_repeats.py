"""A request sent again is known again; what was never lost is never a repetition."""

from __future__ import annotations

from admission.repeats import LOST, RepeatWatch
from fleet.outcomes import SHED, Outcome

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'


def test_the_body_of_a_lost_request_is_known_again_once() -> None:
    watch = RepeatWatch()
    assert not watch.is_repeat("acme", [], BODY, 0.0)
    watch.lost("acme", [], BODY, 0.0)
    assert watch.is_repeat("acme", [], BODY, 5.0)
    # that try went well: the same question asked later is a new one
    assert not watch.is_repeat("acme", [], BODY, 6.0)


def test_a_request_that_is_lost_again_and_again_stays_known() -> None:
    watch = RepeatWatch()
    tries = []
    for second in range(5):
        tries.append(watch.is_repeat("acme", [], BODY, float(second)))
        watch.lost("acme", [], BODY, float(second))
    assert tries == [False, True, True, True, True]


def test_another_tenant_another_body_and_a_late_try_are_new_requests() -> None:
    watch = RepeatWatch(window_s=120)
    watch.lost("acme", [], BODY, 0.0)
    assert not watch.is_repeat("globex", [], BODY, 1.0)
    assert not watch.is_repeat("acme", [], BODY.replace(b"hello", b"other"), 1.0)
    assert not watch.is_repeat("acme", [], BODY, 121.0)
    assert len(watch) == 0


def test_an_idempotency_key_stands_for_the_body() -> None:
    watch = RepeatWatch()
    key = [(b"idempotency-key", b"7f")]
    watch.lost("acme", key, BODY, 0.0)
    assert watch.is_repeat("acme", key, BODY + b" ", 1.0)
    watch.lost("acme", key, BODY, 1.0)
    assert not watch.is_repeat("acme", [(b"idempotency-key", b"80")], BODY, 2.0)


def test_a_client_that_counts_its_tries_is_believed() -> None:
    watch = RepeatWatch()
    assert not watch.is_repeat("acme", [(b"x-stainless-retry-count", b"0")], BODY, 0.0)
    assert watch.is_repeat("acme", [(b"x-stainless-retry-count", b"2")], BODY, 0.0)
    assert not watch.is_repeat("acme", [(b"x-stainless-retry-count", b"-1")], BODY, 0.0)
    assert not watch.is_repeat("acme", [(b"x-stainless-retry-count", b"9" * 9)], BODY, 0.0)


def test_long_bodies_differ_by_head_tail_and_length() -> None:
    watch = RepeatWatch()
    body = b"a" * 200_000
    watch.lost("acme", [], body, 0.0)
    assert not watch.is_repeat("acme", [], body + b"a", 1.0)
    assert not watch.is_repeat("acme", [], body[:-1] + b"b", 1.0)
    assert not watch.is_repeat("acme", [], b"b" + body[1:], 1.0)
    assert watch.is_repeat("acme", [], body, 1.0)


def test_memory_is_bounded_and_the_oldest_go_first() -> None:
    watch = RepeatWatch(max_remembered=3)
    for number in range(5):
        watch.lost("acme", [], b"%d" % number, 0.0)
    assert len(watch) == 3
    assert not watch.is_repeat("acme", [], b"1", 1.0)
    assert watch.is_repeat("acme", [], b"2", 1.0)


def test_what_was_refused_failed_or_left_may_come_again_and_what_was_answered_may_not() -> None:
    assert LOST > SHED
    assert Outcome.CLIENT_GONE in LOST  # out of patience: the most usual way for a storm to begin
    assert Outcome.COMPLETED not in LOST
