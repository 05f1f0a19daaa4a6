"""Rollups say what the rounds said: whatever came late, twice or while the roller was killed.

The truth is computed here from the raw rows, in Python, one column rule at a time.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from control import rollup_due
from control.database import session_scope
from control.gateway_scrape import FlowWindow
from control.partitions import Retention, drop_old, make_partitions
from control.rollup import Roller, roll, runs
from control.sample_store import EdgeIds, copy_rows, edges_of, write_round
from control.scrape import EngineSample, GatewayResult, NodeResult, Round
from control.tables import Base, NodeRow, PoolRow
from control.tables_rollup import FAMILIES, TABLES, Level
from fleet.clock import ManualClock
from fleet.histograms import merge, quantile
from fleet.readings import EngineWindow, Histogram, Reason
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

T0 = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)  # an hour's start
PERIOD_S = 20.0
ROUNDS = 3 * 180 // 3  # an hour
NODES = {"a": "p", "b": "p", "c": "q"}
EDGES = ((0.1, 0.5, 2.0), (0.25, 1.0, 4.0, 8.0))  # two versions of an engine, with other buckets
INCREMENTS = ("arrivals", "completed", "prompt_tokens", "generation_tokens", "preemptions")
RAW = ("sample", "gateway_sample", "health", "scrape_failure", "round")
LATER = T0 + timedelta(hours=40)  # the day is over


def stamp(number: int) -> datetime:
    return T0 + timedelta(seconds=PERIOD_S * number)


def some_window(rng: random.Random, edges: tuple[float, ...], *, first: bool) -> EngineWindow:
    def known(value: int) -> int | None:
        return None if first or rng.random() < 0.1 else value

    counts = tuple(rng.randrange(50) for _ in range(len(edges) + 1))
    histogram = Histogram(edges, counts, None if rng.random() < 0.05 else 0.3 * sum(counts))
    return EngineWindow(
        engine="0",
        model="m",
        length_s=0.0 if first else PERIOD_S,
        restarted=rng.random() < 0.02,
        arrivals=known(rng.randrange(100)),
        completed=known(rng.randrange(100)),
        errors=known(0),
        aborted=None,
        prompt_tokens=known(rng.randrange(100_000)),
        prompt_tokens_computed=None,
        generation_tokens=known(rng.randrange(100_000)),
        preemptions=known(rng.randrange(3)),
        prefix_cache_hits=None,
        prefix_cache_queries=None,
        running=None if rng.random() < 0.05 else rng.randrange(256),
        waiting=rng.randrange(40),
        waiting_capacity=None,
        kv_used_ratio=None if rng.random() < 0.05 else rng.random(),
        kv_capacity_tokens=1_000_000,
        histograms={} if first else {"ttft_s": histogram},
        flags=("frozen",) if rng.random() < 0.05 else (),
    )


def some_rounds(seed: int, numbers: Iterable[int]) -> list[Round]:
    """Nodes that fail, restart with other buckets, leave out values; rounds that are missing."""
    rng = random.Random(seed)
    found: list[Round] = []
    for number in numbers:
        if rng.random() < 0.05:
            continue
        nodes: list[NodeResult] = []
        for node, pool in NODES.items():
            if rng.random() < 0.05:
                nodes.append(NodeResult(node, pool, None, (), Reason.TIMEOUT, "late"))
                continue
            first = rng.random() < 0.03
            window = some_window(rng, EDGES[rng.random() < 0.3], first=first)
            covered_s = None if first else PERIOD_S * rng.uniform(0.9, 1.1)
            nodes.append(NodeResult(node, pool, 0.02, (EngineSample("0", window, covered_s),)))
        flows = tuple(
            FlowWindow(
                tenant=tenant,
                tier="interactive",
                covered_s=PERIOD_S,
                offered=rng.randrange(100),
                dispatched=rng.randrange(50),
                outcomes={"dispatched": rng.randrange(50), "rejected_rate": rng.randrange(5)},
                prompt_tokens=rng.randrange(9000),
                output_tokens=None,
                queued_requests=rng.randrange(9),
                in_flight_requests=rng.randrange(9),
                in_flight_tokens=rng.randrange(9000),
                histograms={"ttft_s": Histogram(EDGES[0], tuple(rng.randrange(9) for _ in range(4)), 1.0)},
            )
            for tenant in ("t1", "t2")
        )
        gateways = tuple(GatewayResult(name, flows) for name in ("g1", "g2"))
        found.append(Round(stamp(number), PERIOD_S, 0.5, 0.0, tuple(nodes), gateways))
    return found


HEALTH_TYPES = {
    "at": "timestamptz", "scope": "text", "name": "text", "rho": "float8", "rho_low": "float8",
    "rho_high": "float8", "waiting": "int4", "saturated": "bool", "partial": "bool", "grade": "text",
}  # fmt: skip


def some_health(seed: int, round_: Round) -> list[dict[str, Any]]:
    rng = random.Random(f"{seed} {round_.at}")
    return [
        {
            "at": round_.at, "scope": scope, "name": name,
            "rho": None if rng.random() < 0.2 else rng.random(),
            "rho_low": rng.random(), "rho_high": 1 + rng.random(), "waiting": rng.randrange(9),
            "saturated": rng.choice([True, False, None]), "partial": False, "grade": rng.choice("ABCD"),
        }
        for scope, name in (("fleet", ""), ("node", "a"))
    ]  # fmt: skip


def register(engine: Engine) -> None:
    with session_scope(engine) as session:
        session.add_all(PoolRow(name=p, models=["m"], created_at=T0) for p in sorted(set(NODES.values())))
        session.flush()
        for name, pool in NODES.items():
            node = NodeRow(name=name, pool=pool, base_url=f"http://{name}", created_at=T0)
            node.price_class, node.state = "spot", "active"
            session.add(node)
        make_partitions(session, T0)


@pytest.fixture
def fleet(database: FreshDatabase) -> FreshDatabase:
    register(database.engine)
    return database


def write(engine: Engine, rounds: Sequence[Round], *, seed: int = 1) -> None:
    """Write rounds as the controller does: round, verdicts and mark in one transaction."""
    ids = EdgeIds()
    for round_ in rounds:
        ids.learn(engine, edges_of(round_))
    with session_scope(engine) as session:
        for round_ in rounds:
            assert write_round(session, round_, ids)
            copy_rows(session, "health", HEALTH_TYPES, some_health(seed, round_))


def rows(engine: Engine, table: str) -> list[dict[str, Any]]:
    with Session(engine) as session:
        found = session.execute(text(f"SELECT * FROM {table}")).mappings()
        return sorted((dict(row) for row in found), key=lambda row: repr(sorted(row.items(), key=str)))


def cut(value: Any) -> Any:
    """Cut a sum of floats to the digits that do not depend on the order of adding."""
    return float(f"{value:.9g}") if isinstance(value, float) else value


def everything(engine: Engine) -> dict[str, list[dict[str, Any]]]:
    """All rollup rows, cut."""
    return {
        table.name: sorted(
            ({name: cut(value) for name, value in row.items()} for row in rows(engine, table.name)),
            key=repr,
        )
        for table in TABLES.values()
    }


def run(engine: Engine, now: datetime = LATER) -> None:
    progress = Roller(engine, ManualClock(now)).run(now)
    assert set(progress.waiting.values()) == {0}, str(progress)


def direct(raw: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What one rollup row must say about these raw rows, by the meaning of each column."""
    counted = [row for row in raw if row["covered_s"] is not None]
    truth: dict[str, Any] = {
        "rounds": len(raw),
        "covered_s": sum(row["covered_s"] for row in counted) if counted else None,
        "restarts": sum(row["restarted"] for row in raw),
        "flagged": sum(bool(row["flags"]) for row in raw),
    }
    for name in INCREMENTS:
        seen = [row[name] for row in raw if row[name] is not None]
        unseen = [row["covered_s"] for row in counted if row[name] is None]
        truth[name] = sum(seen) if seen else None
        truth[f"{name}_unseen_s"] = sum(unseen) if unseen else None
    for name in ("running", "waiting", "kv_used_ratio"):
        values = [row[name] for row in raw if row[name] is not None]
        truth[f"{name}_n"] = len(values)
        truth[f"{name}_sum"] = sum(values) if values else None
        truth[f"{name}_min"] = min(values, default=None)
        truth[f"{name}_max"] = max(values, default=None)
    histograms = [row for row in raw if row["ttft_counts"] is not None]
    truth["ttft_counts"] = [sum(each) for each in zip(*(r["ttft_counts"] for r in histograms), strict=True)]
    truth["ttft_counts"] = truth["ttft_counts"] or None
    sums = [row["ttft_sum_s"] for row in histograms]
    truth["ttft_sum_s"] = sum(sums) if sums and None not in sums else None
    return truth


