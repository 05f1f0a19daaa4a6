"""Settled gateways are asked in turns, each soon; whoever is not settled is asked at once."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from control.assignments import build, encode
from control.conditions import Known
from control.reconcile_store import Place, news
from control.reconcile_turns import AT_LEAST, TURNS, due, is_settled
from fleet.policy import default_policy

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
EPOCH = 7
PASS = timedelta(seconds=1)


def fleet(count: int) -> list[Place]:
    """Return gateways that all hold what they should, told by themselves a second ago."""
    targets = encode(build(default_policy(), 1, [f"gw-{n:03}" for n in range(count)], [], [], []))
    return [
        Place(
            name=name,
            url="http://10.0.0.1:8080",
            target=target,
            refusal=None,
            refused_revision=None,
            generation=4,
            given_digest=target.digest,
            known=Known(
                seen_at=NOW - PASS, tried_at=NOW - PASS, epoch=EPOCH, generation=4, revision=1,
                digest=target.digest, acked_at=NOW - PASS, condition="converged", boot_id="b",
                status={"from_disk": False},
            ),
        )
        for name, target in targets.items()
    ]  # fmt: skip


def known(place: Place, **parts: object) -> Place:
    return replace(place, known=replace(place.known, **parts))  # type: ignore[arg-type] # named in the cases


def test_every_settled_gateway_is_asked_within_as_many_passes_as_there_are_turns() -> None:
    places, asked = fleet(200), list[str]()
    for number in range(TURNS):
        now = NOW + number * PASS
        turn = {place.name for place in due(places, EPOCH, now)}
        assert len(turn) <= 200 / TURNS + 1
        asked += turn
        places = [known(place, tried_at=now) if place.name in turn else place for place in places]
    assert len(asked) >= 200
    assert set(asked) == {place.name for place in places}


def test_a_clock_set_back_an_hour_stops_nobody_from_being_asked() -> None:
    back, places, asked = NOW - timedelta(hours=1), fleet(200), set[str]()
    for number in range(TURNS):
        now = back + number * PASS
        turn = {place.name for place in due(places, EPOCH, now)}
        first = [place for place in places if place.name in turn - asked]
        after = {place.name: replace(place.known, tried_at=now) for place in first}
        assert news(first, after) == after  # and is written
        asked |= turn
        places = [known(place, tried_at=now) if place.name in turn else place for place in places]
    assert asked == {place.name for place in places}
    silent = known(fleet(1)[0], condition="unreachable", retry_at=NOW + 30 * PASS)
    assert due([silent], EPOCH, back) == [silent]  # not for an hour
    assert due([silent], EPOCH, NOW + PASS) == []


def test_a_small_fleet_is_asked_whole() -> None:
    assert due(fleet(AT_LEAST), EPOCH, NOW) == fleet(AT_LEAST)


@pytest.mark.parametrize(
    "change",
    [
        {"condition": "drifting"},
        {"condition": "behind"},
        {"epoch": EPOCH - 1},
        {"generation": 3},
        {"digest": "another"},
        {"status": {"from_disk": True}},
        {"status": None},
    ],
)
def test_with_one_gateway_unsettled_all_are_asked(change: dict[str, object]) -> None:
    places = fleet(60)
    places[41] = known(places[41], **change)
    assert not is_settled(places[41], EPOCH)
    assert due(places, EPOCH, NOW) == places


def test_new_content_for_one_asks_all() -> None:
    places = fleet(60)
    places[3] = replace(places[3], given_digest="of what it had before")
    assert due(places, EPOCH, NOW) == places


def test_a_gateway_that_failed_waits_and_holds_up_no_turns() -> None:
    places = fleet(60)
    lost = known(
        places[0], condition="unreachable", contact_lost_at=NOW, retry_at=NOW + 5 * PASS, failures=3
    )
    turn = due([lost, *places[1:]], EPOCH, NOW)
    assert lost not in turn
    assert len(turn) == 59 // TURNS + 1
    late = NOW + 6 * PASS
    assert lost in due([lost, *places[1:]], EPOCH, late)
