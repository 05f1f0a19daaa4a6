"""Days through the gate on several cores: processes that each do one day at a time, niced.

A day is a value (`fleet.gate_task`), so its result does not depend on which process did it, and days are
counted in their order: one core or four give the same month. A process whose parent is gone ends at its
next slice, since its pipe is closed. Prevents: a month on one core beside idle ones, and orphans that go on
computing after `kill -9`.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from fleet.errors import FleetError, Unavailable
from fleet.gate_day import DayOutcome
from fleet.gate_month import SLICE_REQUESTS, GateRun
from fleet.gate_task import DayTask

#: However many cores there are: more are for who asked for them.
MOST_PROCESSES = 4
NICENESS = 10
#: How long `advance` waits for news before it returns without any.
PATIENCE_S = 1.0
END_S = 10.0


def usual_processes() -> int:
    """Return how many days are done at once unless somebody says otherwise: one a core, at most four."""
    return max(1, min(len(os.sched_getaffinity(0)), MOST_PROCESSES))


class _Member:
    """One process and the day it is at."""

    def __init__(self) -> None:
        context = get_context("spawn")  # what was forked would hold the other pipes open
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.day: int | None = None
        self.done = 0  # requests of that day

    def begin(self, task: DayTask) -> None:
        self.day, self.done = task.day, 0
        try:
            self.pipe.send(task)
        except ConnectionError as exc:
            raise self.ended() from exc

    def ended(self) -> Unavailable:
        return Unavailable(
            f"the process of day {(self.day or 0) + 1} ended",
            hint="Perhaps for want of memory: simulate on fewer cores",
        )


class Crew:
    """A `GateRun` whose days several processes do. Steps, snapshots and results are those of the run.

    Close it, or use it as a context: its processes end then.
    """

    def __init__(self, run: GateRun, processes: int) -> None:
        """Start at most `processes` (>= 1), no more than there are days. One does everything here."""
        self.run = run
        self._count = min(processes, run.days - run.days_done)
        self._members: list[_Member] = []
        self._found: dict[int, DayOutcome] = {}
        self._next = run.days_done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def days_done(self) -> int:
        """How many days are simulated and counted."""
        return self.run.days_done

    @property
    def is_done(self) -> bool:
        """Say whether nothing is left to simulate."""
        return self.run.is_done

    @property
    def requests_done(self) -> int:
        """How many requests were asked about, those of days under way included."""
        found = sum(int(one.offered.sum()) for one in self._found.values())
        return self.run.requests_done + found + sum(member.done for member in self._members)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all that the days counted left behind; the others are done again."""
        return self.run.state()

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on from a `state` of the same inputs, before the first `advance`."""
        self.run.restore(state)
        self._next = self.run.days_done

    def advance(self) -> None:
        """Hand out days, and wait a moment for what the processes say. Raises Unavailable if one died."""
        if self._count <= 1:
            self.run.advance()
            return
        while len(self._members) < self._count:
            self._members.append(_Member())
        self._hand_out()
        busy = [member for member in self._members if member.day is not None]
        heard = wait([member.pipe for member in busy], PATIENCE_S)
        for member in busy:
            if member.pipe in heard:
                self._hear(member)
        while self.run.days_done in self._found:
            self.run.fold(self._found.pop(self.run.days_done))

    def _hand_out(self) -> None:
        for member in self._members:
            if member.day is None and self._next < self.run.days:
                member.begin(self.run.task(self._next))
                self._next += 1

    def _hear(self, member: _Member) -> None:
        try:
            said: int | DayOutcome | FleetError = member.pipe.recv()
        except (EOFError, OSError) as exc:  # half a message is no ConnectionError
            raise member.ended() from exc
        if isinstance(said, FleetError):
            raise said
        if isinstance(said, int):
            member.done = said
        elif member.day is not None:
            self._found[member.day] = said
            member.day, member.done = None, 0

    def close(self) -> None:
        """End every process. What they were at is done again by the next crew."""
        for member in self._members:
            member.pipe.close()
            member.process.terminate()
        for member in self._members:
            member.process.join(END_S)
            if member.process.is_alive():
                member.process.kill()
                member.process.join()
            member.process.close()
        self._members = []


def _serve(pipe: Connection) -> None:
    """Do the days that come until the other end is closed. Runs in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.nice(max(0, NICENESS - os.nice(0)))
    gc.disable()  # requests are part of no cycle, and looking for some takes a tenth of the time
    try:
        while True:
            task: DayTask = pipe.recv()
            pipe.send(_done(task, pipe.send))
            del task
            gc.collect()  # the day's gate
    except (EOFError, OSError):
        return


def _done(task: DayTask, say: Callable[[int], None]) -> DayOutcome | FleetError:
    try:
        day = task.begin()
        while not day.is_done:
            day.advance(SLICE_REQUESTS)
            say(day.done)
        return day.outcome()
    except FleetError as exc:
        return exc
