"""The observer's steps when they are slower than their deadline."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import QueuePool, create_engine

from control.cli_control import WORKERS
from control.database import make_engine
from control.deps import Deps, Leadership
from control.fleet_facts import FleetFacts
from control.jobs import Controller, Step
from control.observer import Observer
from control.own_metrics import ControlMetrics
from control.scrape import Scraper
from fleet.clock import ManualClock, SystemClock

T0 = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def observer() -> Observer:
    clock, metrics = SystemClock(), ControlMetrics()
    engine = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")  # never connected to
    nobody: Any = None  # nothing is asked
    deps = Deps(engine, clock, Leadership("me"), http=lambda: nobody, admin_token="t" * 16)
    return Observer(deps, Scraper(nobody, clock, metrics, period_s=10.0, deadline_s=5.0), metrics)


def test_a_hanging_database_leaves_threads_to_the_scraper() -> None:
    """Each connection may hang in one thread, and each step in another that waits for a connection."""
    pool = make_engine("postgresql://127.0.0.1:1/none").pool
    assert isinstance(pool, QueuePool)
    steps = observer_steps()
    assert pool.size() + pool._max_overflow + len(steps) + 4 <= WORKERS


def observer_steps() -> list[Step]:
    steps = observer()
    usage_and_ledger: Any = (None, None)
    return Controller(steps._deps, steps, steps._metrics, 10.0, extra=usage_and_ledger).steps()


def test_a_refill_slower_than_its_step_is_not_started_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    finish, starts = threading.Event(), 0

    def slow_load(_observer: Observer, _assessor: object) -> FleetFacts:
        nonlocal starts
        starts += 1
        assert finish.wait(30)
        return FleetFacts()

    monkeypatch.setattr(Observer, "_load", slow_load)

    async def turns() -> str:
        steps = observer()
        for _ in range(3):  # as the loop does: the step's deadline passes, its next turn comes
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await steps.load_facts()
        finish.set()
        return await steps.load_facts()

    assert asyncio.run(turns()) == "0 nodes in 0 pools, 0 gateways"
    assert starts == 1


def test_rounds_keep_their_pace_and_their_stamps_rise_when_the_wall_clock_is_set_back() -> None:
    class Wall(ManualClock):
        ahead = timedelta(0)

        def now(self) -> datetime:
            return super().now() + self.ahead

    clock, stamps = Wall(T0), []

    class Watched:
        async def observe(self, at: datetime, lag_s: float) -> str:
            assert lag_s >= 0
            stamps.append((at - T0).total_seconds())
            return "observed"

    watched: Any = Watched()
    nobody: Any = None
    deps = Deps(observer()._deps.engine, clock, Leadership("me"), http=nobody, admin_token="t" * 16)
    controller = Controller(deps, watched, ControlMetrics(), 10.0)

    def live(seconds: int) -> None:
        for _ in range(seconds):
            asyncio.run(controller._observe())
            clock.advance(1.0)

    live(30)
    assert stamps == [0.0, 10.0, 20.0]
    clock.ahead = timedelta(hours=-1)  # set back
    live(30)
    assert stamps == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
    clock.ahead = timedelta(hours=1)  # set forward: 3660 s, and the grid again
    live(20)
    assert stamps[6:] == [3660.0, 3670.0]


def test_a_round_not_done_within_its_time_is_counted_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slot is taken, so that no later round tells of it: the count is all there is to see."""

    async def never(_observer: Observer, _at: datetime, _lag_s: float) -> str:
        await asyncio.Event().wait()
        return "observed"

    monkeypatch.setattr(Observer, "observe", never)

    async def turn() -> None:
        watched = observer()
        controller = Controller(watched._deps, watched, watched._metrics, 10.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await controller._observe()
        lost = watched._metrics.registry.get_sample_value(
            "rhodeck_control_rounds_dropped_total", {"why": "failed"}
        )
        assert (lost, watched.writer.dropped) == (1, 1)

    asyncio.run(turn())
