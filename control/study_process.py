"""Studies run as processes of their own, one at a time: asked for, watched, cancelled, kept.

A study is a command of `rhodeck estimate` whose JSON is read back; its progress is read from its standard
error. Bounded in time (seconds), size and number. Prevents: half a minute of simulation inside the process
that answers every browser, and a page that stands still meanwhile.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import IO, Any

from control.progress_lines import read_progress
from fleet.clock import Clock
from fleet.errors import FleetError, InvalidInput, Unavailable

TIMEOUT_S = 120.0
MAX_ANSWER_BYTES = 5_000_000
MAX_WAITING = 8
MAX_KEPT = 100
_LAST_WORDS = 200  # lines of standard error kept for the reason of a failure


@dataclass(frozen=True, slots=True)
class Study:
    """What is asked: arguments of `rhodeck estimate`, and what the command reads from standard input."""

    arguments: tuple[str, ...]
    given: bytes = b""


class State(StrEnum):
    """How far a study is."""

    WAITS = "waits"
    RUNS = "runs"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class StudyView:
    """A study as a page sees it. `done` of `of` in `step`; `of` 0 before it said anything."""

    state: State
    step: str = ""
    done: int = 0
    of: int = 0
    ran_s: float = 0.0
    ahead: int = 0  # studies before it, while it waits
    answer: dict[str, Any] | None = None
    error: FleetError | None = None

    @property
    def is_open(self) -> bool:
        """Say whether it waits or runs."""
        return self.state in (State.WAITS, State.RUNS)


@dataclass(slots=True)
class _Job:
    study: Study
    state: State = State.WAITS
    watchers: set[str] = field(default_factory=set[str])
    step: str = ""
    done: int = 0
    of: int = 0
    began_s: float = 0.0
    process: subprocess.Popen[bytes] | None = None
    answer: dict[str, Any] | None = None
    error: FleetError | None = None


class StudyDesk:
    """Runs studies in the order they were asked for. Safe from every thread; one for the process."""

    def __init__(
        self,
        clock: Clock,
        timeout_s: float = TIMEOUT_S,
        command: tuple[str, ...] = (sys.executable, "-P", "-m", "control", "estimate"),
    ) -> None:
        """`command` is what a study's arguments and `--json` are given to."""
        self._clock, self._timeout_s, self._command = clock, timeout_s, command
        self._lock = threading.Lock()
        self._jobs: OrderedDict[Study, _Job] = OrderedDict()
        self._waiting: deque[_Job] = deque()
        self._thread: threading.Thread | None = None
        self._current: _Job | None = None

    def ask(self, study: Study, who: str) -> StudyView:
        """Return how far a study is; begin it if nobody has. `who` counts as watching it.

        Raises Unavailable when too many wait.
        """
        with self._lock:
            job = self._jobs.get(study)
            if job is None:
                if len(self._waiting) >= MAX_WAITING:
                    raise Unavailable(
                        f"{MAX_WAITING} simulations wait already", hint="Try again in a minute"
                    )
                job = self._jobs[study] = _Job(study)
                self._waiting.append(job)
                self._forget_old()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._serve, name="studies", daemon=True)
                    self._thread.start()
            job.watchers.add(who)
            return self._view(job)

    def peek(self, study: Study) -> StudyView | None:
        """Return how far a study is; None if nobody asked."""
        with self._lock:
            job = self._jobs.get(study)
            return None if job is None else self._view(job)

    def cancel(self, study: Study) -> None:
        """End a study that waits or runs; the others go on."""
        with self._lock:
            job = self._jobs.get(study)
            if job is not None:
                self._cancel(job)

    def leave(self, study: Study, who: str) -> None:
        """Say that `who` looks elsewhere. What nobody watches any more is ended and forgotten."""
        with self._lock:
            job = self._jobs.get(study)
            if job is None:
                return
            job.watchers.discard(who)
            if not job.watchers and job.state in (State.WAITS, State.RUNS):
                self._cancel(job)
                del self._jobs[study]

    def forget(self, study: Study) -> None:
        """Let the next `ask` begin an ended study anew."""
        with self._lock:
            job = self._jobs.get(study)
            if job is not None and job.state not in (State.WAITS, State.RUNS):
                del self._jobs[study]

    def close(self, timeout_s: float = 10.0) -> None:
        """End whatever waits or runs, and wait for its end."""
        with self._lock:
            for job in list(self._jobs.values()):
                self._cancel(job)
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _cancel(self, job: _Job) -> None:
        if job.state is State.WAITS:
            self._waiting.remove(job)
        elif job.state is not State.RUNS:
            return
        job.state = State.CANCELLED
        if job.process is not None:
            job.process.kill()

    def _forget_old(self) -> None:
        ended = [s for s, j in self._jobs.items() if j.state not in (State.WAITS, State.RUNS)]
        for study in ended[: max(0, len(self._jobs) - MAX_KEPT)]:
            del self._jobs[study]

    def _view(self, job: _Job) -> StudyView:
        waits = job.state is State.WAITS
        before = self._waiting.index(job) + (self._current is not None) if waits else 0
        ran_s = self._clock.monotonic_s() - job.began_s if job.state is State.RUNS else 0.0
        return StudyView(job.state, job.step, job.done, job.of, ran_s, before, job.answer, job.error)

    def _serve(self) -> None:
        """Run what waits until nothing does."""
        while True:
            with self._lock:
                self._current = None
                if not self._waiting:
                    self._thread = None
                    return
                job = self._current = self._waiting.popleft()
                job.state, job.began_s = State.RUNS, self._clock.monotonic_s()
            try:
                answer, error = self._run(job), None
            except FleetError as exc:
                answer, error = None, exc
            with self._lock:
                job.process = None
                if job.state is State.RUNS:
                    job.answer, job.error = answer, error
                    job.state = State.DONE if error is None else State.FAILED

    def _run(self, job: _Job) -> dict[str, Any]:
        command = [*self._command, *job.study.arguments, "--json"]
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out:
            given.write(job.study.given)
            given.seek(0)
            process = start_process(command, given, out)
            said, is_late = self._watch(job, process)
            if is_late:
                raise Unavailable(
                    f"the simulation took over {self._timeout_s:.0f} s and was ended",
                    hint="Ask for less traffic",
                )
            if process.returncode != 0:
                raise refused(said, "the simulation ended without an answer", "Change the inputs")
            return _answer(out)

    def _watch(self, job: _Job, process: subprocess.Popen[bytes]) -> tuple[list[str], bool]:
        """Follow a process to its end. Return its last words, and whether it ran out of time."""
        late = threading.Event()
        timer = threading.Timer(self._timeout_s, end_process, (process, late.set))
        timer.daemon = True
        said: deque[str] = deque(maxlen=_LAST_WORDS)
        with process:
            with self._lock:
                job.process = process
                if job.state is not State.RUNS:  # cancelled before it was started
                    process.kill()
            timer.start()
            try:
                for line in process.stderr or ():
                    text = line[:2_000].decode("utf-8", "replace").strip()
                    told = read_progress(text)
                    if told is None:
                        said.append(text)
                        continue
                    with self._lock:
                        job.step, job.done, job.of = told
                process.wait()
            finally:
                timer.cancel()
                timer.join()
        return list(said), late.is_set()


