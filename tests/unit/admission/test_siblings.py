"""Silence of processes: counted in looks, so that a supervisor that was stopped itself blames nobody."""

from __future__ import annotations

from admission.siblings import TICK_S, Siblings, Silence, sibling_families


def test_silence_adds_up_over_looks_and_ends_with_a_sign_of_life() -> None:
    silence = Silence(10.0)
    for _ in range(39):  # 9.75 s
        silence.passed(TICK_S)
    assert (silence.is_long, silence.is_too_long) == (True, False)
    silence.passed(TICK_S)
    assert silence.is_too_long
    silence.heard()
    assert (silence.is_long, silence.is_too_long) == (False, False)


def test_a_look_that_comes_an_hour_late_counts_as_two_and_a_clock_that_went_back_as_none() -> None:
    silence = Silence(10.0)
    silence.passed(3_600.0)
    assert silence.seconds == 2 * TICK_S
    silence.passed(-3_600.0)
    assert silence.seconds == 2 * TICK_S


def test_what_is_said_of_the_processes_is_read_as_it_was_meant_or_not_at_all() -> None:
    said = Siblings(2, 3, died=4, hung=1)
    assert Siblings.of(said.words().encode().split()[1:]) == said
    assert Siblings.of([b"2", b"3", b"4"]) is None
    assert Siblings.of([b"2", b"3", b"4", b"-1"]) is None
    found = {family.name: dict(family.values) for family in sibling_families(said)}
    assert found == {
        "rhodeck_gateway_processes": {("serving",): 2, ("away",): 1},
        "rhodeck_gateway_process_ends_total": {("died",): 4, ("hung",): 1},
    }
    assert list(sibling_families(None)) == []