def check_engine_rows(engine: Engine, level: Level) -> None:
    raw = rows(engine, "sample")
    width = rollup_due.WIDTH[level]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in raw:
        start = rollup_due.bucket_start(row["at"], level)
        for scope, name, part in (
            ("engine", row["node"], row["engine"]), ("pool", NODES[row["node"]], ""), ("fleet", "", ""),
        ):  # fmt: skip
            groups.setdefault((start, scope, name, part, row["ttft_edges"]), []).append(row)
    made = rows(engine, f"engine_{level.value}")
    assert len(made) == len(groups)
    for row in made:
        key = (row["at"], row["scope"], row["name"], row["engine"], row["ttft_edges"])
        truth = direct(groups[key])
        assert {name: cut(row[name]) for name in truth} == {n: cut(v) for n, v in truth.items()}, key
        newest = max(groups[key], key=lambda r: r["at"])
        assert row["last_at"] == newest["at"]
        assert row["at"] <= row["last_at"] < row["at"] + width
        if row["scope"] == "engine":
            assert row["running_last"] == newest["running"]  # also where that is unknown
        else:
            assert row["running_last"] is None


@pytest.mark.parametrize("seed", [1, 2])
def test_minutes_and_hours_say_what_the_rounds_said(fleet: FreshDatabase, seed: int):
    write(fleet.engine, some_rounds(seed, range(400)))  # two hours and a bit
    run(fleet.engine)
    for level in (Level.MINUTE, Level.HOUR):
        check_engine_rows(fleet.engine, level)


