"""What the data-quality page reads: findings that stand, and those that ended in the chosen range.

Prevents: a page that asks the database about faults in its own way.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from control.queries_quality import FindingView, findings
from dashboard.data import QUESTIONS, Reading, ask
from dashboard.deps import Deps


def _quality(session: Any, _of: Deps, now: datetime, span_s: int, source: str | None) -> list[FindingView]:
    return findings(session, now, window=timedelta(seconds=span_s), source=source)


QUESTIONS["quality"] = _quality


def quality(span_s: int, source: str | None = None) -> Reading[list[FindingView]]:
    """Findings that stand, and those that ended in the last `span_s` seconds; of one source, or of all."""
    return ask("quality", span_s, source)
