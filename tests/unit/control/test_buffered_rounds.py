"""Rounds that wait for the database are packed: none of what they are made of may resist it.

Compiled frozen values cannot be pickled. So no class that a round can hold is in a compiled module, and a
round comes out of the buffer as it went in, whichever way those modules run.
"""

from __future__ import annotations

import dataclasses
import typing
from datetime import UTC, datetime

from compiled.modules import MODULES
from control.assess import Assessment
from control.round_buffer import OPEN_ROUNDS, RoundBuffer
from control.round_writer import Recorded
from control.rounds import EngineSample, GatewayResult, NodeResult, Round
from fleet.readings import EngineWindow, Histogram

OURS = ("fleet.", "control.", "admission.")


def classes_in(hint: object, found: set[type]) -> None:
    """Add every class of ours that a value annotated so can hold."""
    for argument in typing.get_args(hint):
        classes_in(argument, found)
    kind = typing.get_origin(hint) or hint
    if isinstance(kind, type) and kind.__module__.startswith(OURS) and kind not in found:
        found.add(kind)
        for one in typing.get_type_hints(kind).values():
            classes_in(one, found)


def test_no_class_a_round_can_hold_is_compiled() -> None:
    found = set[type]()
    classes_in(Recorded, found)
    assert {Round, NodeResult, EngineSample, EngineWindow, Histogram, GatewayResult} <= found
    assert [kind for kind in found if kind.__module__ in MODULES] == []


def test_a_round_comes_out_of_the_buffer_as_it_went_in() -> None:
    at = datetime(2026, 3, 1, tzinfo=UTC)
    defaults = {
        one.name: None for one in dataclasses.fields(EngineWindow) if one.default is dataclasses.MISSING
    }
    window = EngineWindow(**(defaults | {"length_s": 10.0}))  # type: ignore[arg-type]
    buffer = RoundBuffer[Recorded](1 << 30)
    given = [
        Recorded(
            Round(
                at,
                10.0,
                0.5,
                0.1,
                (NodeResult(f"n{number}", "p", 0.02, (EngineSample("0", window, 10.0),)),),
                (),
            ),
            Assessment(at, 10.0, (), ()),
            (),
        )
        for number in range(OPEN_ROUNDS + 2)
    ]  # the first two are packed
    for one in given:
        assert buffer.append(one, 1) == 0
    came = []
    while (first := buffer.first()) is not None:
        number, value = first
        came.append(value)
        buffer.done(number)
    assert came == given
