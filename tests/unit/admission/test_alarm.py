"""One timer for many that wait: everybody is told once their time is up, nobody before, nobody twice."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from admission.alarm import Alarm


@dataclass(eq=False)
class Sleeper:
    """Waits until `due_s`; notes when it was told."""

    due_s: float
    told_at_s: list[float] = field(default_factory=list[float])
    is_told: asyncio.Event = field(default_factory=asyncio.Event)

    def time_is_up(self, now_s: float) -> None:
        self.told_at_s.append(now_s)
        self.is_told.set()


def test_all_are_told_once_and_not_before_their_time() -> None:
    async def body() -> list[Sleeper]:
        loop, rng = asyncio.get_running_loop(), random.Random(7)
        alarm = Alarm(loop)
        sleepers = [Sleeper(loop.time() + rng.uniform(0.0, 0.2)) for _ in range(200)]
        for one in sleepers:
            alarm.watch(one)
        async with asyncio.timeout(60):
            for one in sleepers:
                await one.is_told.wait()
        alarm.close()
        return sleepers

    for one in asyncio.run(body()):
        assert len(one.told_at_s) == 1
        assert one.told_at_s[0] >= one.due_s


def test_deadlines_may_move_either_way_and_who_leaves_hears_nothing() -> None:
    async def body() -> tuple[Sleeper, Sleeper, Sleeper]:
        loop = asyncio.get_running_loop()
        alarm, now_s = Alarm(loop), loop.time()
        sooner, later, gone = Sleeper(now_s + 3_600), Sleeper(now_s + 0.01), Sleeper(now_s + 0.01)
        for one in (sooner, later, gone):
            alarm.watch(one)
        alarm.leave(gone)
        later.due_s = now_s + 0.3  # nothing is said: the timer finds out when it rings
        sooner.due_s = now_s + 0.02
        alarm.watch(sooner)
        async with asyncio.timeout(60):
            await sooner.is_told.wait()
            await later.is_told.wait()
        alarm.close()
        return sooner, later, gone

    sooner, later, gone = asyncio.run(body())
    assert later.told_at_s[0] >= later.due_s > sooner.due_s
    assert (len(sooner.told_at_s), len(later.told_at_s), gone.told_at_s) == (1, 1, [])


class Faulty(Sleeper):
    """One whose telling fails."""

    def time_is_up(self, now_s: float) -> None:
        super().time_is_up(now_s)
        raise RuntimeError("a fault of one")


def test_a_fault_of_one_that_is_told_leaves_the_others_watched() -> None:
    async def body() -> tuple[list[Sleeper], list[str]]:
        loop, faults = asyncio.get_running_loop(), list[str]()
        loop.set_exception_handler(lambda _, context: faults.append(str(context["exception"])))
        alarm, now_s = Alarm(loop), loop.time()
        sleepers = [Faulty(now_s), Sleeper(now_s), Faulty(now_s), Sleeper(now_s + 0.05)]
        for one in sleepers:
            alarm.watch(one)
        async with asyncio.timeout(60):
            for one in sleepers:
                await one.is_told.wait()
        late = Sleeper(loop.time() + 0.05)  # after all that: it is watched as any
        alarm.watch(late)
        async with asyncio.timeout(60):
            await late.is_told.wait()
        alarm.close()
        return [*sleepers, late], faults

    told, faults = asyncio.run(body())
    assert [len(one.told_at_s) for one in told] == [1, 1, 1, 1, 1]
    assert faults == ["a fault of one"] * 2
