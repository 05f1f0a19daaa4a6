"""Whose sums a sample is part of is settled when it is taken: nodes move and rest afterwards."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from control.database import session_scope
from control.fleet_facts import load_fleet
from control.partitions import make_partitions
from control.queries_history import latency_history
from control.queries_latency import latency_quantiles
from control.rollup import Roller
from control.sample_store import EdgeIds, edges_of, write_round
from control.scrape import EngineSample, NodeResult, Round
from control.tables import NodeRow, PoolRow
from fleet.clock import ManualClock
from fleet.readings import EngineWindow, Histogram
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

T0 = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)
PERIOD_S = 20.0
LATER = T0 + timedelta(hours=2)


def a_round(number: int, pools: dict[str, str]) -> Round:
    """Every node finished ten requests, each within 0.1 s; `pools` says where it counts."""
    window = EngineWindow(
        engine="0", model="m", length_s=PERIOD_S, restarted=False, arrivals=10, completed=10, errors=0,
        aborted=0, prompt_tokens=10, prompt_tokens_computed=None, generation_tokens=10, preemptions=0,
        prefix_cache_hits=None, prefix_cache_queries=None, running=1, waiting=0, waiting_capacity=None,
        kv_used_ratio=0.5, kv_capacity_tokens=1000, histograms={"ttft_s": Histogram((0.1,), (10, 0), 0.5)},
    )  # fmt: skip
    sample = (EngineSample("0", window, PERIOD_S),)
    nodes = tuple(NodeResult(name, pool, 0.1, sample) for name, pool in pools.items())
    return Round(T0 + timedelta(seconds=PERIOD_S * number), PERIOD_S, 0.1, 0.0, nodes)


@pytest.fixture
def engine(database: FreshDatabase) -> Engine:
    with session_scope(database.engine) as session:
        session.add_all(PoolRow(name=name, models=["m"], created_at=T0) for name in ("p", "q"))
        session.flush()
        for name in ("a", "b"):
            session.add(
                NodeRow(
                    name=name,
                    pool="p",
                    base_url=f"http://{name}",
                    price_class="spot",
                    state="active",
                    created_at=T0,
                )
            )
        make_partitions(session, T0)
    return database.engine


def write(engine: Engine, *rounds: Round) -> None:
    ids = EdgeIds()
    ids.learn(engine, edges_of(rounds[0]))
    with session_scope(engine) as session:
        for round_ in rounds:
            assert write_round(session, round_, ids)
    Roller(engine, ManualClock(LATER)).run(LATER)


def change(engine: Engine, statement: str) -> None:
    with session_scope(engine) as session:
        session.execute(text(statement))


def completed(engine: Engine) -> dict[str, int]:
    """Requests of the hour by pool; the fleet's under ""."""
    query = "SELECT name, completed FROM engine_hour WHERE scope <> 'engine' AND at = :at"
    with Session(engine) as session:
        return {name: count for name, count in session.execute(text(query), {"at": T0})}


def counted(engine: Engine, scope: str, name: str, minutes: int) -> int:
    """Requests that the first minutes' latencies are of, rounds or rollups read."""
    until = T0 + timedelta(minutes=minutes)
    with Session(engine) as session:
        return latency_history(session, scope, name, T0, until)["ttft_s"].count  # type: ignore[arg-type]


def counted_in_quantiles(engine: Engine, *, pool: str | None = None, node: str | None = None) -> int:
    """Requests that the quantiles of half an hour are of."""
    with Session(engine) as session:
        until = T0 + timedelta(minutes=30)
        found = latency_quantiles(session, since=T0, until=until, pool=pool, node=node)
        return found["ttft_s"].count


def test_a_node_that_moved_leaves_its_past_in_its_old_pool(engine: Engine):
    write(engine, a_round(0, {"a": "p", "b": "p"}))
    change(engine, "UPDATE node SET pool = 'q' WHERE name = 'a'")
    write(engine, a_round(1, {"a": "p"}))  # late: of before the move; its minute is rolled up anew
    assert completed(engine) == {"p": 30, "": 30}
    write(engine, a_round(3, {"a": "q", "b": "p"}))
    assert completed(engine) == {"p": 40, "q": 10, "": 50}
    assert [counted(engine, "pool", name, 30) for name in ("p", "q")] == [40, 10]  # from rounds
    assert [counted(engine, "pool", name, 300) for name in ("p", "q")] == [40, 10]  # from minutes
    assert [counted_in_quantiles(engine, pool=name) for name in ("p", "q", None)] == [40, 10, 50]


def test_a_node_that_rests_is_in_no_sums_and_keeps_its_own_rows(engine: Engine):
    change(engine, "UPDATE node SET state = 'maintenance' WHERE name = 'b'")
    with Session(engine) as session:
        pools = {target.name: target.pool for target in load_fleet(session).targets}
    assert pools == {"a": "p", "b": ""}
    write(engine, a_round(0, pools))
    change(engine, "UPDATE node SET state = 'active' WHERE name = 'b'")  # what it served then stays tests
    write(engine, a_round(1, pools))
    assert completed(engine) == {"p": 20, "": 20}
    for minutes in (30, 300):
        assert counted(engine, "fleet", "", minutes) == 20
        assert counted(engine, "pool", "p", minutes) == 20
        assert counted(engine, "node", "b", minutes) == 20
    change(engine, "UPDATE node SET state = 'maintenance'")  # what they serve now says nothing of then
    assert [counted_in_quantiles(engine, pool=name) for name in ("p", None)] == [20, 20]
    assert counted_in_quantiles(engine, node="b") == 20


def test_samples_from_before_this_was_kept_count_where_their_node_is(engine: Engine):
    write(engine, a_round(0, {"a": "p", "b": "p"}))
    change(engine, "UPDATE sample SET counted_in = NULL")
    change(engine, "UPDATE node SET pool = 'q' WHERE name = 'a'")
    write(engine, a_round(1, {"b": "p"}))
    assert completed(engine) == {"p": 20, "q": 10, "": 30}
    for minutes in (30, 300):
        assert [counted(engine, "pool", name, minutes) for name in ("p", "q")] == [20, 10]
    assert [counted_in_quantiles(engine, pool=name) for name in ("p", "q", None)] == [20, 10, 30]
