"""Whether anybody simulates what waits: the last sign of the process that should.

Times are seconds. Prevents: "3 of 90 days are done" on a page for ever, while no controller runs.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control.estimate_worker import STALE
from control.tables import EstimateRunRow


def silent_s(session: Session, now: datetime) -> float | None:
    """Return for how long nobody simulated although something waits; None while somebody does.

    Counted from the last day anybody simulated or from the first request since, whichever is later.
    """
    r = EstimateRunRow
    asked_at = session.scalar(select(func.min(r.created_at)).where(r.state.in_(("queued", "running"))))
    if asked_at is None:
        return None
    heard_at = session.scalar(select(func.max(r.beat_at)))
    quiet = now - max(asked_at, heard_at or asked_at)
    return quiet.total_seconds() if quiet > STALE else None