def test_any_cut_and_any_order_of_the_rounds_gives_the_same_rollups(fleet: FreshDatabase, database_factory):
    rounds = some_rounds(3, range(250))
    write(fleet.engine, rounds)
    run(fleet.engine)
    whole = everything(fleet.engine)
    with database_factory.fresh() as other:
        register(other.engine)
        EdgeIds().learn(other.engine, EDGES)
        rng = random.Random(4)
        rng.shuffle(rounds)
        while rounds:  # late, back-filled, in pieces, the roller at work between them
            size = rng.randrange(1, 80)
            write(other.engine, rounds[:size])
            del rounds[:size]
            run(other.engine)
        assert _by_edges(everything(other.engine), other.engine) == _by_edges(whole, fleet.engine)


def _by_edges(tables: dict[str, list[dict[str, Any]]], engine: Engine) -> dict[str, Any]:
    """Put the bounds for ids of edge sets, which depend on who came first; `variant` follows them."""
    edges = {row["id"]: tuple(row["edges"]) for row in rows(engine, "histogram_edges")} | {None: None}
    named = {
        table: sorted(
            (
                {
                    name: edges[value] if name.endswith("_edges") else value
                    for name, value in row.items()
                    if name != "variant"
                }
                for row in found
            ),
            key=repr,
        )
        for table, found in tables.items()
    }
    assert all(named.values()), "a rollup without rows proves nothing"
    return named


def test_quantiles_of_an_hour_are_those_of_its_rounds(fleet: FreshDatabase):
    write(fleet.engine, some_rounds(5, range(180)))
    run(fleet.engine)
    edges = {row["id"]: tuple(row["edges"]) for row in rows(fleet.engine, "histogram_edges")}
    raw = [
        Histogram(edges[row["ttft_edges"]], tuple(row["ttft_counts"]), row["ttft_sum_s"])
        for row in rows(fleet.engine, "sample")
        if row["ttft_edges"] is not None
    ]
    hours = [
        Histogram(edges[row["ttft_edges"]], tuple(row["ttft_counts"]), row["ttft_sum_s"])
        for row in rows(fleet.engine, "engine_hour")
        if row["scope"] == "fleet" and row["ttft_edges"] is not None
    ]
    for bounds in EDGES:  # engines with other buckets are never mixed
        of_rounds = merge([h for h in raw if h.edges == bounds])
        of_hours = merge([h for h in hours if h.edges == bounds])
        assert of_rounds is not None
        assert of_hours is not None
        assert of_rounds.counts == of_hours.counts
        for q in (0.5, 0.95, 0.99, 0.999):
            assert quantile(of_rounds, q) == quantile(of_hours, q)


