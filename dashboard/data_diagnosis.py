"""What the diagnosis page reads: the verdict on the chosen interval, shared for half a minute.

Prevents: every browser having the whole fleet's samples added up for itself at each tick.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from control.diagnose import gather
from dashboard.data import LONG, QUESTIONS, Reading, ask
from dashboard.deps import Deps
from fleet.diagnosis import diagnose
from fleet.diagnosis_evidence import Evidence, Verdict

#: Choices of the page; six hours of a large fleet are more samples than one diagnosis reads.
INTERVALS: dict[str, int] = {"15 min": 900, "1 h": 3600, "6 h": 21_600}
TICK_S = 30.0


def _evidence(session: Any, _of: Deps, now: datetime, span_s: int) -> Evidence:
    return gather(session, now - timedelta(seconds=span_s), now)


QUESTIONS["diagnosis"] = _evidence
LONG["diagnosis"] = diagnose  # seconds of processor for 200 nodes: no transaction waits for it


def verdict(interval: str) -> Reading[Verdict]:
    """The verdict on one of INTERVALS, up to now."""
    return ask("diagnosis", INTERVALS[interval])
