"""How old a node's last sample may be: fresh, stale, silent.

Pure; times are timezone-aware, durations seconds. Scraper, health, pages and `status` all ask here, so
that one of them cannot call a node fresh that another left out of the sums. Prevents: a value that
decays to zero, or stays on the screen for ever, because its source went away.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

#: Rounds without a sample after which a node is stale, unless `STALE_AFTER_S` passes first.
MISSED_ROUNDS = 3
STALE_AFTER_S = 60.0
#: A node nobody heard from for this long (or ten rounds, whichever is longer) is silent.
SILENT_AFTER_S = 300.0
SILENT_ROUNDS = 10
MAX_INTERVAL_S = 300.0
DEFAULT_PERIOD_S = 10.0


class Freshness(StrEnum):
    """What the age of the last sample means."""

    FRESH = "fresh"
    STALE = "stale"  # leaves the sums; last values are shown with their age
    SILENT = "silent"  # not heard from for minutes, or never


def stale_after_s(period_s: float) -> float:
    """Return the age at which a sample is stale: 3 rounds or 60 s, but never less than 1.5 rounds.

    The floor matters for periods above 40 s, where one late round is no reason to drop a node.
    """
    return max(min(MISSED_ROUNDS * period_s, STALE_AFTER_S), 1.5 * period_s)


def silent_after_s(period_s: float) -> float:
    """Return the age at which a node counts as silent, seconds."""
    return max(SILENT_AFTER_S, SILENT_ROUNDS * period_s)


def freshness(age_s: float | None, period_s: float) -> Freshness:
    """Return the state of a node whose last sample is `age_s` old; None means never seen."""
    if age_s is None or age_s >= silent_after_s(period_s):
        return Freshness.SILENT
    return Freshness.STALE if age_s >= stale_after_s(period_s) else Freshness.FRESH


def news_period_s(period_s: float, interval_s: float | None) -> float:
    """Return how often there can be news of a node: each round, or as rarely as its server scrapes it.

    Up to five minutes: a server that scrapes more rarely gives no present.
    """
    return max(period_s, min(interval_s or 0.0, MAX_INTERVAL_S))


def age_s(at: datetime | None, now: datetime) -> float | None:
    """Return the seconds from `at` to `now`, at least 0; None if it never happened."""
    return None if at is None else max(0.0, (now - at).total_seconds())
