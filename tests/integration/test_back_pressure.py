"""While Postgres is paused or slow, rounds keep their pace, memory its bound, every round its true time."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psutil
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from control import commands_fleet
from control.cli_control import WORKERS
from control.database import make_engine, upgrade
from control.deps import Deps, Leadership
from control.embedded import EmbeddedPostgres, socket_dsn
from control.fetch import open_session
from control.jobs import Controller
from control.observer import Observer
from control.own_metrics import ControlMetrics
from control.roles import Actor, Role
from control.round_buffer import OPEN_ROUNDS, OPEN_ROW_BYTES, RoundBuffer
from control.scrape import Scraper
from control.tables import RoundRow, SampleRow, ScrapeFailureRow
from fleet.clock import SystemClock
from tests.postgres_server import THROW_AWAY, open_folder
from tests.small_node import page, small_nodes

ADA = Actor("ada", Role.OPERATOR, "cli")
TOKEN = "a-token-of-the-tests-only"


class Running:
    """A controller in this process, with one node and a round a second."""

    def __init__(self, observer: Observer, metrics: ControlMetrics, task: asyncio.Task[None]) -> None:
        self.observer = observer
        self.task = task
        self._read = metrics.registry.get_sample_value

    def value(self, name: str, **labels: str) -> float:
        return self._read(f"rhodeck_control_{name}", labels) or 0.0

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not condition():
                assert not self.task.done(), self.task
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def a_controller(engine: Engine) -> AsyncGenerator[Running]:
    metrics, clock = ControlMetrics(), SystemClock()
    async with open_session() as http, small_nodes(1) as (node,):
        node.body = page(running=1)
        with Session(engine) as session, session.begin():
            commands_fleet.add_pool(session, ADA, name="p", models=["m"], now=clock.now())
            commands_fleet.add_node(session, ADA, name="n", url=node.url, pool="p", now=clock.now())
        deps = Deps(engine, clock, Leadership("me"), lambda: http, TOKEN, lease_ttl_s=3, lease_margin_s=1)
        observer = Observer(deps, Scraper(http, clock, metrics, period_s=1, deadline_s=0.8), metrics)
        controller = Controller(deps, observer, metrics, 1)
        loop = controller.loop()
        running = Running(observer, metrics, asyncio.create_task(loop.run()))
        try:
            yield running
        finally:
            loop.stop()
            await running.task
            await controller.give_up()


@contextlib.contextmanager
def paused(server: EmbeddedPostgres) -> Iterator[None]:
    """Stop every process of the server where it stands, as a hanging disk or a live migration does."""
    pid = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in reversed(processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def slow(server: EmbeddedPostgres) -> Iterator[None]:
    """Let each round take longer to write than the next takes to come."""
    with psycopg.connect(socket_dsn(server.folder), autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_sleep(3); RETURN NULL; END $$"
        )
        connection.execute("CREATE TRIGGER dawdle AFTER INSERT ON round EXECUTE FUNCTION dawdle()")
        try:
            yield
        finally:
            connection.execute("SET lock_timeout = '60s'")
            connection.execute("DROP TRIGGER dawdle ON round")


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.parametrize("trouble", [paused, slow])
def test_rounds_keep_their_pace_and_all_are_written_with_their_own_times(trouble):
    async def run(server: EmbeddedPostgres, engine: Engine) -> Running:
        # as `rhodeck control` does: with a thread per core a hanging database would hold all of them
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(WORKERS))
        async with a_controller(engine) as controller:
            await controller.until(lambda: controller.value("rounds_stored_total") >= 2)
            enter = trouble(server)
            await asyncio.to_thread(enter.__enter__)
            try:
                before = controller.value("rounds_total")
                await controller.until(
                    lambda: (
                        controller.value("rounds_buffered") >= 4
                        and controller.value("rounds_total") >= before + 5
                    )  # nobody waits for the database
                )
                assert controller.value("buffer_bytes") > 0
            finally:
                await asyncio.to_thread(enter.__exit__, None, None, None)
            caught_up = controller.value("rounds_total") + 2
            await controller.until(
                lambda: (
                    controller.value("rounds_stored_total") >= caught_up
                    and controller.value("rounds_buffered") == 0
                )
            )
        return controller

    with open_folder() as folder, EmbeddedPostgres(folder / "pg", options=THROW_AWAY) as server:
        dsn = socket_dsn(server.folder)
        upgrade(dsn)
        engine = make_engine(dsn)
        try:
            controller = asyncio.run(run(server, engine))
            assert len(controller.observer.writer) == 0
            for why in ("buffer_full", "refused", "another_leads"):
                assert controller.value("rounds_dropped_total", why=why) == 0
            with Session(engine) as session:
                stored = session.scalars(select(RoundRow.at).order_by(RoundRow.at)).all()
                samples = session.scalar(select(func.count()).select_from(SampleRow))
                failures = session.scalar(select(func.count()).select_from(ScrapeFailureRow))
                assert samples + failures == len(stored)  # a busy machine may make the node late
            # each once, in spite of lost answers; but for one that was cut off by the stop
            assert 0 <= controller.value("rounds_total") - len(stored) <= 1
            # stamps are the rounds' own: whole seconds, and as many missing as were counted as missing
            assert all(at.microsecond == 0 for at in stored)
            span = stored[-1] - stored[0]
            missing = span // timedelta(seconds=1) + 1 - len(stored)
            failed = controller.value("rounds_dropped_total", why="failed")
            assert missing <= controller.value("rounds_skipped_total") + failed
        finally:
            engine.dispose()


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=40),
    room=st.integers(1, 200),
    takes=st.lists(st.integers(0, 3), min_size=40, max_size=40),
)
def test_the_buffer_is_a_queue_that_forgets_its_oldest_and_keeps_its_bound(sizes, room, takes):
    max_bytes = room * OPEN_ROW_BYTES
    buffer: RoundBuffer[tuple[int, bytes]] = RoundBuffer(max_bytes)
    model: list[int] = []
    for number, (rows, take) in enumerate(zip(sizes, takes, strict=False)):
        value = (number, random.Random(number).randbytes(100 * rows))
        dropped = buffer.append(value, rows)
        model.append(number)
        del model[:dropped]
        assert len(buffer) == len(model)
        assert buffer.bytes <= max_bytes or len(buffer) == 1
        for _ in range(take):
            first = buffer.first()
            if first is None:
                assert model == []
                break
            key, (found, body) = first
            assert found == model.pop(0)
            assert body == random.Random(found).randbytes(len(body))
            buffer.done(key)
            buffer.done(key)  # twice: the second is for a round that is gone
    assert buffer.clear() == len(model)
    assert buffer.bytes == 0


def test_a_round_dropped_while_it_is_written_does_not_take_the_next_with_it():
    buffer: RoundBuffer[str] = RoundBuffer(2 * OPEN_ROW_BYTES)
    buffer.append("a", 1)
    number, value = buffer.first() or (0, "")
    assert value == "a"
    assert buffer.append("b", 1) == 0
    assert buffer.append("c", 1) == 1  # "a" goes while somebody writes it
    buffer.done(number)
    assert (len(buffer), buffer.first()) == (2, (1, "b"))


def test_only_the_newest_rounds_are_held_open():
    buffer: RoundBuffer[bytes] = RoundBuffer(10**9)
    for _ in range(OPEN_ROUNDS + 10):
        buffer.append(bytes(100_000), 100)
    assert buffer.bytes < OPEN_ROUNDS * 100 * OPEN_ROW_BYTES + 10 * 1000  # zeros pack to almost nothing
