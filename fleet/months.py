"""Calendar months in a declared time zone, as half-open spans of UTC instants.

A month is named "YYYY-MM". Prevents: "30 days" called a month, and a month that is an hour off for half
the year because its zone's offset was taken once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from fleet.errors import InvalidInput
from fleet.instants import LAST_YEAR

_NAME = re.compile(r"(?P<year>[0-9]{4})-(?P<month>0[1-9]|1[0-2])")
QUARTER = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class Month:
    """One calendar month: instants from `start` up to, not including, `end`."""

    name: str
    zone: str
    start: datetime  # UTC
    end: datetime  # UTC

    def is_over(self, now: datetime) -> bool:
        """Say whether no more use can fall into it."""
        return now >= self.end


def month_of(name: str, zone: ZoneInfo) -> Month:
    """Return the month called `name` ("2026-11"). Raises InvalidInput for anything else."""
    found = _NAME.fullmatch(name)
    if found is None or not 1970 <= int(found["year"]) <= LAST_YEAR:
        raise InvalidInput(f"{name[:40]!r} is not a month", hint="Write it as 2026-11", field="month")
    year, month = int(found["year"]), int(found["month"])
    following = (year + month // 12, month % 12 + 1)
    return Month(name, zone.key, _midnight(year, month, zone), _midnight(*following, zone))


def month_at(now: datetime, zone: ZoneInfo) -> Month:
    """Return the month that `now` (timezone-aware) falls into, as seen in `zone`."""
    return month_of(now.astimezone(zone).strftime("%Y-%m"), zone)


def quarter_of(at: datetime) -> datetime:
    """Return the start of the quarter-hour that `at` (timezone-aware) falls into, in UTC."""
    at = at.astimezone(UTC)
    return at.replace(minute=at.minute - at.minute % 15, second=0, microsecond=0)


def _midnight(year: int, month: int, zone: ZoneInfo) -> datetime:
    return datetime(year, month, 1, tzinfo=zone).astimezone(UTC)
