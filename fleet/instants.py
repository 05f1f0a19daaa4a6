"""Instants and days that a person typed: read, timezone-aware, and within a bounded range.

Years `FIRST_YEAR` to `LAST_YEAR`, in UTC. Prevents: a price from the year 1 at an offset that no clock or
database can turn into UTC, and a row whose date stops every report that reads it later.
"""

from __future__ import annotations

from datetime import UTC, date, datetime

from fleet.errors import InvalidInput

FIRST_YEAR, LAST_YEAR = 2000, 2199
_RANGE = f"Give a year from {FIRST_YEAR} to {LAST_YEAR}"


def instant_of(text: str, field: str) -> datetime:
    """Return the instant written in `text` (ISO 8601; UTC unless it names an offset), in UTC.

    Raises InvalidInput naming `field` for what is no instant or lies outside the range.
    """
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError as exc:
        raise InvalidInput(
            f"{text[:40]!r} is not a time", hint="Write it as 2026-12-01T00:00Z", field=field
        ) from exc
    return require_instant(at, field)


def require_instant(at: datetime, field: str) -> datetime:
    """Return `at` in UTC (naive: it is UTC). Raises InvalidInput naming `field` outside the range."""
    aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    # The year as written first: those at the edges of the calendar cannot be turned into UTC.
    if FIRST_YEAR <= aware.year <= LAST_YEAR:
        aware = aware.astimezone(UTC)
        if FIRST_YEAR <= aware.year <= LAST_YEAR:
            return aware
    raise InvalidInput(f"{at.isoformat()} is out of range", hint=_RANGE, field=field)


def day_of(text: str, field: str) -> date:
    """Return the day written in `text` as 2026-11-30. Raises InvalidInput naming `field`."""
    try:
        day = date.fromisoformat(text.strip())
    except ValueError as exc:
        raise InvalidInput(
            f"{text[:40]!r} is not a day", hint="Write it as 2026-11-30", field=field
        ) from exc
    return require_day(day, field)


def require_day(day: date, field: str) -> date:
    """Return `day`. Raises InvalidInput naming `field` outside the range."""
    if not FIRST_YEAR <= day.year <= LAST_YEAR:
        raise InvalidInput(f"{day.isoformat()} is out of range", hint=_RANGE, field=field)
    return day