def test_verdicts_and_gateways_are_rolled_up_too(fleet: FreshDatabase):
    write(fleet.engine, some_rounds(6, range(180)), seed=6)
    run(fleet.engine)
    raw = [row for row in rows(fleet.engine, "health") if row["scope"] == "fleet"]
    (hour,) = [row for row in rows(fleet.engine, "health_hour") if row["scope"] == "fleet"]
    known = [row["rho"] for row in raw if row["rho"] is not None]
    assert hour["rounds"] == len(raw)
    assert (hour["rho_n"], hour["rho_min"], hour["rho_max"]) == (len(known), min(known), max(known))
    assert hour["rho_sum"] == pytest.approx(sum(known))
    assert hour["rho_low"] == min(row["rho_low"] for row in raw)
    assert hour["rho_high"] == max(row["rho_high"] for row in raw)
    assert hour["saturated"] == sum(row["saturated"] is True for row in raw)
    assert hour["grade"] == max(row["grade"] for row in raw)
    flows = [row for row in rows(fleet.engine, "gateway_sample") if row["tenant"] == "t1"]
    for gateway in ("g1", "g2", ""):
        parts = [row for row in flows if gateway in ("", row["gateway"])]
        (hour,) = [
            row
            for row in rows(fleet.engine, "gateway_hour")
            if (row["tenant"], row["gateway"]) == ("t1", gateway)
        ]
        assert hour["offered"] == sum(row["offered"] for row in parts)
        for outcome in ("dispatched", "rejected_rate"):
            assert hour["outcomes"][outcome] == sum(row["outcomes"][outcome] for row in parts)
        assert hour["output_tokens"] is None  # nobody read it: missing, not 0
        assert hour["output_tokens_unseen_s"] == PERIOD_S * len(parts)
        assert hour["ttft_counts"] == [
            sum(each) for each in zip(*(r["ttft_counts"] for r in parts), strict=True)
        ]
        assert hour["counted_s"] is None
        (day,) = [
            row
            for row in rows(fleet.engine, "gateway_day")
            if (row["tenant"], row["gateway"]) == ("t1", gateway)
        ]
        assert day == hour | {"at": T0.replace(hour=0)}  # the only hour of its day


def test_gateways_that_count_side_by_side_count_the_same_seconds(fleet: FreshDatabase):
    rounds = [
        replace(
            round_,
            gateways=tuple(
                replace(gateway, flows=tuple(
                    replace(flow, output_tokens=None if (gateway.gateway, number % 2) == ("g2", 0) else 5)
                    for flow in gateway.flows
                ))
                for gateway in round_.gateways
            ),
        )
        for number, round_ in enumerate(some_rounds(8, range(400)))
    ]  # fmt: skip
    write(fleet.engine, rounds)
    run(fleet.engine)
    for table in ("gateway_minute", "gateway_hour", "gateway_day"):
        of_t1 = [row for row in rows(fleet.engine, table) if row["tenant"] == "t1"]
        for gateway, counted in (("g1", rounds), ("g2", rounds[1::2]), ("", rounds)):
            found = sum(row["counted_s"] or 0.0 for row in of_t1 if row["gateway"] == gateway)
            assert found == PERIOD_S * len(counted), (table, gateway)


def test_a_roller_killed_in_the_middle_leaves_the_mark_and_no_half_row(fleet: FreshDatabase):
    write(fleet.engine, some_rounds(7, range(30)))
    killed = Session(fleet.engine)
    taken = rollup_due.take(killed, Level.MINUTE, [T0])
    assert taken == [T0]
    roll(killed, Level.MINUTE, T0, T0 + timedelta(minutes=1))
    killed.invalidate()  # as a kill does: the connection is gone, nobody says rollback
    assert rows(fleet.engine, "engine_minute") == []
    run(fleet.engine)
    check_engine_rows(fleet.engine, Level.MINUTE)


def test_rolling_up_twice_changes_nothing(fleet: FreshDatabase):
    write(fleet.engine, some_rounds(8, range(90)))
    run(fleet.engine)
    before = everything(fleet.engine)
    with session_scope(fleet.engine) as session:
        rollup_due.mark_rounds(session, [stamp(n) for n in range(90)], PERIOD_S)
    run(fleet.engine)
    assert everything(fleet.engine) == before


