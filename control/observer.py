"""The observing half of the controller: facts, round, verdicts, buffer, database. One object a process.

Steps, each returning the sentence to log: `load_facts` (what to watch), `observe` (one round), `store`
(write what waits), `refresh_capacity`. Durations are seconds. While the database is away the last facts
hold and rounds wait in the buffer. Prevents: scraping that stops with the database, and a standby that
scrapes beside the leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from datetime import UTC, datetime
from functools import partial

import numpy as np

from control import alert_signals
from control.alerts import observe as observe_alerts
from control.assess import Assessment, Assessor
from control.capacity_book import CapacityBook, EngineKey
from control.database import session_scope
from control.deps import Deps
from control.derived_metrics import DerivedMetrics
from control.fleet_facts import FleetFacts, load_fleet
from control.flow_book import FlowBook
from control.flow_store import FLOW_DAYS, policy_in_force, stored_minutes
from control.freshness import Freshness
from control.lease import LeaseLost, require
from control.own_metrics import ControlMetrics
from control.partitions import Retention, drop_old, make_partitions, misplaced_rows, trim_old
from control.quality import QualityBook
from control.quality_store import open_standing
from control.quality_store import trim as trim_quality
from control.rollup import Roller
from control.round_writer import MAX_BYTES, Recorded, RoundWriter
from control.scrape import Round, Scraper
from fleet.capacity import CapacityEstimate
from fleet.policy import Policy

log = logging.getLogger(__name__)

#: Time between refits of capacities that are known, seconds.
REFRESH_S = 60.0
YOUNG_S = 600.0


class Observer:
    """Everything the observing steps share. Created when the process starts; follows the lease."""

    def __init__(
        self,
        deps: Deps,
        scraper: Scraper,
        metrics: ControlMetrics,
        *,
        keep: Retention | None = None,
        max_bytes: int = MAX_BYTES,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._deps = deps
        self._scraper = scraper
        self._metrics = metrics
        self.derived = DerivedMetrics(deps.clock)
        metrics.registry.register(self.derived)
        self._keep = keep or Retention()
        self._roller = Roller(deps.engine, deps.clock)
        self._rng = rng or np.random.default_rng()
        self.writer = RoundWriter(deps.engine, metrics, role=deps.leadership.role, max_bytes=max_bytes)
        self._assessor = Assessor(CapacityBook(self._rng))
        self._quality = QualityBook()
        self._flow = FlowBook()
        self._alert_facts = alert_signals.AlertFacts()
        self._policy: tuple[int, Policy] | None = None
        self._facts: FleetFacts | None = None
        self._estimates: dict[EngineKey, CapacityEstimate] = {}
        self._refilled = False
        self._loading: asyncio.Future[FleetFacts] | None = None
        self._refreshed_s = self._began_s = deps.clock.monotonic_s()
        self._is_measured = False  # every engine has a capacity
        self._led = False

    @property
    def is_observing(self) -> bool:
        """True while this process leads, or led and cannot find out whether it still does.

        Reading metrics twice harms nobody; what is written needs the lease.
        """
        return self._led

    def follow_lease(self, *, others_lead: bool) -> None:
        """Take note of the lease after each look at it. Another leader ends our observing."""
        if self._deps.leadership.current(self._deps.clock) is not None:
            self._led = True
        elif others_lead and self._led:
            self._led = self._refilled = False
            self.writer.discard("another_leads")
            self.derived.drop()
            self._assessor, self._quality = Assessor(CapacityBook(self._rng)), QualityBook()
            self._flow, self._policy = FlowBook(), None
            self._estimates, self._facts = {}, None

    async def load_facts(self) -> str:
        """Read what is registered; after winning the lease first, also the samples of the last day.

        A read that outlasts the step's deadline goes on; the next turn waits for it, and starts no second.
        """
        if self._loading is None or self._loading.done():
            self._loading = asyncio.ensure_future(asyncio.to_thread(self._load, self._assessor))
        facts = await asyncio.shield(self._loading)
        self._facts = facts
        return f"{len(facts.nodes)} nodes in {len(facts.pools)} pools, {len(facts.gateways)} gateways"

    def _load(self, assessor: Assessor) -> FleetFacts:
        is_first = not self._refilled
        with session_scope(self._deps.engine) as session:
            facts = load_fleet(session)
            taken = assessor.refill(session, facts, self._deps.clock.now()) if is_first else 0
            standing = open_standing(session) if is_first else []
            minutes = stored_minutes(session, self._deps.clock.now()) if is_first else []
            self._policy = policy_in_force(session, self._policy)
            self._alert_facts.load(session, self._deps.clock.now(), self._deps.spend)
        self._flow.learn(None if self._policy is None else self._policy[1])
        if is_first:  # no transaction is open while the curves are fitted
            estimates = assessor.book.refresh(facts, self._deps.clock.now().timestamp())
            if assessor is self._assessor:  # nobody else led meanwhile
                self._estimates = estimates
                self._quality.refill(standing, self._deps.clock.now())
                self._flow.refill(minutes, self._scraper.period_s)
                self._refilled, self._began_s = True, self._deps.clock.monotonic_s()
            log.info("windows refilled from the database", extra={"windows": taken})
        return facts

    async def observe(self, at: datetime, lag_s: float) -> str:
        """Run the round stamped `at` and put it in line to be written."""
        facts = self._facts
        if facts is None:
            return "waiting to learn what to watch"
        self._scraper.sources.follow(facts.sources)
        round_ = await self._scraper.run(facts.targets, facts.gateways, at, lag_s=lag_s)
        assessment = await asyncio.to_thread(self._assessor.assess, round_, facts)
        flow = await asyncio.to_thread(self._flow.take, round_, assessment)
        estimates, self._estimates = self._estimates, {}
        dropped, judge = self.writer.dropped, self._quality.take
        quality = await asyncio.to_thread(
            judge, round_, facts, verdicts=assessment.verdicts, dropped=dropped
        )
        watched = observe_alerts(assessment)
        watched += alert_signals.from_flow(flow.signals, assessment, round_)
        watched += alert_signals.from_capacity(self._assessor.book, assessment)
        watched += self._alert_facts.observations(at)
        recorded = Recorded(round_, assessment, watched, estimates, quality, flow)
        await asyncio.to_thread(self.writer.offer, recorded)
        self.derived.take(assessment, flow.states)
        self._count(assessment)
        return _summary(round_, assessment)

    def _count(self, assessment: Assessment) -> None:
        counts = Counter(state.freshness for state in assessment.nodes)
        for freshness in Freshness:
            self._metrics.nodes.labels(freshness=freshness.value).set(counts[freshness])

    async def store(self) -> str:
        """Write the rounds that wait. Needs the lease."""
        epoch = self._deps.leadership.current(self._deps.clock)
        waiting = len(self.writer)
        if epoch is None or not waiting:
            return f"{waiting} rounds wait for the lease" if waiting else ""
        try:
            changes = await asyncio.to_thread(self.writer.flush, epoch)
        except LeaseLost:
            self._deps.leadership.step_down()
            raise
        for change in changes:
            log.warning(
                "alert changed",
                extra={
                    "rule": change.rule,
                    "scope": change.scope,
                    "subject": change.subject,
                    "state": change.state,
                },
            )
        return f"{waiting - len(self.writer)} rounds written, {len(self.writer)} wait"

    async def refresh_capacity(self) -> str:
        """Fit capacities in a worker thread; they are written with the next round.

        Once a minute; in the first minutes at every call until each engine has a capacity.
        """
        facts, elapsed_s = self._facts, self._deps.clock.monotonic_s()
        is_young = elapsed_s < self._began_s + YOUNG_S and not self._is_measured
        if facts is None or (not is_young and elapsed_s < self._refreshed_s + REFRESH_S):
            return ""
        self._refreshed_s = elapsed_s
        now_s = self._deps.clock.now().timestamp()
        estimates = await asyncio.to_thread(self._assessor.book.refresh, facts, now_s)
        self._estimates = estimates
        self._is_measured = all(e.requests_per_s is not None for e in estimates.values())
        grades = Counter(
            e.grade.value if e.grade is not None else e.method.value for e in estimates.values()
        )
        return "capacity: " + (
            ", ".join(f"{n} x {g}" for g, n in sorted(grades.items())) or "no engines yet"
        )

    async def keep_partitions(self) -> str:
        """Make the days ahead, drop what is too old, and look for rows without a day."""
        epoch = self._deps.leadership.current(self._deps.clock)
        return "" if epoch is None else await asyncio.to_thread(self._keep_partitions, epoch)

    def _keep_partitions(self, epoch: int) -> str:
        engine, now = self._deps.engine, self._deps.clock.now()
        fence = partial(require, epoch=epoch, role=self._deps.leadership.role)
        with session_scope(engine) as session:
            fence(session)
            made = make_partitions(session, now)
            misplaced = misplaced_rows(session)
        for table, rows in misplaced.items():
            self._metrics.misplaced_rows.labels(table=table).set(rows)
        dropped = drop_old(engine, now, self._keep, fence=fence)
        trimmed = trim_old(engine, now, keep_days=self._keep.minute_days, fence=fence)
        trimmed += trim_old(engine, now, keep_days=FLOW_DAYS, tables=("flow_minute",), fence=fence)
        trimmed += trim_quality(engine, now, keep_days=self._keep.minute_days, fence=fence)
        self._metrics.partitions_held.set(len(dropped.held))
        held = f", {len(dropped.held)} wait to be rolled up" if dropped.held else ""
        return (
            f"{len(made)} partitions made, {len(dropped.names)} dropped{held}, {trimmed} old rows deleted"
        )

    async def roll_up(self) -> str:
        """Roll up minutes and hours that are due, for a few seconds at most."""
        progress = await asyncio.to_thread(self._roller.run, self._deps.clock.now())
        for level, count in progress.waiting.items():
            self._metrics.rollups_waiting.labels(level=level.value).set(count)
        return str(progress)


def _summary(round_: Round, assessment: Assessment) -> str:
    fleet = next(v.health for v in assessment.verdicts if v.scope == "fleet")
    rho = "unknown" if fleet.rho.value is None else f"{fleet.rho.value:.2f}"
    return f"{round_.nodes_sampled}/{len(round_.nodes)} nodes in {round_.duration_s:.1f} s, rho {rho}"


def slot_of(now: datetime, period_s: float) -> datetime:
    """Return the grid stamp of the round `now` belongs to: whole periods since 1970 in UTC."""
    return datetime.fromtimestamp(now.timestamp() // period_s * period_s, UTC)
