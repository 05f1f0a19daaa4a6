"""The waiting room over the real gate: whoever leaves, whenever, no place and no lease stays behind."""

from __future__ import annotations

import asyncio
import random

import pytest

from admission.waiting import WaitingRoom
from fleet.clock import ManualClock
from fleet.gate import Gate
from fleet.messages import Assignment
from fleet.offers import Dispatch, Evicted, NodeState, Request
from fleet.outcomes import Outcome, Tier
from tests.gateway_process import FakeEngine, assignment

CAPACITY = 1_000


def request(number: int, tier: Tier = Tier.BATCH, tokens: int = 800) -> Request:
    return Request(f"req-{number}", "acme", tier, "m-70b", "chat", tokens - 40, 40)


def open_room(clock: ManualClock) -> tuple[Gate, WaitingRoom]:
    """A gate with one node of 1,000 tokens, 850 of them to book: one request of 800 at a time."""
    gate = Gate(random.Random(1))
    gate.apply(Assignment.model_validate(assignment([FakeEngine("node-1")])), clock.monotonic_s())
    see(gate, clock)
    return gate, WaitingRoom(gate, clock)


def see(gate: Gate, clock: ManualClock) -> None:
    now_s = clock.monotonic_s() + 0.001
    gate.observe([NodeState("node-1", True, now_s, CAPACITY, 0.0, 0, 0)], now_s)


def is_empty(gate: Gate, clock: ManualClock) -> bool:
    snapshot = gate.snapshot(clock.monotonic_s())
    return (
        snapshot.in_flight_requests == 0
        and snapshot.in_flight_tokens == 0
        and all(queue.requests == 0 for queue in snapshot.queues.values())
        and all(use.requests == 0 and use.tokens == 0 for use in snapshot.tenants.values())
    )


async def admitted(room: WaitingRoom, number: int) -> Dispatch:
    decision = await room.admit(request(number))
    assert isinstance(decision, Dispatch)
    return decision


def give_back(room: WaitingRoom, dispatch: Dispatch) -> bool:
    return room.release(dispatch.lease, prompt_tokens=1, output_tokens=1, outcome=Outcome.COMPLETED)


def test_a_release_wakes_the_next_and_a_second_release_changes_nothing(clock: ManualClock) -> None:
    async def scenario() -> None:
        gate, room = open_room(clock)
        first = await admitted(room, 1)
        waiting = asyncio.ensure_future(admitted(room, 2))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert give_back(room, first)
        second = await waiting
        assert not give_back(room, first)
        assert give_back(room, second)
        assert is_empty(gate, clock)
        room.close()

    asyncio.run(scenario())


def test_leaving_while_waiting_gives_the_place_back(clock: ManualClock) -> None:
    async def scenario() -> None:
        gate, room = open_room(clock)
        first = await admitted(room, 1)
        waiting = asyncio.ensure_future(room.admit(request(2)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        give_back(room, first)
        assert is_empty(gate, clock)
        room.close()

    asyncio.run(scenario())


def test_leaving_in_the_moment_of_being_started_gives_the_lease_back(clock: ManualClock) -> None:
    async def scenario() -> None:
        gate, room = open_room(clock)
        first = await admitted(room, 1)
        waiting = asyncio.ensure_future(room.admit(request(2)))
        await asyncio.sleep(0)
        give_back(room, first)  # starts the second: its lease is open, its task has not run yet
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert is_empty(gate, clock)
        room.close()

    asyncio.run(scenario())


def test_who_waited_too_long_is_told(clock: ManualClock) -> None:
    async def scenario() -> None:
        gate, room = open_room(clock)
        first = await admitted(room, 1)
        waiting = asyncio.ensure_future(room.admit(request(2)))
        await asyncio.sleep(0)
        clock.advance(30.5)  # batch waits 30 s
        see(gate, clock)
        room.pump()
        evicted = await waiting
        assert isinstance(evicted, Evicted)
        assert evicted.outcome is Outcome.EVICTED_WAIT
        give_back(room, first)
        assert is_empty(gate, clock)
        room.close()

    asyncio.run(scenario())


async def leave_and_finish(
    room: WaitingRoom, waiting: list[asyncio.Task[object]], running: list[Dispatch]
) -> None:
    for task in waiting:
        task.cancel()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    for dispatch in running + [result for result in results if isinstance(result, Dispatch)]:
        give_back(room, dispatch)


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_leaving_and_finishing_ends_empty(clock: ManualClock, seed: int) -> None:
    async def scenario() -> None:
        rng = random.Random(seed)
        gate, room = open_room(clock)
        running: list[Dispatch] = []
        waiting: list[asyncio.Task[object]] = []
        for number in range(120):
            match rng.choice(("offer", "offer", "leave", "finish", "time")):
                case "offer":
                    waiting.append(
                        asyncio.ensure_future(room.admit(request(number, rng.choice(list(Tier)))))
                    )
                case "leave" if waiting:
                    rng.choice(waiting).cancel()
                case "finish" if running:
                    give_back(room, running.pop(rng.randrange(len(running))))
                case _:
                    clock.advance(rng.uniform(0, 2))
                    see(gate, clock)
                    room.pump()
            if rng.random() < 0.7:
                await asyncio.sleep(0)
            for task in [task for task in waiting if task.done()]:
                waiting.remove(task)
                if not task.cancelled() and isinstance(result := task.result(), Dispatch):
                    running.append(result)
        await leave_and_finish(room, waiting, running)
        assert is_empty(gate, clock)
        room.close()

    asyncio.run(scenario())
