"""What the diagnosis page reads: the verdict on the chosen interval, shared for half a minute.

Prevents: every browser having the whole fleet's samples added up for itself at each tick.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from control.diagnose import diagnosis
from dashboard.data import QUESTIONS, Reading, ask
from dashboard.deps import Deps
from fleet.diagnosis_evidence import Verdict

#: Choices of the page; six hours of a large fleet are more samples than one diagnosis reads.
INTERVALS: dict[str, int] = {"15 min": 900, "1 h": 3600, "6 h": 21_600}
TICK_S = 30.0


def _diagnosis(session: Any, _of: Deps, now: datetime, span_s: int) -> Verdict:
    return diagnosis(session, now, timedelta(seconds=span_s))


QUESTIONS["diagnosis"] = _diagnosis


def verdict(interval: str) -> Reading[Verdict]:
    """The verdict on one of INTERVALS, up to now."""
    return ask("diagnosis", INTERVALS[interval])
