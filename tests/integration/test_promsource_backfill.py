"""History read in from a real VictoriaMetrics: exact, once, resumed, never over direct samples."""

from __future__ import annotations

import asyncio
import urllib.parse
import urllib.request
from collections.abc import Generator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, func, select, text
from sqlalchemy.orm import Session

from control import rollup_due
from control.database import session_scope
from control.fetch import open_session
from control.promsource import PromClient, SourceSettings
from control.promsource_backfill import Backfiller, begin
from control.queries_promsource import Backfill, NodeSource, backfills
from control.rollup import Roller
from control.rounds import EngineSample, NodeResult, Round
from control.sample_store import EdgeIds, write_round
from control.tables import RoundRow, SampleRow
from fleet.clock import ManualClock, SystemClock
from fleet.errors import Conflict, InvalidInput, Unavailable
from tests.integration.test_scrape_store import window
from tests.postgres_server import FreshDatabase
from tests.prom_servers import PromServer, victoria_metrics
from tests.small_node import page

pytestmark = pytest.mark.postgres

PERIOD_S = 10
PAGES = 150  # 25 minutes
NODES = ("a", "b")
#: Node b is restarted between two pages: its counters begin again, and grow past what they were.
RESTART = 60


def grid(number: int) -> datetime:
    """Time of page `number`, two hours ago; half a second after the round that shows it began."""
    return _START + timedelta(seconds=PERIOD_S * number)


