"""What a run of pages of one engine says about its life: working, idle, stuck, frozen, or two writers.

The one rule for "frozen": the scraper and the gateways both ask here. Ages are seconds on the asker's own
clock. One page cannot tell: gauges lag the first request by seconds (vLLM issue 49538), and a frozen
engine answers /health and /metrics with 200 as ever. Prevents: calling a frozen node busy, a stuck node
full, a long prefill frozen, and a page written by two processes an endless restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from fleet.readings import EngineReading, PageReading

#: Pages that must agree before standing still means anything, and for how long they must.
PAGES_MIN = 3
FROZEN_AFTER_S = 15.0
#: Pages with equal gauges, while requests finish, before the gauges are said to stand still.
GAUGE_PAGES_MIN = 6
GAUGE_AFTER_S = 45.0
#: A process that says it began this long before the page of another was read was there all along.
START_SLACK_S = 120.0
#: Start times before 2020 are of a clock nobody set, or of a simulated one: they only have an order.
CLOCKS_FROM_S = 1_577_836_800.0
_KEPT = 24


class Life(StrEnum):
    """What an engine has been doing over the last pages."""

    WORKING = "working"  # a counter moved
    FROZEN = "frozen"  # requests are running and nothing moves: alarm
    STUCK = "stuck"  # requests wait, none run, nothing moves: alarm; capacity unknown, not infinite
    QUIET = "quiet"  # no request seen and nothing moves; the first one may be in its prefill
    UNKNOWN = "unknown"  # too few pages, too short a time, or no gauges


@dataclass(frozen=True, slots=True)
class Pulse:
    """What one page said of one engine, as small as telling pages apart allows."""

    at_s: float
    running: int | None
    waiting: int | None
    kv_used_ratio: float | None
    finished: int
    counts: int  # hash of everything that a working engine moves

    @property
    def gauges(self) -> tuple[int | None, int | None, float | None]:
        return self.running, self.waiting, self.kv_used_ratio


def pulse(engine: EngineReading, at_s: float) -> Pulse:
    """Return the pulse of a reading dated `at_s`."""
    return Pulse(
        at_s,
        engine.running,
        engine.waiting,
        engine.kv_used_ratio,
        sum(engine.finished.values()),
        hash(counts(engine)),
    )


def counts(engine: EngineReading) -> tuple[object, ...]:
    """Everything of a reading that a working engine moves, to compare with another page's."""
    return (
        engine.prompt_tokens,
        engine.generation_tokens,
        engine.preemptions,
        tuple(sorted(engine.finished.items())),
        tuple(sorted((name, histogram.count) for name, histogram in engine.histograms.items())),
    )


@dataclass(slots=True)
class Pulses:
    """The last pulses of one engine, oldest first, and since when it stands still."""

    kept: deque[Pulse] = field(default_factory=lambda: deque(maxlen=_KEPT))
    still_since_s: float = 0.0  # date of the first page of the present standstill, gauges included
    still_pages: int = 0
    counted_s: float = 0.0  # date of the first page with the newest counts
    gauges_since_s: float = 0.0
    gauge_pages: int = 0
    finished_at_gauges: int = 0

    def add(self, engine: EngineReading, at_s: float) -> None:
        """Take the reading of the page dated `at_s`; dates rise."""
        new = pulse(engine, at_s)
        last = self.kept[-1] if self.kept else None
        if last is None or last.gauges != new.gauges:
            self.gauges_since_s, self.gauge_pages, self.finished_at_gauges = at_s, 0, new.finished
        self.gauge_pages += 1
        if last is None or last.counts != new.counts:
            self.counted_s = at_s
        if last is None or last.gauges != new.gauges or last.counts != new.counts:
            self.still_since_s, self.still_pages = at_s, 0
        self.still_pages += 1
        self.kept.append(new)

    @property
    def unchanged_s(self) -> float:
        """For how long the newest counts have stood, in seconds between page dates; 0 for one page."""
        return self.kept[-1].at_s - self.counted_s if self.kept else 0.0

    def life(self, *, after_s: float = FROZEN_AFTER_S) -> Life:
        """Return what the engine has been doing. Standing still takes three pages and `after_s` seconds."""
        if len(self.kept) < 2:
            return Life.UNKNOWN
        last = self.kept[-1]
        if last.counts != self.kept[-2].counts:
            return Life.WORKING
        if self.still_pages < PAGES_MIN or last.at_s - self.still_since_s < after_s:
            return Life.UNKNOWN
        if last.running is None or last.waiting is None:
            return Life.FROZEN if last.running else Life.STUCK if last.waiting else Life.UNKNOWN
        if last.running:
            return Life.FROZEN
        return Life.STUCK if last.waiting else Life.QUIET

    def gauges_stand_still(self) -> bool:
        """True when requests come and go while running, waiting and KV use repeat to the last digit.

        A KV share of exactly the same value over a minute of work is no coincidence; one of 0 says nothing.
        """
        last = self.kept[-1] if self.kept else None
        if last is None or not last.running or not last.kv_used_ratio:
            return False
        return (
            self.gauge_pages >= GAUGE_PAGES_MIN
            and last.at_s - self.gauges_since_s >= GAUGE_AFTER_S
            and last.finished - self.finished_at_gauges >= GAUGE_PAGES_MIN
        )


