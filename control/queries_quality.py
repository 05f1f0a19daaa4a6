"""What is and was wrong with the data, for pages, the command line and the API.

Times are UTC, ages seconds at the caller's `now`. Prevents: a list of faults without since when, and one
that leaves out what ended an hour ago.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import case, or_, select
from sqlalchemy.orm import Session

from control.tables import QualityFindingRow
from fleet.quality_kinds import MEANINGS, Kind

ROWS_MAX = 500


@dataclass(frozen=True, slots=True)
class FindingView:
    """One finding. `until` None: it stands."""

    id: int
    scope: str
    source: str
    engine: str
    metric: str
    kind: str
    title: str
    severity: str
    since: datetime
    until: datetime | None
    detail: str
    affects: tuple[str, ...]
    do: str

    @property
    def is_open(self) -> bool:
        return self.until is None

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "id": self.id,
            "scope": self.scope,
            "source": self.source,
            "engine": self.engine or None,
            "metric": self.metric or None,
            "kind": self.kind,
            "title": self.title,
            "severity": self.severity,
            "since": self.since.isoformat(),
            "until": None if self.until is None else self.until.isoformat(),
            "detail": self.detail,
            "affects": list(self.affects),
            "do": self.do,
        }


def findings(
    session: Session,
    now: datetime,
    *,
    window: timedelta | None = None,
    source: str | None = None,
    limit: int = ROWS_MAX,
) -> list[FindingView]:
    """Return findings that stand (worst first, then newest), then those that ended within `window`.

    `source`: of one node or gateway only ("" is the controller itself). At most `limit` rows.
    """
    row = QualityFindingRow
    is_open = row.until.is_(None)
    wanted = is_open if window is None else or_(is_open, row.until >= now - window)
    worst = case({"fault": 0, "warning": 1}, value=row.severity, else_=2)
    asked = select(row).where(wanted)
    if source is not None:
        asked = asked.where(row.source == source)
    asked = asked.order_by(
        row.until.is_not(None), case((is_open, worst), else_=0), row.since.desc(), row.id
    )
    return [_view(each) for each in session.scalars(asked.limit(limit))]


def _view(row: QualityFindingRow) -> FindingView:
    meaning = MEANINGS.get(Kind(row.kind)) if row.kind in list(Kind) else None
    return FindingView(
        id=row.id,
        scope=row.scope,
        source=row.source,
        engine=row.engine,
        metric=row.metric,
        kind=row.kind,
        title=meaning.title if meaning else row.kind.replace("_", " "),
        severity=row.severity,
        since=row.since,
        until=row.until,
        detail=row.detail,
        affects=tuple(row.affects),
        do=meaning.do if meaning else "",
    )
