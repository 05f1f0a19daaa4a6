"""The process that simulates what waits: one run at a time, day by day, with a snapshot every few seconds.

Started by the controller, ended when nothing waits. Holds no transaction while it computes. A worker that
is gone is noticed by its missing beat, and the next one goes on from its snapshot. Prevents: two workers
in one month, a controller that stands still meanwhile, and a run that ends its process for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, delete, exists, select, text, update
from sqlalchemy.dialects.postgresql import insert

from control.comparison_documents import Comparable
from control.database import session_scope
from control.estimate_runs import comparable, days_of, forget_old, simulation
from control.estimate_traces import stored_traffic
from control.gate_crew import Crew
from control.tables import EstimateRunRow, EstimateSnapshotRow
from fleet.clock import Clock
from fleet.comparison import cost_usd
from fleet.errors import FleetError, InvalidInput
from fleet.fluid import DAY_BINS
from fleet.gate_month import GateRun
from fleet.gate_words import explained
from fleet.month_result import MonthResult, as_dict
from fleet.simulate import EventRun
from fleet.simulation_snapshot import resume, snapshot

log = logging.getLogger(__name__)

#: A worker that has not been heard for this long is gone. A day takes seconds.
STALE = timedelta(seconds=90)
MAX_ATTEMPTS = 5
#: Key of the advisory lock that lets one worker claim at a time. Any constant of our own.
CLAIM_LOCK = 7_266_473_023


@dataclass(frozen=True, slots=True)
class Claimed:
    """A run this worker has."""

    id: int
    spec: dict[str, Any]
    months: dict[str, Any]
    snapshot: tuple[int, bytes] | None  # seed and body


@dataclass(slots=True)
class Worker:
    """Simulates runs until nothing waits or `stopping` says so."""

    engine: Engine
    clock: Clock
    name: str
    stopping: Callable[[], bool]
    snapshot_every_s: float = 5.0
    processes: int = 1  # of days through the gate, at once

    def work(self) -> int:
        """Return how many runs were ended."""
        ended = 0
        while not self.stopping():
            claimed = self.claim()
            if claimed is None:
                break
            ended += self._run(claimed)
        return ended

    def claim(self) -> Claimed | None:
        """Take the oldest run that waits, or one whose worker is gone; None while another one runs."""
        r, now = EstimateRunRow, self.clock.now()
        stale = (r.state == "running") & (r.beat_at < now - STALE)
        with session_scope(self.engine) as session:
            session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": CLAIM_LOCK})
            forget_old(session)
            session.execute(
                update(r)
                .where(stale, r.attempts >= MAX_ATTEMPTS)
                .values(
                    state="failed",
                    worker=None,
                    finished_at=now,
                    error=f"its process ended {MAX_ATTEMPTS} times before it was done",
                )
            )
            if session.scalar(select(exists().where(r.state == "running", r.beat_at >= now - STALE))):
                return None
            row = session.scalars(
                select(r).where((r.state == "queued") | stale).order_by(r.id).limit(1).with_for_update()
            ).first()
            if row is None:
                return None
            row.state, row.worker, row.beat_at = "running", self.name, now
            row.started_at, row.attempts = row.started_at or now, row.attempts + 1
            kept = session.get(EstimateSnapshotRow, row.id)
            found = None if kept is None else (kept.seed, kept.body)
            return Claimed(row.id, dict(row.spec), dict(row.months), found)

    def _run(self, claimed: Claimed) -> bool:
        """Simulate what is left of a run. Return whether it ended."""
        try:
            with session_scope(self.engine) as session:
                ready = comparable(claimed.spec, lambda name: stored_traffic(session, name))
            return self._months(claimed, ready)
        except FleetError as exc:
            self._end(claimed.id, "failed", error=f"{exc.message}. {exc.hint or ''}".strip())
            return True
        except MemoryError:
            self._end(claimed.id, "failed", error="the machine has not enough memory for this month")
            return True

    def _months(self, claimed: Claimed, ready: Comparable) -> bool:
        spec, months, days = claimed.spec, claimed.months, days_of(claimed.spec)
        month = ready.profile.month()[: days * DAY_BINS]
        for seed in range(spec["seed"], spec["seed"] + spec["replications"]):
            if str(seed) in months:
                continue
            run = simulation(spec, month, ready, seed)
            if claimed.snapshot is not None and claimed.snapshot[0] == seed:
                self._resume(claimed, run)
            if not self._all_days(claimed, run, seed, days * len(months)):
                return False
            months = {**months, str(seed): _month(ready, run)}
            if not self._beat(claimed.id, days * len(months), months=months):
                return False
        self._end(claimed.id, "done")
        return True

    def _all_days(self, claimed: Claimed, run: EventRun | GateRun, seed: int, before: int) -> bool:
        if isinstance(run, EventRun):
            return self._days(claimed, run, seed, before)
        with Crew(run, self.processes) as crew:
            return self._days(claimed, crew, seed, before)

    def _resume(self, claimed: Claimed, run: EventRun | GateRun) -> None:
        kept = claimed.snapshot
        try:
            if kept is not None:
                resume(run, kept[1])
        except InvalidInput:  # of another release, say: the month begins anew
            log.warning("snapshot does not fit", extra={"run": claimed.id})

    def _days(self, claimed: Claimed, run: EventRun | Crew, seed: int, before: int) -> bool:
        """Simulate the days left of a month. Return whether it is whole: not cancelled, stopped or lost."""
        saved_s = self.clock.monotonic_s()
        while not run.is_done:
            if self.stopping():
                self._save(claimed.id, run, seed)
                self._give_back(claimed.id)
                return False
            run.advance()
            if not self._beat(claimed.id, before + run.days_done):
                return False
            if self.clock.monotonic_s() - saved_s >= self.snapshot_every_s and not run.is_done:
                self._save(claimed.id, run, seed)
                saved_s = self.clock.monotonic_s()
        return True

    def _beat(self, run: int, days_done: int, months: dict[str, Any] | None = None) -> bool:
        """Say how far it is. Return False if the run is cancelled or another worker's."""
        r = EstimateRunRow
        values: dict[str, Any] = {"beat_at": self.clock.now(), "days_done": days_done}
        if months is not None:
            values["months"] = months
        with session_scope(self.engine) as session:
            is_cancelled = session.scalars(
                update(r)
                .where(r.id == run, r.worker == self.name, r.state == "running")
                .values(values)
                .returning(r.cancel_requested)
            ).one_or_none()
            if months is not None and is_cancelled is not None:
                session.execute(delete(EstimateSnapshotRow).where(EstimateSnapshotRow.run == run))
        if is_cancelled:
            self._end(run, "cancelled")
        return is_cancelled is False

    def _save(self, run: int, standing: EventRun | Crew, seed: int) -> None:
        values = {
            "seed": seed,
            "days_done": standing.days_done,
            "body": snapshot(standing),
            "saved_at": self.clock.now(),
        }
        r, s = EstimateRunRow, EstimateSnapshotRow
        with session_scope(self.engine) as session:
            mine = select(r.id).where(r.id == run, r.worker == self.name, r.state == "running")
            if session.scalars(mine.with_for_update()).one_or_none() is None:
                return
            session.execute(
                insert(s)
                .values(run=run, **values)
                .on_conflict_do_update(index_elements=["run"], set_=values)
            )

    def _give_back(self, run: int) -> None:
        """Let the next worker go on at once."""
        r = EstimateRunRow
        with session_scope(self.engine) as session:
            session.execute(
                update(r)
                .where(r.id == run, r.worker == self.name, r.state == "running")
                .values(state="queued", worker=None, attempts=r.attempts - 1)
            )

    def _end(self, run: int, state: str, error: str = "") -> None:
        """End the run, if it still is this worker's; whose it is now goes on from its own snapshot."""
        r = EstimateRunRow
        with session_scope(self.engine) as session:
            mine = session.scalars(
                update(r)
                .where(r.id == run, r.worker == self.name, r.state == "running")
                .values(state=state, worker=None, finished_at=self.clock.now(), error=error[:500])
                .returning(r.id)
            ).one_or_none()
            if mine is not None:
                session.execute(delete(EstimateSnapshotRow).where(EstimateSnapshotRow.run == run))


def _month(ready: Comparable, run: EventRun | GateRun) -> dict[str, Any]:
    """Return what is kept of a simulated month; of the gate's also its tiers, and the events beside it."""
    found = _totals(ready, run.result())
    if isinstance(run, GateRun):
        found["tiers"] = {one.tier.value: one.as_dict() for one in run.tiers()}
        found["tenants"] = [one.as_dict() for one in run.tenants()]
        found["preemptions"] = run.preemptions
        events = run.events.result()
        found["events"], found["difference"] = _totals(ready, events), explained(run, events)
    return found


def _totals(ready: Comparable, month: MonthResult) -> dict[str, Any]:
    cost = cost_usd(
        ready.candidates[0],
        month,
        ready.node,
        ready.prices.reserved_usd_per_hour,
        month.nodes_by_bin.size,
    )
    return as_dict(month) | {"cost_usd": cost}