def life(engines: Sequence[EngineReading]) -> Life:
    """Return what one engine has been doing, from its readings on successive pages, oldest first.

    For pages without dates: three that agree are enough.
    """
    pulses = Pulses()
    for at_s, engine in enumerate(engines):
        pulses.add(engine, float(at_s))
    return pulses.life(after_s=0.0)


def node_is_frozen(lives: Iterable[Life]) -> bool:
    """True when an engine of the node is frozen and none of them works."""
    found = set(lives)
    return Life.FROZEN in found and Life.WORKING not in found


@dataclass(frozen=True, slots=True)
class Writer:
    """What one page says of the process that wrote it."""

    start_time_s: float | None
    finished: int | None


def writer(page: PageReading) -> Writer:
    """Return who wrote a page, as far as it says."""
    return Writer(page.process_start_time_s, _finished(page))


def two_writers(pages: Sequence[PageReading | Writer]) -> bool:
    """True when successive pages come from two processes in turn, not from one that keeps restarting.

    Two falls or more, and each page at or above the one before the last: 10, 4, 11, 5. With start times
    on the pages: one that went away comes back. Seen where several API servers answer for one
    address without a shared registry (vLLM PR 18053), or a balancer answers for several nodes.
    """
    writers = [page if isinstance(page, Writer) else writer(page) for page in pages]
    starts = [w.start_time_s for w in writers]
    if len(set(starts)) > 1 and None not in starts:
        changes = [start for start, before in zip(starts, [None, *starts], strict=False) if start != before]
        return len(set(changes)) < len(changes)
    totals = [w.finished for w in writers]
    known = [total for total in totals if total is not None]
    if len(known) < 4 or len(known) < len(totals):
        return False
    falls = sum(b < a for a, b in pairwise(known))
    return falls >= 2 and all(later >= earlier for earlier, later in zip(known, known[2:], strict=False))


def is_other_process(before: Writer, after: Writer, *, read_at_s: float | None = None) -> bool:
    """True when `after` was written by a process that ran already when `before` was.

    Its start time lies before the other's, or `START_SLACK_S` before the other's page was read (Unix
    seconds by our clock). A restarted process begins after the last page of the one before.
    """
    old, new = before.start_time_s, after.start_time_s
    if old is None or new is None or old == new:
        return False
    return new < old or (read_at_s is not None and CLOCKS_FROM_S < new < read_at_s - START_SLACK_S)


def _finished(page: PageReading) -> int | None:
    reasons = [engine.finished for engine in page.engines if engine.finished]
    return sum(sum(counts.values()) for counts in reasons) if reasons else page.http_finished


def xid_events(codes: Sequence[float | None]) -> list[tuple[int, int]]:
    """Return (index, code) where a GPU's last error code became another one.

    `codes` are successive values of DCGM_FI_DEV_XID_ERRORS, None where a page was missing. The gauge
    never clears and a code that comes twice is invisible, so only a change is news; the first value seen
    may be days old and is none. Our own timer ends the alarm. Source: NVIDIA/dcgm-exporter issue 500.
    """
    events: list[tuple[int, int]] = []
    before: float | None = None
    for index, code in enumerate(codes):
        if code is None or code >= 9.2e18:  # DCGM's blank: no value
            continue
        if before is not None and code != before and code != 0:
            events.append((index, int(code)))
        before = code
    return events
