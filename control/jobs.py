"""The controller's loop: one clock, named steps, each with its period and deadline.

APScheduler is only the clock: one interval job (1 s, one instance, coalescing, no misfire limit, UTC,
memory store) starts the steps that are due as tasks, so that a slow step delays no other and never runs
beside itself. Durations are monotonic seconds; rounds are stamped on a wall-clock grid. An expected
error (FleetError, an operational error of the database, an overrun deadline) is logged and the step
tried again at its next turn; any other exception is a bug and ends the process with a traceback, so
that the supervisor starts a clean one. Prevents: a job that dies silently, runs that are dropped without
a word, a stuck step nobody notices, and two leaders.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from apscheduler.events import EVENT_JOB_ERROR, JobExecutionEvent
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from control import lease, reconcile, rollout
from control.deps import Deps
from control.observer import Observer, slot_of
from control.own_metrics import ControlMetrics
from fleet.clock import Clock
from fleet.errors import FleetError

log = logging.getLogger(__name__)

TICK_S = 1.0
WATCH_S = 0.5
#: A loop or tick later than this is worth a line in the log.
LATE_S = 2.0
SHUTDOWN_S = 5.0


#: What a step may raise and be tried again after. (The database's pool has a TimeoutError of its own.)
EXPECTED = (FleetError, OperationalError, PoolTimeout, TimeoutError)


class When(StrEnum):
    """In which condition of the lease a step runs."""

    ALWAYS = "always"
    LEADING = "leading"
    OBSERVING = "observing"  # leading, or led and the database cannot say who does now


@dataclass(frozen=True, slots=True)
class Step:
    """One thing the controller does again and again. `run` returns the sentence to log."""

    name: str
    period_s: float
    deadline_s: float
    run: Callable[[], Awaitable[str]]
    when: When = When.LEADING


@dataclass(slots=True)
class _Turn:
    """When a step is due, and its run in progress."""

    step: Step
    due_s: float
    task: asyncio.Task[None] | None = None
    said: str = ""
    failing: bool = False
    succeeded_s: float | None = None


@dataclass(slots=True)
class Loop:
    """Runs steps until stopped. `ready` says whether a step's condition holds now."""

    clock: Clock
    steps: Sequence[Step]
    metrics: ControlMetrics
    ready: Callable[[When], bool]
    _turns: list[_Turn] = field(init=False)
    _stop: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _bug: BaseException | None = field(init=False, default=None)
    _ticked_s: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        now_s = self.clock.monotonic_s()
        self._turns = [_Turn(step, now_s) for step in self.steps]

    def stop(self) -> None:
        """End after the steps in progress, at most `SHUTDOWN_S` later."""
        self._stop.set()

    async def run(self) -> None:
        """Run until `stop`. Raises what a step raised that nobody expected."""
        scheduler = AsyncIOScheduler(timezone=UTC)
        scheduler.add_job(  # pyright: ignore[reportUnknownMemberType] # APScheduler has no types
            self.tick, "interval", seconds=TICK_S, max_instances=1, coalesce=True, misfire_grace_time=None
        )
        scheduler.add_listener(self._on_error, EVENT_JOB_ERROR)  # pyright: ignore[reportUnknownMemberType]
        watchdog = asyncio.create_task(self._watch())
        scheduler.start()
        try:
            await self.tick()
            await self._stop.wait()
        finally:
            scheduler.pause()
            await asyncio.sleep(TICK_S / 20)  # a tick in progress ends by itself; shutdown would cancel it
            scheduler.shutdown(wait=False)
            watchdog.cancel()
            await self._finish()
        if self._bug is not None:
            raise self._bug

    def _on_error(self, event: JobExecutionEvent) -> None:
        self._fail(event.exception)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.critical("step crashed", extra={"step": task.get_name()}, exc_info=task.exception())
            self._fail(task.exception())

    def _fail(self, bug: BaseException | None) -> None:
        self._bug = self._bug or bug
        self._stop.set()

    async def _finish(self) -> None:
        running = [turn.task for turn in self._turns if turn.task is not None and not turn.task.done()]
        if running:
            _, late = await asyncio.wait(running, timeout=SHUTDOWN_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def tick(self) -> None:
        """Start every step that is due, allowed now and not running still."""
        now_s = self.clock.monotonic_s()
        if self._ticked_s is not None:
            lag_s = max(0.0, now_s - self._ticked_s - TICK_S)
            self.metrics.tick_lag_seconds.set(lag_s)
            if lag_s > LATE_S:
                log.warning("the tick is late", extra={"lag_s": round(lag_s, 3)})
        self._ticked_s = now_s
        for turn in self._turns:
            is_running = turn.task is not None and not turn.task.done()
            if is_running or now_s < turn.due_s or self._stop.is_set() or not self.ready(turn.step.when):
                continue
            turn.due_s = max(turn.due_s + turn.step.period_s, now_s + min(turn.step.period_s, TICK_S) / 2)
            turn.task = asyncio.create_task(self._run(turn), name=turn.step.name)
            turn.task.add_done_callback(self._on_end)

    async def _run(self, turn: _Turn) -> None:
        step, started_s = turn.step, self.clock.monotonic_s()
        try:
            async with asyncio.timeout(step.deadline_s):
                said = await step.run()
        except EXPECTED as problem:
            self._report_failure(turn, problem)
        else:
            self._report_success(turn, said)
        self.metrics.step_seconds.labels(step=step.name).observe(self.clock.monotonic_s() - started_s)

    def _report_failure(self, turn: _Turn, problem: Exception) -> None:
        name = turn.step.name
        self.metrics.step_failures.labels(step=name).inc()
        reason = problem.message if isinstance(problem, FleetError) else str(problem).strip()[:300]
        if isinstance(problem, TimeoutError):
            reason = f"not done within {turn.step.deadline_s:g} s"
        level = logging.DEBUG if turn.failing and turn.said == reason else logging.WARNING
        log.log(level, "step failed", extra={"step": name, "reason": reason})
        turn.failing, turn.said = True, reason

    def _report_success(self, turn: _Turn, said: str) -> None:
        """Log the sentence when it says something new; nothing done, or the same again, is no news."""
        name = turn.step.name
        turn.succeeded_s = self.clock.monotonic_s()
        self.metrics.step_success_at.labels(step=name).set(self.clock.now().timestamp())
        if not said and not turn.failing:
            return
        level = logging.INFO if turn.failing or said != turn.said else logging.DEBUG
        log.log(level, "step done", extra={"step": name, "said": said})
        turn.failing, turn.said = False, said

    def problem(self, after_s: float) -> str:
        """Return what is wrong with the loop itself, in words; "" while it ticks and its first step works.

        The first step is the lease: it needs nothing but the database.
        """
        now_s, first = self.clock.monotonic_s(), self._turns[0]
        if self._ticked_s is None or now_s - self._ticked_s > after_s:
            return "the loop does not tick"
        if first.succeeded_s is None or now_s - first.succeeded_s > after_s:
            return f"{first.step.name} has not succeeded for {after_s:g} s: {first.said or 'not run yet'}"
        return ""

    async def _watch(self) -> None:
        """Measure how late the event loop wakes a timer: blocking code anywhere shows up here."""
        while True:
            before_s = self.clock.monotonic_s()
            await asyncio.sleep(WATCH_S)
            lag_s = max(0.0, self.clock.monotonic_s() - before_s - WATCH_S)
            self.metrics.loop_lag_seconds.observe(lag_s)
            if lag_s > LATE_S:
                log.warning("the event loop was blocked", extra={"lag_s": round(lag_s, 3)})


@dataclass(slots=True)
class Controller:
    """The controller process's steps around one `Deps`. `extra`: further steps, as for usage."""

    deps: Deps
    observer: Observer
    metrics: ControlMetrics
    period_s: float
    extra: Sequence[Step] = ()
    closing: Sequence[Callable[[], Awaitable[None]]] = ()  # ends what steps left running
    _slot: datetime | None = None  # stamp of the newest round
    _slot_s: float = 0.0  # when it began, by the monotonic clock

    def loop(self) -> Loop:
        """Return the loop over all steps."""
        return Loop(self.deps.clock, self.steps(), self.metrics, self.is_ready)

    def is_ready(self, when: When) -> bool:
        """Say whether a step with this condition may run now."""
        leads = self.deps.leadership.current(self.deps.clock) is not None
        if when is When.OBSERVING:
            return leads or self.observer.is_observing
        return leads or when is When.ALWAYS

    def steps(self) -> list[Step]:
        """Return the steps, the lease first."""
        period, observer = self.period_s, self.observer
        return [
            Step("lease", self.deps.lease_ttl_s / 3, self.deps.lease_ttl_s, self._lease, When.ALWAYS),
            Step("partitions", 3600.0, 120.0, observer.keep_partitions),
            Step("facts", min(5.0, period), 60.0, observer.load_facts, When.OBSERVING),
            Step("observe", TICK_S / 4, max(period, 5.0) * 2, self._observe, When.OBSERVING),
            Step("store", TICK_S, 60.0, observer.store),
            Step("rollup", 5.0, 120.0, observer.roll_up),
            Step("capacity", 10.0, 300.0, observer.refresh_capacity, When.OBSERVING),
            Step("gateways", 1.0, 30.0, lambda: reconcile.tick(self.deps)),
            Step("rollout", 1.0, 30.0, lambda: rollout.tick(self.deps)),
            *self.extra,
        ]

    async def give_up(self) -> None:
        """Write what waits and give the lease back, so that a standby need not wait for its end."""
        for close in self.closing:
            await close()
        with contextlib.suppress(*EXPECTED):
            await self.observer.store()
        await lease.release(self.deps)

    async def _lease(self) -> str:
        said = await lease.tick(self.deps)
        leads = self.deps.leadership.current(self.deps.clock) is not None
        self.metrics.is_leader.set(leads)
        self.observer.follow_lease(others_lead=not leads)
        return said

    async def _observe(self) -> str:
        """Run a round when the wall clock has entered a new slot of the grid.

        Stamps only rise: while the wall clock is behind the last one (somebody set it back), a round
        follows each period of the monotonic clock. A stamp used twice would cost its second round.
        """
        now, now_s = self.deps.clock.now(), self.deps.clock.monotonic_s()
        slot = slot_of(now, self.period_s)
        if self._slot is not None and slot <= self._slot:
            if now_s < self._slot_s + self.period_s:
                return ""
            slot = self._slot + timedelta(seconds=self.period_s)
        lag_s = max(0.0, (now - slot).total_seconds())
        if self._slot is not None:
            passed = (slot - self._slot).total_seconds() / self.period_s
            if passed > 1.5:
                self.metrics.rounds_skipped.inc(round(passed) - 1)
            elif (slot - now).total_seconds() > 1.5 * self.period_s:
                log.warning("the wall clock is behind the rounds", extra={"slot": slot.isoformat()})
        self._slot, self._slot_s = slot, now_s - lag_s
        try:
            return await self.observer.observe(slot, lag_s)
        except (*EXPECTED, asyncio.CancelledError):  # cancelled: not done within the step's deadline
            self.observer.writer.lose("failed")
            raise