def test_old_days_go_only_when_they_are_rolled_up_and_late_rounds_of_them_still_count(
    fleet: FreshDatabase,
):
    engine, keep = fleet.engine, Retention(raw_days=2, minute_days=14, hour_days=400)
    rounds = some_rounds(9, range(180))
    early, late = rounds[::2], rounds[1::2]
    write(engine, rounds)
    run(engine)
    whole = everything(engine)
    with session_scope(engine) as session:  # begin again with the first half
        for table in [*(t.name for t in TABLES.values()), *RAW]:
            session.execute(text(f"DELETE FROM {table}"))
    write(engine, early)
    now = T0 + timedelta(days=4)
    held = drop_old(engine, now, keep)
    assert "sample_20260302" in held.held  # not rolled up yet
    assert rows(engine, "sample")
    run(engine, now)
    dropped = drop_old(engine, now, keep)
    assert {"sample_20260302", "gateway_sample_20260302", "health_20260302"} <= set(dropped.names)
    assert rows(engine, "sample") == []
    assert rows(engine, "engine_minute")
    write(engine, late)  # the other half comes when the first half's rounds are gone
    run(engine, now)
    assert everything(engine) == whole
    assert rows(engine, "sample") == []  # counted, and gone
    later = T0 + timedelta(days=30)
    assert "engine_minute_20260302" in drop_old(engine, later, keep).names
    hours = {name: found for name, found in everything(engine).items() if name.endswith("_hour")}
    assert hours == {name: found for name, found in whole.items() if name.endswith("_hour")}
    extra = [replace(round_, at=round_.at + timedelta(seconds=7)) for round_ in early[:3]]
    write(engine, extra)
    run(engine, later)
    (fleet_hour,) = [r for r in rows(engine, "health_hour") if r["scope"] == "fleet"]
    (before,) = [r for r in whole["health_hour"] if r["scope"] == "fleet"]
    assert fleet_hour["rounds"] == before["rounds"] + 3


def test_a_writer_in_the_middle_of_a_minute_is_waited_for(fleet: FreshDatabase):
    """A round whose transaction is open while its minute is rolled up must not be lost."""
    import threading

    first, second = some_rounds(10, range(2))[:2]
    write(fleet.engine, [first])
    ids = EdgeIds()
    ids.learn(fleet.engine, edges_of(second))
    with Session(fleet.engine) as writer, writer.begin():
        assert write_round(writer, second, ids)
        roller = threading.Thread(target=run, args=(fleet.engine,))
        roller.start()
        with Session(fleet.engine) as watch:  # commit only when the roller stands before the mark
            waits = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
            deadline = threading.Event()
            for _ in range(6000):
                if watch.scalar(waits):
                    break
                watch.rollback()
                deadline.wait(0.01)
            assert watch.scalar(waits), "the roller did not wait"
        writer.commit()
        roller.join(60)
    run(fleet.engine)
    check_engine_rows(fleet.engine, Level.MINUTE)


def test_hostile_numbers_do_not_stop_the_roller(fleet: FreshDatabase):
    (round_, *_) = some_rounds(11, range(3))
    huge = 2**63 - 1
    window = replace(
        some_window(random.Random(1), EDGES[0], first=False),
        generation_tokens=huge,
        histograms={"ttft_s": Histogram(EDGES[0], (huge // 4,) * 3 + (0,), 1e308)},
    )
    bad = tuple(NodeResult(n, p, 0.1, (EngineSample("0", window, 20.0),)) for n, p in NODES.items())
    write(fleet.engine, [replace(round_, nodes=bad), replace(round_, nodes=bad, at=stamp(1))])
    run(fleet.engine)
    (row,) = [r for r in rows(fleet.engine, "engine_hour") if r["scope"] == "fleet"]
    assert row["generation_tokens"] == huge  # it stops there
    assert row["ttft_counts"][0] == huge
    assert row["ttft_sum_s"] is None  # no sum of seconds


def test_every_column_of_the_raw_tables_is_rolled_up_or_left_out_on_purpose():
    left_out = {
        "sample": {"at", "restarted", "flags"},  # counted as restarts and flagged
        "gateway_sample": {"at", "would_refuse"},  # shadow is judged over hours, not years
        "health": {"at", "method", "flow_balance", "flow_balance_z", "detail"},  # of one round
    }
    for family in FAMILIES:
        lifted = " ".join([*(value for _, value in family.keys), *(m.lift for m in family.measures)])
        lifted += " ".join(f"{prefix}_edges" for prefix in family.histograms)
        columns = set(Base.metadata.tables[family.raw].columns.keys()) - left_out[family.raw]
        assert {name for name in columns if name not in lifted} == set(), (
            "name them in control/tables_rollup.py, with a migration, or in `left_out` here"
        )


def test_neighbours_are_rolled_up_together():
    minute = timedelta(minutes=1)
    starts = [T0 + n * minute for n in (5, 0, 1, 7, 6)]
    assert [[(at - T0) // minute for at in run] for run in runs(starts, minute)] == [[0, 1], [5, 6, 7]]
