"""Simulations in the background: asked for once, done one at a time, cancelled, resumed, failed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from click.testing import CliRunner
from sqlalchemy import select, update

from control.api_calls import Later
from control.api_estimates import CALLS
from control.cli_estimate import estimate
from control.comparison_documents import Comparable, read_comparison
from control.database import session_scope
from control.estimate_runs import (
    DAYS,
    MAX_WAITING,
    Precision,
    RunView,
    cancel,
    comparable,
    enqueue,
    has_work,
    run_of,
    runs,
)
from control.estimate_traces import keep_trace, remove_trace, stored_traffic, traces
from control.estimate_worker import MAX_ATTEMPTS, STALE, Worker
from control.rate_profile_files import bundled_profile
from control.roles import Actor, Role
from control.tables import EstimateRunRow, EstimateSnapshotRow, EstimateTraceRow
from fleet.clock import ManualClock, SystemClock
from fleet.errors import Conflict, Forbidden, InvalidInput, NotFound
from fleet.rate_profiles import RateProfile
from tests.gateway_process import ROOT
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

ADA = Actor("ada", Role.OPERATOR, "cli")
NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")
#: A sixtieth of the guide's traffic and nodes: half a million requests a month instead of 31 million.
SMALL: dict[str, Any] = {
    "traffic": "A",
    "mean_rps": 0.2,
    "mu": 0.05,
    "strategies": [
        {"name": "five", "params": {"n": 5, "D": 1.5}},
        {"name": "six", "params": {"n": 6, "D": 1.5}},
    ],
}
TRAFFIC = lru_cache(bundled_profile)
ONCE = Precision(replications=1, slots=2)


def asked(database: FreshDatabase, name: str = "five", precision: Precision = ONCE) -> int:
    with session_scope(database.engine) as session:
        return enqueue(session, small(), name, precision, actor=ADA, now=NOW)


def small(**changes: Any) -> Comparable:
    return read_comparison({**SMALL, **changes}, TRAFFIC)


def seen(database: FreshDatabase, run: int) -> RunView:
    with session_scope(database.engine) as session:
        return run_of(session, run)


def a_worker(database: FreshDatabase, name: str = "w", *, days: int | None = None) -> Worker:
    """A worker that stops by itself after so many days."""
    left = [days]

    def stopping() -> bool:
        if left[0] is None:
            return False
        left[0] -= 1
        return left[0] < 0

    clock = ManualClock(NOW)
    return Worker(database.engine, clock, name, stopping, snapshot_every_s=1e9)


def test_a_run_is_simulated_to_its_end_and_says_how_far_it_is(database: FreshDatabase) -> None:
    run = asked(database)
    assert seen(database, run).state == "queued"
    assert a_worker(database).work() == 1
    done = seen(database, run)
    assert (done.state, done.days_done, done.days) == ("done", DAYS, DAYS)
    month = done.months["1"]
    # five nodes for 720 h at 28 USD; refusals near the fluid's 6.24 %, more where chance fills few slots
    assert month["cost_usd"] == pytest.approx(100_800)
    assert 0.0624 < month["refused_share"] < 0.30
    with session_scope(database.engine) as session:
        assert session.scalars(select(EstimateSnapshotRow)).all() == []
        assert not has_work(session, NOW - STALE)


def test_the_same_question_is_simulated_once(database: FreshDatabase) -> None:
    run = asked(database)
    assert asked(database) == run
    assert asked(database, "six") != run
    with session_scope(database.engine) as session:
        renamed = small(strategies=[{"name": "another name", "params": {"n": 5, "D": 1.5}}])
        assert enqueue(session, renamed, "another name", ONCE, actor=ADA, now=NOW) == run


def test_a_stopped_run_goes_on_from_its_snapshot_to_the_same_result(database: FreshDatabase) -> None:
    run = asked(database)
    assert a_worker(database, days=8).work() == 0  # asked once for the run, then once a day
    stopped = seen(database, run)
    assert stopped.state == "queued"
    assert 0 < stopped.days_done < DAYS
    second = a_worker(database, "another")
    assert second.work() == 1
    with session_scope(database.engine) as session:  # the same inputs, in one go
        session.execute(update(EstimateRunRow).values(state="failed"))
    again = asked(database)
    assert again != run
    assert a_worker(database).work() == 1
    assert seen(database, again).months == seen(database, run).months


def test_a_run_whose_worker_is_gone_is_taken_up_but_not_for_ever(database: FreshDatabase) -> None:
    run = asked(database)
    lost = a_worker(database, "lost")
    assert lost.claim() is not None
    other = a_worker(database, "other")
    assert other.claim() is None  # heard a moment ago
    for _ in range(MAX_ATTEMPTS - 1):
        other.clock.advance(STALE.total_seconds() + 1)  # type: ignore[attr-defined]
        assert other.claim() is not None
    other.clock.advance(STALE.total_seconds() + 1)  # type: ignore[attr-defined]
    assert other.claim() is None
    failed = seen(database, run)
    assert failed.state == "failed"
    assert f"ended {MAX_ATTEMPTS} times" in failed.error


def test_a_worker_that_lost_its_run_writes_nothing(database: FreshDatabase) -> None:
    run = asked(database)
    slow = a_worker(database, "slow")
    claimed = slow.claim()
    assert claimed is not None
    with session_scope(database.engine) as session:
        session.execute(update(EstimateRunRow).values(worker="other", days_done=17))
        ready = comparable(claimed.spec, lambda name: stored_traffic(session, name))
    assert not slow._months(claimed, ready)
    assert seen(database, run).days_done == 17


def test_a_worker_that_lost_its_run_and_fails_leaves_the_others_snapshot(database: FreshDatabase) -> None:
    run = asked(database)
    slow = a_worker(database, "slow")
    assert slow.claim() is not None
    with session_scope(database.engine) as session:
        session.execute(update(EstimateRunRow).values(worker="other"))
        session.add(EstimateSnapshotRow(run=run, seed=1, days_done=3, body=b"kept", saved_at=NOW))
    slow._end(run, "failed", error="its process ended")
    with session_scope(database.engine) as session:
        assert session.get_one(EstimateSnapshotRow, run).body == b"kept"
    assert seen(database, run).state == "running"


def test_one_run_at_a_time(database: FreshDatabase) -> None:
    asked(database)
    asked(database, "six")
    assert a_worker(database, "one").claim() is not None
    assert a_worker(database, "two").claim() is None


def test_a_waiting_run_is_cancelled_at_once_and_a_running_one_after_its_day(
    database: FreshDatabase,
) -> None:
    run, other = asked(database), asked(database, "six")
    worker = a_worker(database)
    claimed = worker.claim()
    assert claimed is not None
    with session_scope(database.engine) as session:
        cancel(session, other, actor=ADA, now=NOW)
        cancel(session, run, actor=ADA, now=NOW)
    assert seen(database, other).state == "cancelled"
    assert seen(database, run).cancel_requested
    worker._run(claimed)
    ended = seen(database, run)
    assert (ended.state, ended.days_done) == ("cancelled", 1)
    with session_scope(database.engine) as session, pytest.raises(Conflict):
        cancel(session, run, actor=ADA, now=NOW)
    assert asked(database) != run  # it may be asked for again


def test_a_run_cancelled_while_it_waits_to_go_on_leaves_nothing_behind(database: FreshDatabase) -> None:
    run = asked(database)
    assert a_worker(database, days=4).work() == 0
    with session_scope(database.engine) as session:
        assert len(session.scalars(select(EstimateSnapshotRow.run)).all()) == 1
        cancel(session, run, actor=ADA, now=NOW)
        assert session.scalars(select(EstimateSnapshotRow.run)).all() == []
    assert seen(database, run).state == "cancelled"


def test_a_damaged_snapshot_costs_time_and_nothing_else(database: FreshDatabase) -> None:
    run = asked(database)
    a_worker(database, days=4).work()
    with session_scope(database.engine) as session:
        session.execute(update(EstimateSnapshotRow).values(body=b"damaged"))
    assert a_worker(database).work() == 1
    assert seen(database, run).state == "done"


def test_replications_are_other_months_of_the_same_cost(database: FreshDatabase) -> None:
    run = asked(database, precision=Precision(replications=2, slots=2))
    a_worker(database).work()
    done = seen(database, run)
    assert (done.days_done, set(done.months)) == (2 * DAYS, {"1", "2"})
    assert done.months["1"]["refused"] != done.months["2"]["refused"]
    assert done.months["1"]["cost_usd"] == done.months["2"]["cost_usd"]


def test_traffic_that_went_away_fails_its_run_in_words(database: FreshDatabase) -> None:
    rates = np.full(8_640, 0.2)
    with session_scope(database.engine) as session:
        name = keep_trace(session, RateProfile("mine", rates, "a test"), actor=ADA, now=NOW)
        assert keep_trace(session, RateProfile("again", rates, "a test"), actor=ADA, now=NOW) == name
        assert [one.title for one in traces(session)] == ["mine"]
        ready = read_comparison({**SMALL, "traffic": name}, lambda n: stored_traffic(session, n))
        assert np.array_equal(ready.profile.rates_rps, rates * 0.2 / rates.mean())
        run = enqueue(session, ready, "five", ONCE, actor=ADA, now=NOW)
        remove_trace(session, name, actor=ADA, now=NOW)
    assert a_worker(database).work() == 1
    failed = seen(database, run)
    assert failed.state == "failed"
    assert "there is no traffic 'trace:" in failed.error


def test_who_may_not_and_what_cannot_be_are_refused(database: FreshDatabase) -> None:
    with session_scope(database.engine) as session:
        viewer = Actor("vic", Role.VIEWER, "page")
        with pytest.raises(Forbidden):
            enqueue(session, small(), "five", ONCE, actor=viewer, now=NOW)
        with pytest.raises(Forbidden):
            keep_trace(session, RateProfile("x", np.ones(9), "y"), actor=viewer, now=NOW)
        with pytest.raises(InvalidInput, match="no strategy"):
            enqueue(session, small(), "seven", ONCE, actor=ADA, now=NOW)
        with pytest.raises(InvalidInput, match="requests"):
            enqueue(session, small(mean_rps=1e4), "five", ONCE, actor=ADA, now=NOW)
        with pytest.raises(InvalidInput, match="replications"):
            Precision(replications=0)
        with pytest.raises(NotFound):
            cancel(session, 4_711, actor=ADA, now=NOW)
        for name in ("/etc/passwd", "trace:", "trace:\0", "trace:\ud800", f"trace:{'A' * 64}"):
            with pytest.raises(InvalidInput, match="no traffic"):
                stored_traffic(session, name)
            with pytest.raises(NotFound):
                remove_trace(session, name, actor=ADA, now=NOW)
        with pytest.raises(InvalidInput, match="no requests"):
            keep_trace(session, RateProfile("x", np.zeros(9), "y"), actor=ADA, now=NOW)


def test_only_so_many_wait(database: FreshDatabase) -> None:
    with session_scope(database.engine) as session:
        for seed in range(MAX_WAITING):
            enqueue(session, small(), "five", Precision(1, seed, 2), actor=ADA, now=NOW)
        with pytest.raises(Conflict, match="wait already"):
            enqueue(session, small(), "five", Precision(1, 999, 2), actor=ADA, now=NOW)
        assert len(runs(session, limit=100)) == MAX_WAITING


def test_a_kept_traffic_that_was_changed_is_not_used(database: FreshDatabase) -> None:
    with session_scope(database.engine) as session:
        name = keep_trace(session, RateProfile("x", np.ones(9), "y"), actor=ADA, now=NOW)
        other = keep_trace(session, RateProfile("x", np.full(9, 2.0), "y"), actor=ADA, now=NOW)
        body = session.get_one(EstimateTraceRow, other.removeprefix("trace:")).rates
        session.get_one(EstimateTraceRow, name.removeprefix("trace:")).rates = body
        session.flush()
        with pytest.raises(InvalidInput, match="damaged"):
            stored_traffic(session, name)


def test_the_command_line_keeps_traffic_and_starts_runs_and_the_process_ends_them(
    database: FreshDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database.dsn)

    def rhodeck(*words: str) -> str:
        found = CliRunner().invoke(estimate, list(words), catch_exceptions=False)
        assert found.exit_code == 0, found.output
        return found.output

    trace = tmp_path / "trace.csv"
    trace.write_text("t_s,rate_rps\n" + "".join(f"{600 * n},0.{1 + n % 3}\n" for n in range(144)))
    name = rhodeck("traces", "add", str(trace)).strip()
    document = tmp_path / "small.json"
    document.write_text(json.dumps({**SMALL, "traffic": name}))
    assert "run 1: five" in rhodeck("start", str(document), "--replications", "1", "--slots", "2")
    process = subprocess.run(
        [sys.executable, "-P", "-m", "control", "estimate", "work"],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": database.dsn},
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert process.returncode == 0, process.stderr.decode()
    found = json.loads(rhodeck("runs", "--json"))
    assert [(one["strategy"], one["state"]) for one in found] == [("six", "done"), ("five", "done")]
    assert name in rhodeck("traces", "list")


def test_a_process_that_is_told_to_end_keeps_where_it_stands(database: FreshDatabase) -> None:
    run = asked(database, precision=Precision(replications=20, slots=2))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "control", "estimate", "work"],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": database.dsn},
        stdout=subprocess.DEVNULL,
    )
    try:
        clock = SystemClock()
        deadline_s = clock.monotonic_s() + 240
        while seen(database, run).days_done < 2 and clock.monotonic_s() < deadline_s:
            assert process.poll() is None
            threading.Event().wait(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
    finally:
        process.kill()
        process.wait()
    left = seen(database, run)
    assert left.state == "queued"
    assert 2 <= left.days_done < left.days
    with session_scope(database.engine) as session:
        kept = session.scalars(select(EstimateSnapshotRow)).one()
        months_done = len(left.months)
        assert months_done * DAYS + kept.days_done == left.days_done


#: A worker that keeps each day, and stands still in its third: it can only be killed.
DOOMED = """
import os, sys, threading
from control.database import make_engine
from control.estimate_worker import Worker
from fleet.clock import SystemClock
asked = [0]
def stopping():
    asked[0] += 1
    if asked[0] == 4:  # once for the run, then once a day
        print("stands", flush=True)
        threading.Event().wait()
    return False
