"""How long a page waits for the database before it shows what was last known. Seconds.

A database that hangs keeps its sockets open, so that neither connecting nor asking ever fails. Questions
run on threads of their own; one that overruns is left to end by itself, and until it has, the next ones
are refused at once, but for a probe now and then. Prevents: an empty page for as long as Postgres hangs.
Writes are not bounded here: a change that was given up may still be made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from dashboard.outage import DATABASE_FIELD, SEEN, Outage
from fleet.clock import Clock
from fleet.errors import Unavailable

T = TypeVar("T")
WAIT_S = 6.0  # statements end after 3 s, attempts to connect after 3 s: what takes longer hangs
PROBE_EACH_S = 10.0
THREADS = 16


@dataclass(slots=True)
class Patience:
    """Runs questions with a bound on the wait. One for the process; safe from every thread."""

    clock: Clock
    wait_s: float = WAIT_S
    outage: Outage = field(default_factory=lambda: SEEN)  # one for all
    answers: Literal["asked", "worked out"] = "asked"  # from the database, or of what it gave
    _pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(THREADS, thread_name_prefix="question")
    )
    _overdue: set[Future[Any]] = field(default_factory=set[Future[Any]])
    _probe_at_s: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, question: Callable[[], T]) -> T:
        """Return the answer of `question`; raises what it raises, Unavailable if it takes too long."""
        with self._lock:
            if not self._may_ask():
                raise self._hangs()
        asked = self._pool.submit(question)
        try:
            answer = asked.result(self.wait_s)
            self.outage.answered(self.clock.now())
            return answer
        except Unavailable as exc:
            if exc.field == DATABASE_FIELD:
                self.outage.failed(self.clock.now(), exc)
            raise
        except TimeoutError:
            if asked.done():  # the question itself timed out
                raise
            if not asked.cancel():
                with self._lock:
                    self._overdue.add(asked)
            raise self._hangs() from None

    def _may_ask(self) -> bool:
        self._overdue = {late for late in self._overdue if not late.done()}
        if not self._overdue:
            self._probe_at_s = None
            return True
        now_s = self.clock.monotonic_s()
        if self._probe_at_s is None:  # the first that overran a moment ago
            self._probe_at_s = now_s + PROBE_EACH_S
        if now_s < self._probe_at_s or len(self._overdue) >= THREADS:
            return False
        self._probe_at_s = now_s + PROBE_EACH_S
        return True

    def _hangs(self) -> Unavailable:
        if self.answers == "worked out":
            return Unavailable(
                f"this was not worked out within {self.wait_s:g} s: it is much, or the machine is busy",
                hint="Choose a shorter interval, or look again in a minute; other pages do not wait for it",
            )
        hangs = Unavailable(
            f"the database has not answered within {self.wait_s:g} s: it hangs, or is far behind",
            hint="Look at Postgres and its disk; gateways keep admitting by their last good policy",
        )
        self.outage.failed(self.clock.now(), hangs)
        return hangs