def start_process(command: list[str], given: IO[bytes], out: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a command of our own between two files; its standard error is a pipe. Raises Unavailable."""
    try:
        return subprocess.Popen(  # noqa: S603 - our own command, arguments without a shell
            command, stdin=given, stdout=out, stderr=subprocess.PIPE
        )
    except OSError as exc:
        raise Unavailable(f"no process can be started: {exc}", hint="Try again later") from exc


def end_process(process: subprocess.Popen[bytes], say: Callable[[], None]) -> None:
    """End a child that takes too long, after saying so."""
    say()
    process.kill()


def _answer(out: IO[bytes]) -> dict[str, Any]:
    size = out.seek(0, 2)
    if size > MAX_ANSWER_BYTES:
        raise Unavailable(f"the simulation answered {size:,} bytes", hint="Ask for less")
    out.seek(0)
    try:
        document: dict[str, Any] = json.loads(out.read())
    except ValueError as exc:
        raise Unavailable("the simulation's answer cannot be read", hint="Try again") from exc
    return document


def refused(said: list[str], otherwise: str, hint: str) -> InvalidInput:
    """Return the command's last error as ours; `otherwise` and `hint` where it said none."""
    lines = [line for line in said if line]
    errors = [line for line in lines if line.lower().startswith("error:")]
    hints = [line.removeprefix("hint:").strip() for line in lines if line.startswith("hint:")]
    message = errors[-1].partition(":")[2].strip() if errors else otherwise
    return InvalidInput(message, hint=hints[-1] if hints else hint)
