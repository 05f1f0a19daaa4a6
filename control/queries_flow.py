"""Utilization over time: how rho of each pool was distributed over a range.

Ratios; shares of the known time 0..1. Rounds without a verdict, or with an unknown rho, are no part of a
curve and lower its coverage. Prevents: a mean over a day of which half is missing.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from control.queries_fleet import scrape_period_s
from control.queries_history import read_rows
from control.rollup_due import WIDTH, kept_since
from control.tables_rollup import HEALTH, Level
from fleet.health_reading import TARGET_RHO
from fleet.utilization_curve import STEPS, UtilizationCurve

SHARES = tuple(step / (STEPS - 1) for step in range(STEPS))
#: The longest range read from rounds, and from minutes, where those are kept.
ROUNDS_UP_TO = timedelta(days=2)
MINUTES_UP_TO = timedelta(days=14)


def utilization_curves(session: Session, since: datetime, until: datetime) -> dict[str, UtilizationCurve]:
    """Return the curve of every pool with a known rho in [since, until), by name.

    From rounds as far back as those are kept, else from means of minutes, else of hours: the curve says
    which (`width_s`). `coverage` shows what is missing.
    """
    level = _level(session, since, until)
    read = read_rows(
        session, HEALTH, since, until, "scope = 'pool'", only={"rho_sum", "rho_n"}, level=level
    )
    width_s = scrape_period_s(session) if level is Level.RAW else WIDTH[level].total_seconds()
    shares = ", ".join(map(str, [*SHARES, 0.1, 0.5, 0.9]))
    start = "at" if level is Level.RAW else "date_bin(make_interval(secs => :width_s), at, 'epoch')"
    rows = session.execute(
        text(
            "SELECT name, sum(n), avg((rho > :target)::int)::float8, "  # noqa: S608 # constants
            f"percentile_cont(ARRAY[{shares}]) WITHIN GROUP (ORDER BY rho) "
            f"FROM (SELECT name, {start} AS start, sum(rho_sum) / sum(rho_n) AS rho, sum(rho_n) AS n "
            f"FROM ({read.source}) AS r GROUP BY name, start HAVING sum(rho_n) > 0) AS each "
            "GROUP BY name ORDER BY name"
        ),
        read.given | {"target": TARGET_RHO, "width_s": width_s},
    ).all()
    expected = max(1.0, (until - since).total_seconds() / scrape_period_s(session))
    curves: dict[str, UtilizationCurve] = {}
    for name, known, above, values in rows:
        points, (p10, p50, p90) = values[:STEPS], values[STEPS:]
        curves[name] = UtilizationCurve(
            p10,
            p50,
            p90,
            above,
            int(known),
            min(1.0, int(known) / expected),
            tuple(zip(SHARES, points, strict=True)),
            None if level is Level.RAW else width_s,
        )
    return curves


def _level(session: Session, since: datetime, until: datetime) -> Level:
    for level, longest in ((Level.RAW, ROUNDS_UP_TO), (Level.MINUTE, MINUTES_UP_TO)):
        kept = kept_since(session, HEALTH.table(level))
        if until - since <= longest and (kept is None or since >= kept):
            return level
    return Level.HOUR
