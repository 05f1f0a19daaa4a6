"""The nodes' KV room is lent between gateways: to who has the traffic, never more than there is.

Virtual time, real parts: the gateway's leases, the controller's lending. The gate is played: it books what
it is asked for, up to its part of a node of a million tokens, and queues the rest.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleet.gate_snapshot import GateSnapshot, NodeUse
from fleet.kv_shares import KV_ROOM, PARTS, lent_ratio, parts_of, room_use
from tests.quota_fleet import PlayedFleet, PlayedGateway

WHOLE = 1_000_000
NAMES = ["gw-1", "gw-2", "gw-3"]
QUOTA = {
    "tokens_per_minute": 6_000,
    "burst_tokens": 600,
    "max_in_flight_tokens": 100_000,
    "max_concurrent_requests": 300,
}


def snapshot(asked: int, ratio: float) -> GateSnapshot:
    """Return what a gate says that was asked for `asked` tokens at once and may book a part of a node."""
    budget = int(WHOLE * ratio)
    booked = min(asked, budget)
    queues = {"interactive": SimpleNamespace(tokens=asked - booked)}
    return cast(
        "GateSnapshot", SimpleNamespace(nodes={"n1": NodeUse(1, booked, budget, None)}, queues=queues)
    )


class RoomFleet:
    """Three gateways, each asked for so many tokens at once."""

    def __init__(self, folder: Path, *, drift: float = 0.0) -> None:
        self.asked = dict.fromkeys(NAMES, 0)
        self.fleet = PlayedFleet(folder, NAMES, QUOTA, drift=drift)
        for gateway in self.fleet.gateways.values():
            self.give_room(gateway)

    def give_room(self, gateway: PlayedGateway) -> None:
        """Let a gateway tell how full nodes are, as one does that can be lent room."""
        gateway.leases.room = lambda: snapshot(self.asked[gateway.name], self.ratio(gateway.name))

    def ratio(self, name: str) -> float:
        gateway = self.fleet.gateways[name]
        assert gateway.target is not None
        return lent_ratio(gateway.leases.lent, gateway.target.assignment)

    def total(self) -> float:
        return sum(self.ratio(name) for name in NAMES)

    def run(self, seconds: float) -> None:
        """Let time pass; the parts must sum to no more than the whole at any moment."""
        for _ in range(int(seconds / 0.5)):
            self.fleet.step(0.5)
            assert self.total() <= 1


@pytest.fixture
def room(tmp_path: Path) -> Generator[RoomFleet]:
    made = RoomFleet(tmp_path)
    yield made
    made.fleet.close()


def test_a_gateway_that_gets_all_the_traffic_is_lent_nearly_all_the_room(room: RoomFleet) -> None:
    room.asked["gw-1"] = WHOLE
    room.run(20)  # 15.5 s to learn what a leader before may have lent
    room.run(20)
    # The others keep a tenth of a third each for who comes next.
    assert room.ratio("gw-1") == pytest.approx(1 - 2 / 30, abs=0.01)
    # The traffic moves: so does the room.
    room.asked |= {"gw-1": 0, "gw-2": WHOLE}
    room.run(30)
    assert room.ratio("gw-2") == pytest.approx(1 - 2 / 30, abs=0.01)


def test_under_even_pressure_everybody_has_the_even_part(room: RoomFleet) -> None:
    room.asked = dict.fromkeys(NAMES, WHOLE)
    room.run(60)
    assert [room.ratio(name) for name in NAMES] == pytest.approx([1 / 3] * 3, abs=0.01)


def test_without_a_controller_room_returns_to_the_even_parts(room: RoomFleet) -> None:
    room.asked["gw-1"] = WHOLE
    room.run(40)
    room.fleet.controllers.clear()
    room.run(16)
    assert room.ratio("gw-1") == pytest.approx(1 / 3)
    room.run(14)
    assert room.total() == pytest.approx(1)


def test_beside_a_gateway_that_cannot_be_lent_room_it_keeps_its_part(room: RoomFleet) -> None:
    room.fleet.gateways["gw-3"].leases.room = None  # of a release before
    room.asked["gw-1"] = WHOLE
    room.run(60)
    assert room.ratio("gw-3") == pytest.approx(1 / 3)
    assert room.ratio("gw-1") == pytest.approx(1 - 1 / 3 - 1 / 30, abs=0.01)


@pytest.mark.parametrize("seed", range(6))
def test_no_loss_restart_or_change_of_leader_hands_room_out_twice(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    room = RoomFleet(tmp_path, drift=0.01)
    room.fleet.lose = lambda: rng.random() < 0.1
    try:
        for _ in range(60):
            room.asked = {name: rng.choice([0, 0, WHOLE // 10, WHOLE]) for name in NAMES}
            gateway = room.fleet.gateways[rng.choice(NAMES)]
            gateway.hears, gateway.is_heard = rng.random() < 0.8, rng.random() < 0.8
            match rng.randrange(8):
                case 0:
                    gateway.restart()
                    room.give_room(gateway)
                case 1:
                    room.fleet.lead(old_goes_on=rng.random() < 0.5)
                case _:
                    pass
            room.run(rng.choice([2, 5, 12]))
    finally:
        room.fleet.close()


def test_who_has_a_queue_needs_more_than_it_has_and_who_has_none_a_little_more_than_it_uses() -> None:
    share = parts_of(0.5)
    waiting: Any = room_use(snapshot(WHOLE, 0.5), share)
    assert waiting.held_tokens == PARTS // 2
    assert waiting.need.max_in_flight_tokens == PARTS  # half is used, half waits
    easy: Any = room_use(snapshot(WHOLE // 4, 0.5), share)
    assert easy.need.max_in_flight_tokens == pytest.approx(0.25 * 1.1 * PARTS, rel=0.01)
    # The engine's other bound, of requests, holds them up: little is booked and yet they wait.
    stuck: Any = snapshot(WHOLE // 10, 0.5)
    stuck.queues["interactive"].tokens = 10
    assert room_use(stuck, share).need.max_in_flight_tokens == pytest.approx(0.75 * PARTS, rel=0.01)
    assert "/" in KV_ROOM  # no tenant's name has one