Worker(make_engine(os.environ["DATABASE_URL"], pool_size=1), SystemClock(), "doomed", stopping, 0.0).work()
"""
#: Four days of 4,000 requests: a slice is a day.
THROUGH_GATE = Precision(replications=1, slots=2, gate_days=4)


def quiet() -> Comparable:
    return small(mean_rps=0.05, mu=0.0125)


def asked_of_gate(database: FreshDatabase) -> int:
    with session_scope(database.engine) as session:
        return enqueue(session, quiet(), "five", THROUGH_GATE, actor=ADA, now=NOW)


def test_a_killed_run_through_the_real_gate_ends_like_an_unbroken_one(database: FreshDatabase) -> None:
    run = asked_of_gate(database)
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", DOOMED],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": database.dsn, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"stands\n"
    finally:
        process.kill()
        process.communicate()
    left = seen(database, run)
    assert (left.state, left.days_done, left.days) == ("running", 2, 4)
    heir = a_worker(database, "heir")
    heir.clock = ManualClock(SystemClock().now() + STALE * 2)
    assert heir.work() == 1
    with session_scope(database.engine) as session:  # the same inputs, in one go
        session.execute(update(EstimateRunRow).values(state="failed"))
    again = asked_of_gate(database)
    assert again != run
    assert a_worker(database).work() == 1
    found = seen(database, run)
    assert found.months == seen(database, again).months
    month = found.months["1"]
    assert month["cost_usd"] == pytest.approx(5 * 28 * 96)  # five nodes, four days
    assert set(month["tiers"]) == {"interactive", "batch", "best_effort"}
    assert month["tiers"]["best_effort"]["refused_share"] > month["tiers"]["interactive"]["refused_share"]
    assert month["events"]["offered"] == month["offered"]  # the same requests


def test_a_run_through_the_real_gate_is_cancelled_between_slices_and_bounded(
    database: FreshDatabase,
) -> None:
    run = asked_of_gate(database)
    worker = a_worker(database)
    claimed = worker.claim()
    assert claimed is not None
    with session_scope(database.engine) as session:
        cancel(session, run, actor=ADA, now=NOW)
    worker._run(claimed)
    assert seen(database, run).state == "cancelled"
    with session_scope(database.engine) as session:
        with pytest.raises(InvalidInput, match="gate_days"):
            Precision(gate_days=31)
        many = Precision(replications=20, gate_days=30)
        with pytest.raises(InvalidInput, match="through the real gate"):
            enqueue(session, small(mean_rps=12, mu=3), "five", many, actor=ADA, now=NOW)


def test_engines_and_tenants_behind_the_gate_on_two_processes_are_those_of_one(
    database: FreshDatabase,
) -> None:
    tenants = {"interactive": {"acme": [0.7, 2.0], "beta": [0.3, 1.0]}}
    weights = {"interactive": 60.0, "batch": 30.0, "best_effort": 10.0}
    ready = small(mean_rps=0.05, mu=0.0125, tenants=tenants, weights=weights)
    precision = Precision(replications=1, slots=2, gate_days=2, engine="h100-70b-fp8")

    def ask() -> int:
        with session_scope(database.engine) as session:
            return enqueue(session, ready, "five", precision, actor=ADA, now=NOW)

    run = ask()
    worker = a_worker(database)
    worker.processes = 2
    assert worker.work() == 1
    found = seen(database, run)
    assert (found.state, found.error) == ("done", "")
    assert found.spec["gate"]["engine"]["name"] == "h100-70b-fp8"
    month = found.months["1"]
    assert [(one["tier"], one["tenant"]) for one in month["tenants"]] == [
        ("interactive", "acme"),
        ("interactive", "beta"),
    ]
    assert "(60/30/10)" in " ".join(month["difference"])
    assert month["preemptions"] == 0
    assert month["tiers"]["batch"]["first_p95_s"] < month["tiers"]["batch"]["e2e_p95_s"]
    with session_scope(database.engine) as session:
        session.execute(update(EstimateRunRow).values(state="failed"))
    again = ask()
    assert again != run
    assert a_worker(database).work() == 1
    assert seen(database, again).months == found.months
    with pytest.raises(InvalidInput, match="behind the real gate"):
        Precision(engine="h100-70b-fp8")
    with pytest.raises(NotFound, match="no engine profile"):
        Precision(gate_days=1, engine="abacus")


def test_a_comparison_is_worked_out_when_its_transaction_has_ended(database: FreshDatabase) -> None:
    call = next(one for one in CALLS if one.path == "/api/v1/estimates/compare")
    with session_scope(database.engine) as session:
        name = keep_trace(session, RateProfile("mine", np.full(8_640, 0.2), "a test"), actor=ADA, now=NOW)
    body = json.dumps({"document": {**SMALL, "traffic": name}}).encode()
    with session_scope(database.engine) as session:
        later = call.answer(session, NOW, ADA, path={}, query={}, body=body, key="once", zone=BERLIN)
    assert isinstance(later, Later)
    database.engine.dispose()
    assert later.work()["document"]["traffic"] == name


def test_the_time_left_is_that_of_the_pace_so_far(database: FreshDatabase) -> None:
    run = asked(database)
    worker = a_worker(database)
    assert worker.claim() is not None
    with session_scope(database.engine) as session:
        session.execute(update(EstimateRunRow).values(days_done=10))
    running = seen(database, run)
    assert running.left_s(NOW + STALE) == pytest.approx(2 * STALE.total_seconds())  # 20 of 30 are left
    assert asked(database, "six") != run
    assert seen(database, run + 1).left_s(NOW) is None
