"""Utilization over time: how rho of each pool was distributed over a range.

Ratios; shares of the known time 0..1. Rounds without a verdict, or with an unknown rho, are no part of a
curve and lower its coverage. Prevents: a mean over a day of which half is missing.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Double, cast, func, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session

from control.queries_fleet import scrape_period_s
from control.tables import HealthRow
from fleet.health_reading import TARGET_RHO
from fleet.utilization_curve import STEPS, UtilizationCurve

SHARES = tuple(step / (STEPS - 1) for step in range(STEPS))


def utilization_curves(session: Session, since: datetime, until: datetime) -> dict[str, UtilizationCurve]:
    """Return the curve of every pool with a known rho in [since, until), by name.

    From single rounds, so as far back as those are kept; `coverage` shows what is missing.
    """
    h = HealthRow
    shares = cast([*SHARES, 0.1, 0.5, 0.9], ARRAY(Double[float]()))
    rows = session.execute(
        select(
            h.name,
            func.count(h.rho),
            func.count(h.rho).filter(h.rho > TARGET_RHO),
            func.percentile_cont(shares).within_group(h.rho),
        )
        .where(h.scope == "pool", h.at >= since, h.at < until, h.rho.is_not(None))
        .group_by(h.name)
        .order_by(h.name)
    ).all()
    expected = max(1.0, (until - since).total_seconds() / scrape_period_s(session))
    curves: dict[str, UtilizationCurve] = {}
    for name, known, above, values in rows:
        points, (p10, p50, p90) = values[:STEPS], values[STEPS:]
        curves[name] = UtilizationCurve(
            p10,
            p50,
            p90,
            above / known,
            known,
            min(1.0, known / expected),
            tuple(zip(SHARES, points, strict=True)),
        )
    return curves
