"""What a run of pages of one engine says about its life: working, idle, stuck, frozen, or two writers.

Pages are oldest first, ages seconds. One page cannot tell: gauges lag the first request by seconds
(vLLM issue 49538), and a frozen engine answers /health and /metrics with 200 as ever. Prevents: calling
a frozen node busy, a stuck node full, and a page written by two processes an endless restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise

from fleet.readings import EngineReading, PageReading

#: Pages that must agree before standing still means anything.
PAGES_MIN = 3


class Life(StrEnum):
    """What an engine has been doing over the last pages."""

    WORKING = "working"  # a counter moved
    FROZEN = "frozen"  # requests are running and nothing moves: alarm
    STUCK = "stuck"  # requests wait, none run, nothing moves: alarm; capacity unknown, not infinite
    QUIET = "quiet"  # no request seen and nothing moves; the first one may be in its prefill
    UNKNOWN = "unknown"  # too few pages, or no gauges


def life(engines: Sequence[EngineReading]) -> Life:
    """Return what one engine has been doing, from its readings on successive pages, oldest first."""
    if len(engines) < 2:
        return Life.UNKNOWN
    last = engines[-1]
    if counts(last) != counts(engines[-2]):
        return Life.WORKING
    recent = engines[-PAGES_MIN:]
    if len(recent) < PAGES_MIN or any(counts(engine) != counts(last) for engine in recent):
        return Life.UNKNOWN
    if any(engine.running is None or engine.waiting is None for engine in recent):
        return Life.UNKNOWN
    if all(engine.running for engine in recent):
        return Life.FROZEN
    if all(not engine.running and engine.waiting for engine in recent):
        return Life.STUCK
    if all(not engine.running and not engine.waiting for engine in recent):
        return Life.QUIET
    return Life.UNKNOWN


def counts(engine: EngineReading) -> tuple[object, ...]:
    """Everything of a reading that a working engine moves, to compare with another page's."""
    return (
        engine.prompt_tokens,
        engine.generation_tokens,
        engine.preemptions,
        tuple(sorted(engine.finished.items())),
        tuple(sorted((name, histogram.count) for name, histogram in engine.histograms.items())),
    )


def unchanged_s(pages: Sequence[tuple[float, EngineReading]]) -> float:
    """Return for how long the newest counts have stood, in seconds between page dates; 0 for one page.

    `pages` are (date on the scraper's clock, reading), oldest first.
    """
    if not pages:
        return 0.0
    newest, since = pages[-1]
    first = newest
    for at, engine in reversed(pages):
        if counts(engine) != counts(since):
            break
        first = at
    return newest - first


def two_writers(pages: Sequence[PageReading]) -> bool:
    """True when successive pages come from two processes in turn, not from one that keeps restarting.

    Two falls or more, and each page at or above the one before the last: 10, 4, 11, 5. With start times
    on the pages: two of them, in turn. Seen where several API servers answer for one address without a
    shared registry (vLLM PR 18053).
    """
    starts = [page.process_start_time_s for page in pages]
    if len(pages) >= 4 and len(set(starts)) == 2 and None not in starts:
        return sum(a != b for a, b in pairwise(starts)) >= 3
    totals = [_finished(page) for page in pages]
    known = [total for total in totals if total is not None]
    if len(known) < 4 or len(known) < len(totals):
        return False
    falls = sum(b < a for a, b in pairwise(known))
    return falls >= 2 and all(later >= earlier for earlier, later in zip(known, known[2:], strict=False))


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
