"""Findings for the data-quality page: some stand, some ended, one of them from a hostile page.

Prevents: a page that is only ever seen empty.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from control.quality import Standing
from control.quality_store import RoundQuality, apply
from fleet.quality_kinds import Finding, Kind

#: (scope, source, finding, began this many seconds ago, ended this many seconds ago or None)
ROWS: tuple[tuple[str, str, Finding, float, float | None], ...] = (
    (
        "node",
        "n3",
        Finding(Kind.NO_PAGE, metric="refused", detail="refused: 10.0.0.3 port 8000"),
        7_200,
        None,
    ),
    (
        "node",
        "n2",
        Finding(Kind.FROZEN_COUNTERS, "0", detail="4 run, no counter has moved for 60 s"),
        60,
        None,
    ),
    (
        "node",
        "n1",
        Finding(Kind.METRIC_MISSING, metric="kv_used_ratio", detail="vllm exports it"),
        900,
        None,
    ),
    (
        "node",
        "n1",
        Finding(Kind.RENAMED, metric="itl_s", detail="read as vllm:time_per_output"),
        900,
        None,
    ),
    ("node", "n1", Finding(Kind.CLAMPED, "<b>1</b>`|", "kv_used_ratio", "**-0.39**"), 300, None),
    ("gateway", "gw-1", Finding(Kind.CLOCK_SKEW, detail="9 s behind our clock"), 400, None),
    (
        "controller",
        "",
        Finding(Kind.ROUNDS_MISSED, detail="3 rounds after 12:00:00 UTC did not run"),
        500,
        490,
    ),
    ("node", "n2", Finding(Kind.RESTART, "0"), 1_000, 1_000),
)


def fill_findings(session: Session, now: datetime) -> None:
    """Write ROWS as rounds would have."""
    for scope, source, finding, began_s, ended_s in ROWS:
        since = now - timedelta(seconds=began_s)
        standing = Standing(scope, source, finding, since, since)
        if ended_s is not None:
            apply(session, RoundQuality(since, (standing,)))
            session.flush()
            at = now - timedelta(seconds=ended_s)
            ended = Standing(scope, source, finding, since, at)
            apply(session, RoundQuality(at, (), (ended,)))
    standing = tuple(
        Standing(scope, source, finding, now - timedelta(seconds=began_s), now)
        for scope, source, finding, began_s, ended_s in ROWS
        if ended_s is None
    )
    apply(session, RoundQuality(now, standing))
