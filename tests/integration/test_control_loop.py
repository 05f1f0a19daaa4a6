"""The controller's loop and process: steps in their turn, failures, leadership, signals, own pages."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from control import commands_fleet
from control.database import make_engine, upgrade
from control.deps import Deps, Leadership
from control.embedded import EmbeddedPostgres, socket_dsn
from control.fetch import open_session
from control.jobs import Controller, Loop, Step, When
from control.observer import Observer, slot_of
from control.own_metrics import ControlMetrics
from control.roles import Actor, Role
from control.scrape import Scraper
from control.tables import HealthRow, LeaseRow, NodeRow, PoolRow, RoundRow, SampleRow
from fleet.clock import ManualClock, SystemClock
from fleet.errors import Unavailable
from tests.postgres_server import THROW_AWAY, FreshDatabase, open_folder
from tests.small_node import page, small_nodes

TOKEN = "a-token-of-the-tests-only"
ADA = Actor("ada", Role.OPERATOR, "cli")


class Script:
    """A step that does what it is told and counts its runs."""

    def __init__(self) -> None:
        self.runs = 0
        self.raises: Exception | None = None
        self.gate: asyncio.Event | None = None

    async def __call__(self) -> str:
        self.runs += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.raises is not None:
            raise self.raises
        return "done"


async def turn(loop: Loop, clock: ManualClock, seconds: float = 1.0) -> None:
    """Tick, let what it started run as far as it can, and move the clock."""
    await loop.tick()
    for _ in range(10):
        await asyncio.sleep(0)
    clock.advance(seconds)


def make_loop(clock: ManualClock, *steps: Step, ready: Callable[[When], bool] = lambda _: True) -> Loop:
    return Loop(clock, steps, ControlMetrics(), ready)


def test_each_step_runs_at_its_own_period(clock: ManualClock):
    async def run() -> None:
        often, seldom = Script(), Script()
        loop = make_loop(clock, Step("often", 1, 5, often), Step("seldom", 5, 5, seldom))
        for _ in range(11):  # seconds 0 to 10
            await turn(loop, clock)
        assert (often.runs, seldom.runs) == (11, 3)

    asyncio.run(run())


def test_a_step_that_hangs_never_runs_beside_itself_and_delays_no_other(clock: ManualClock):
    async def run() -> None:
        stuck, other = Script(), Script()
        stuck.gate = asyncio.Event()
        loop = make_loop(clock, Step("stuck", 1, 600, stuck), Step("other", 1, 5, other))
        for _ in range(5):
            await turn(loop, clock)
        assert (stuck.runs, other.runs) == (1, 5)
        stuck.gate.set()
        await turn(loop, clock)
        await turn(loop, clock)
        assert stuck.runs == 2

    asyncio.run(run())


def test_expected_errors_are_counted_and_tried_again(clock: ManualClock):
    async def run() -> None:
        for problem in (Unavailable("slow"), OperationalError("select", {}, Exception("slow"))):
            step = Script()
            step.raises = problem
            loop = make_loop(clock, Step("step", 1, 5, step))
            for _ in range(3):
                await turn(loop, clock)
            assert step.runs == 3
            sample = loop.metrics.registry.get_sample_value
            assert sample("rhodeck_control_step_failures_total", {"step": "step"}) == 3
            assert "slow" in loop.problem(60.0)

    asyncio.run(run())


def test_an_unexpected_error_ends_the_loop_with_that_error(clock: ManualClock):
    async def run() -> None:
        step = Script()
        step.raises = KeyError("a bug")
        with pytest.raises(KeyError, match="a bug"):
            await make_loop(clock, Step("step", 1, 5, step)).run()

    asyncio.run(run())


def test_steps_wait_for_their_condition(clock: ManualClock):
    async def run() -> None:
        allowed: set[When] = {When.ALWAYS}
        always, leading = Script(), Script()
        loop = make_loop(
            clock,
            Step("always", 1, 5, always, When.ALWAYS),
            Step("leading", 1, 5, leading, When.LEADING),
            ready=lambda when: when in allowed,
        )
        await turn(loop, clock)
        assert (always.runs, leading.runs) == (1, 0)
        allowed.add(When.LEADING)
        await turn(loop, clock)
        assert (always.runs, leading.runs) == (2, 1)

    asyncio.run(run())


def test_a_loop_whose_first_step_fails_for_a_minute_says_so(clock: ManualClock):
    async def run() -> None:
        lease = Script()
        loop = make_loop(clock, Step("lease", 5, 5, lease))
        await turn(loop, clock)
        assert loop.problem(60.0) == ""
        lease.raises = Unavailable("Postgres is away")
        for _ in range(70):
            await turn(loop, clock)
        assert "Postgres is away" in loop.problem(60.0)

    asyncio.run(run())


def test_rounds_are_stamped_on_a_grid_of_whole_periods():
    at = datetime(2026, 3, 2, 12, 0, 17, 900_000, tzinfo=UTC)
    assert slot_of(at, 10.0) == datetime(2026, 3, 2, 12, 0, 10, tzinfo=UTC)
    assert slot_of(at, 1.0) == datetime(2026, 3, 2, 12, 0, 17, tzinfo=UTC)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@contextmanager
def controller(dsn: str, port: int, **settings: str) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {
        "DATABASE_URL": dsn,
        "RHODECK_ADMIN_TOKEN": TOKEN,
        "RHODECK_SCRAPE_PERIOD_S": "1",
        "RHODECK_LEASE_TTL_S": "3",
        "RHODECK_CONTROL_PORT": str(port),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "control", "control"],
        env=environment | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def simulated_nodes(count: int) -> Iterator[list[dict[str, str]]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "simfleet", "--nodes", str(count), "--profile", "tiny", "--seed", "1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            if line.strip() == "ready":
                break
            lines.append(line)
        yield [json.loads(line) for line in lines]
    finally:
        process.kill()
        process.communicate()


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            pytest.fail(
                f"the controller ended with {process.returncode}: {process.communicate()[0][-3000:]}"
            )
        if time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"not within {seconds:g} s; it said: {process.communicate()[0][-3000:]}")
        time.sleep(0.1)


def ask(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as problem:
        return problem.code, problem.read().decode()
    except OSError:
        return 0, ""


@pytest.mark.postgres
@pytest.mark.slow
def test_a_controller_observes_a_standby_takes_over_and_both_stop_cleanly(database: FreshDatabase):
    def scalar(query: object) -> object:
        with Session(database.engine) as session:
            return session.scalar(query)  # type: ignore[call-overload]

    def rounds() -> int:
        return int(str(scalar(select(func.count()).select_from(RoundRow))))

    with simulated_nodes(2) as nodes:
        with Session(database.engine) as session, session.begin():
            now = datetime(2026, 3, 2, tzinfo=UTC)
            session.add(PoolRow(name="p", models=["tiny"], created_at=now))
            session.flush()
            for node in nodes:
                session.add(
                    NodeRow(
                        name=node["name"], pool="p", base_url=node["base_url"], price_class="spot",
                        state="active", created_at=now,
                    )
                )  # fmt: skip
        ports = free_port(), free_port()
        with controller(database.dsn, ports[0]) as first:
            wait_for(lambda: rounds() >= 3, first)
            wait_for(lambda: ask(ports[0], "/healthz")[0] == 200, first)
            assert 'rhodeck_control_scrapes_total{result="ok"}' in ask(ports[0], "/metrics")[1]
            leader = scalar(select(LeaseRow.owner))
            assert scalar(select(func.count(func.distinct(SampleRow.node)))) == 2
            assert scalar(select(func.count()).select_from(HealthRow).where(HealthRow.scope == "fleet"))
            with controller(database.dsn, ports[1]) as second:
                wait_for(lambda: ask(ports[1], "/healthz")[0] == 200, second)
                assert "rhodeck_control_is_leader 0.0" in ask(ports[1], "/metrics")[1]
                assert scalar(select(LeaseRow.owner)) == leader
                first.kill()  # no goodbye: the lease has to run out
                first.wait()
                wait_for(lambda: scalar(select(LeaseRow.epoch)) == 2, second)
                seen = rounds()
                wait_for(lambda: rounds() >= seen + 2, second)
                second.send_signal(signal.SIGTERM)
                said, _ = second.communicate(timeout=60)
                assert second.returncode == 0, said[-2000:]
                assert "Traceback" not in said
    # the lease was given back: nobody has to wait for its end
    with Session(database.engine) as session:
        assert session.scalar(select(LeaseRow.expires_at <= func.now()))


@pytest.mark.postgres
@pytest.mark.slow
def test_scraping_goes_on_while_postgres_is_away_and_no_round_is_lost():
    async def run(server: EmbeddedPostgres, engine: Engine) -> tuple[ControlMetrics, int]:
        metrics, clock = ControlMetrics(), SystemClock()
        read = metrics.registry.get_sample_value

        async def until(condition: Callable[[], bool]) -> None:
            async with asyncio.timeout(120):
                while not condition():
                    assert not task.done(), task
                    await asyncio.sleep(0.1)

        async with open_session() as http, small_nodes(1) as (node,):
            node.body = page(running=1)
            with Session(engine) as session, session.begin():
                commands_fleet.add_pool(session, ADA, name="p", models=["m"], now=clock.now())
                commands_fleet.add_node(session, ADA, name="n", url=node.url, pool="p", now=clock.now())
            deps = Deps(
                engine, clock, Leadership("me"), lambda: http, TOKEN, lease_ttl_s=3, lease_margin_s=1
            )
            scraper = Scraper(http, clock, metrics, period_s=1, deadline_s=0.8)
            observer = Observer(deps, scraper, metrics)
            controller = Controller(deps, observer, metrics, 1)
            loop = controller.loop()
            task = asyncio.create_task(loop.run())
            await until(lambda: (read("rhodeck_control_rounds_stored_total") or 0) >= 2)
            await asyncio.to_thread(server.stop)
            # the lease runs out too: whoever led and cannot ask goes on reading, and writes nothing
            await until(lambda: len(observer.writer) >= 5)
            assert deps.leadership.current(clock) is None
            server.start()  # in this thread: the server ends with the one that starts it
            await until(lambda: len(observer.writer) == 0)
            loop.stop()
            await task
            await controller.give_up()
        return metrics, len(observer.writer)

    with open_folder() as folder, EmbeddedPostgres(folder / "pg", options=THROW_AWAY) as server:
        dsn = socket_dsn(server.folder)
        upgrade(dsn)
        engine = make_engine(dsn)
        try:
            metrics, left = asyncio.run(run(server, engine))
            read = metrics.registry.get_sample_value
            assert left == 0
            with Session(engine) as session:
                stored = session.scalar(select(func.count()).select_from(RoundRow))
                samples = session.scalar(select(func.count()).select_from(SampleRow))
                assert session.scalar(select(LeaseRow.epoch)) == 2
            assert stored == samples == read("rhodeck_control_rounds_total")
            for why in ("buffer_full", "refused", "stamp_taken", "another_leads"):
                assert not read("rhodeck_control_rounds_dropped_total", {"why": why})
        finally:
            engine.dispose()


@pytest.mark.postgres
def test_a_controller_without_a_token_says_what_to_set_and_does_not_start(database: FreshDatabase):
    with controller(database.dsn, 0, RHODECK_ADMIN_TOKEN="") as process:
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "RHODECK_ADMIN_TOKEN_FILE" in said
    assert "Traceback" not in said