_NOW = SystemClock().now()
_START = datetime.fromtimestamp(_NOW.timestamp() // 600 * 600 - 7200, UTC)


def finished(node: str, number: int) -> int:
    """Requests finished since the process began: 3 a page on a, 2 on b, which is new at RESTART."""
    if node == "a":
        return 100 + 3 * number
    return 50 + 2 * number if number < RESTART else 1000 + 2 * (number - RESTART)


def body(node: str, number: int) -> bytes:
    done = finished(node, number)
    return page(
        finished=done,
        prompt=100 * done,
        generated=20 * done,
        running=2,
        kv=0.25,
        itl=(20 * done, 0.4 * done),
        started_s=1_000.0 if node == "a" or number < RESTART else 2_000.0,
    )


def increments(node: str, first: int, last: int) -> int:
    """Requests a scraper sees finish in pages first..last, each against the page before it."""
    total = 0
    for number in range(first, last + 1):
        restarted = node == "b" and number == RESTART
        total += finished(node, number) - (0 if restarted else finished(node, number - 1))
    return total


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Generator[PromServer]:
    """A server that scraped both nodes each ten seconds, two hours ago."""
    with victoria_metrics(tmp_path_factory.mktemp("history"), None) as server:
        for node in NODES:
            labels = urllib.parse.urlencode(
                [("extra_label", f"instance={node}:8000"), ("extra_label", "job=vllm")]
            )
            for number in range(PAGES):
                at_ms = round(grid(number).timestamp() * 1000) - 500
                url = f"{server.url}/api/v1/import/prometheus?{labels}&timestamp={at_ms}"
                with urllib.request.urlopen(url, body(node, number) + b"up 1\n", timeout=60):
                    pass
        urllib.request.urlopen(f"{server.url}/internal/force_flush", timeout=60).close()
        yield server


def backfiller(engine: Engine, http, server: PromServer) -> Backfiller:
    client = PromClient(http, SystemClock(), SourceSettings("main", server.url))
    nodes = [NodeSource(node, "main", f"{node}:8000") for node in NODES]
    return Backfiller(engine, client, SystemClock(), nodes, dict.fromkeys(NODES, "p"))


def job(engine: Engine, first: int = 0, last: int = PAGES - 1) -> Backfill:
    with session_scope(engine) as session:
        return begin(
            session,
            "main",
            since=grid(first),
            until=grid(last),
            period_s=PERIOD_S,
            keep_days=400,
            now=_NOW,
        )


def run(database: FreshDatabase, server: PromServer, *, steps: int | None = None) -> list[Backfill]:
    """Run the whole range, or only so many pages of it, in a fresh process's state."""
    said: list[Backfill] = []

    async def read() -> None:
        async with open_session() as http:
            filler, current = backfiller(database.engine, http, server), job(database.engine)
            if steps is None:
                await filler.run(current, said.append)
                return
            for _ in range(steps):
                current = await filler.step(current)
                said.append(current)

    asyncio.run(read())
    return said


def rows(session: Session, node: str) -> Sequence[tuple[int, int | None, float | None]]:
    s = SampleRow
    return session.execute(
        select(func.count(), func.sum(s.completed), func.sum(s.covered_s)).where(s.node == node)
    ).one()


def test_history_is_the_truth_and_a_second_run_adds_nothing(
    database: FreshDatabase, session: Session, history: PromServer
):
    said = run(database, history)
    assert said[-1].done_until == said[-1].until == grid(PAGES - 1)
    assert [one.done_ratio for one in said] == sorted(one.done_ratio for one in said)
    for node in NODES:  # the page of the round that begins the range is the one before it
        assert rows(session, node) == (
            PAGES - 1,
            increments(node, 1, PAGES - 1),
            pytest.approx(PERIOD_S * (PAGES - 1)),
        )
    assert session.scalar(select(func.count()).select_from(RoundRow)) == PAGES - 1
    restarted = select(func.count()).where(SampleRow.restarted)
    assert session.scalar(restarted) == 1
    session.rollback()
    assert run(database, history) == []  # it is done
    with session_scope(database.engine) as again:  # and the same history asked for under another range
        begin(
            again,
            "main",
            since=grid(-60),
            until=grid(PAGES),
            period_s=PERIOD_S,
            keep_days=400,
            now=_NOW,
        )

    # before the range there is one page: a first sight without increments
    assert rerun(database, history).samples == 2
    assert rows(session, "a")[1] == increments("a", 1, PAGES - 1)


def test_a_run_that_was_ended_goes_on_where_it_stopped(
    database: FreshDatabase, session: Session, history: PromServer
):
    first = run(database, history, steps=1)[-1]
    assert first.done_until == grid(60)
    rest = run(database, history)
    assert rest[0].done_until == grid(120)
    assert rows(session, "a") == (
        PAGES - 1,
        increments("a", 1, PAGES - 1),
        pytest.approx(PERIOD_S * (PAGES - 1)),
    )
    assert rows(session, "b")[1] == increments("b", 1, PAGES - 1)


def test_two_processes_cannot_move_one_back_fill(database: FreshDatabase, history: PromServer):
    async def both() -> None:
        async with open_session() as http:
            current = job(database.engine)
            await backfiller(database.engine, http, history).step(current)
            with pytest.raises(Conflict, match="another process"):
                await backfiller(database.engine, http, history).step(current)

    asyncio.run(both())


def test_direct_samples_stay_as_they_are(database: FreshDatabase, session: Session, history: PromServer):
    direct = range(30, 40)  # a was scraped directly then, and counted 7 a round
    with session_scope(database.engine) as writing:
        for number in direct:
            sample = EngineSample("0", window(completed=7), float(PERIOD_S))
            result = NodeResult("a", "p", 0.02, (sample,))
            write_round(writing, Round(grid(number), PERIOD_S, 0.5, 0.1, (result,)), EdgeIds())
    run(database, history)
    s = SampleRow
    kept = session.scalars(
        select(s.completed).where(s.node == "a", s.at >= grid(30), s.at < grid(40)).order_by(s.at)
    )
    assert list(kept) == [7] * len(direct)
    others = increments("a", 1, 29) + increments("a", 40, PAGES - 1)
    assert rows(session, "a")[1] == 7 * len(direct) + others
    assert rows(session, "b")[1] == increments("b", 1, PAGES - 1)  # whom nobody scraped


def rolled_up(session: Session, node: str) -> tuple[int, float]:
    query = text(
        "SELECT sum(completed), sum(covered_s) FROM engine_minute WHERE scope = 'engine' AND name = :node"
    )
    completed, covered_s = session.execute(query, {"node": node}).one()
    return int(completed), covered_s


def test_rollups_cover_the_history_and_keep_it_from_being_read_twice(
    database: FreshDatabase, session: Session, history: PromServer
):
    run(database, history)
    roller = Roller(database.engine, ManualClock(_NOW))
    roller.run(_NOW, budget_s=120.0)
    whole = (increments("b", 1, PAGES - 1), pytest.approx(PERIOD_S * (PAGES - 1)))
    assert rolled_up(session, "b") == whole
    session.rollback()
    with session_scope(database.engine) as dropping:  # as retention does
        dropping.execute(text("DELETE FROM sample"))
        rollup_due.raise_horizon(dropping, "sample", grid(PAGES + 60))
        begin(
            dropping, "main", since=grid(-60), until=grid(PAGES), period_s=PERIOD_S, keep_days=400, now=_NOW
        )
    assert rerun(database, history).samples == 0
    roller.run(_NOW, budget_s=120.0)
    assert rolled_up(session, "b") == whole


def test_a_direct_sample_that_reaches_back_before_its_minute_is_not_counted_again_once_dropped(
    database: FreshDatabase, session: Session, history: PromServer
):
    reach = 2 * 60 // PERIOD_S  # two minutes without an answer, then one for all of them
    late = next(n for n in range(reach + 5, PAGES) if grid(n).second == 0)
    with session_scope(database.engine) as writing:
        sample = EngineSample("0", window(completed=7), float(reach * PERIOD_S))
        result = NodeResult("a", "p", 0.02, (sample,))
        write_round(writing, Round(grid(late), PERIOD_S, 0.5, 0.1, (result,)), EdgeIds())
    roller = Roller(database.engine, ManualClock(_NOW))
    roller.run(_NOW, budget_s=120.0)
    with session_scope(database.engine) as dropping:  # as retention does
        dropping.execute(text("DELETE FROM sample"))
        rollup_due.raise_horizon(dropping, "sample", grid(PAGES + 60))
    run(database, history)
    roller.run(_NOW, budget_s=120.0)
    counted = range(late - reach + 1, late + 60 // PERIOD_S)  # its time, and the rest of its minute
    others = sum(increments("a", n, n) for n in range(1, PAGES) if n not in counted)
    assert rolled_up(session, "a")[0] == 7 + others


def rerun(database: FreshDatabase, server: PromServer) -> Backfill:
    """Run the newest back-fill to its end."""

    async def read() -> Backfill:
        async with open_session() as http:
            with session_scope(database.engine) as session:
                newest = backfills(session, "main")[0]
            return await backfiller(database.engine, http, server).run(newest, lambda _job: None)

    return asyncio.run(read())


@pytest.mark.parametrize(
    ("since", "until", "field"),
    [
        (_NOW - timedelta(hours=1), _NOW - timedelta(hours=1), "from"),
        (_NOW - timedelta(hours=1), _NOW, "to"),
        (_NOW - timedelta(days=401), _NOW - timedelta(days=1), "from"),
    ],
)
def test_ranges_that_cannot_be_are_refused(session: Session, since: datetime, until: datetime, field: str):
    with pytest.raises(InvalidInput) as refused:
        begin(session, "main", since=since, until=until, period_s=10, keep_days=400, now=_NOW)
    assert refused.value.field == field


def test_nothing_is_marked_done_when_the_source_is_down(
    database: FreshDatabase, session: Session, tmp_path: Path
):
    with victoria_metrics(tmp_path, None) as server:
        server.stop()
        with pytest.raises(Unavailable, match="source main"):
            run(database, server)
    assert [one.done_ratio for one in backfills(session)] == [0.0]
    assert session.scalar(select(func.count()).select_from(SampleRow)) == 0
