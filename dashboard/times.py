"""Every time and age a page shows, in one zone at a time. Nothing else formats a datetime.

Instants are timezone-aware; ages are seconds. A chart's axis and a table's column are made here too, so
that both read the same clock. Prevents: one instant shown as 03:00 in a table and 22:00 on an axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

UNKNOWN = "\u2014"


@dataclass(frozen=True, slots=True)
class Zone:
    """The zone times are shown in. `name` is printed beside them."""

    name: str
    tz: tzinfo

    def clock(self, at: datetime | None) -> str:
        """Return "15:02:11 UTC"."""
        return UNKNOWN if at is None else f"{at.astimezone(self.tz):%H:%M:%S} {self.name}"

    def stamp(self, at: datetime | None) -> str:
        """Return "2026-11-29 15:02:11 UTC"."""
        return UNKNOWN if at is None else f"{at.astimezone(self.tz):%Y-%m-%d %H:%M:%S} {self.name}"

    def axis(self, at: datetime) -> str:
        """Return the instant as a chart's axis takes it: wall time of this zone, without an offset."""
        return f"{at.astimezone(self.tz):%Y-%m-%d %H:%M:%S}"

    def since(self, at: datetime | None, now: datetime) -> str:
        """Return relative and absolute time together: "3 min ago, 15:02:11 UTC"."""
        if at is None:
            return "never"
        return f"{age((now - at).total_seconds())} ago, {self.clock(at)}"


UTC_ZONE = Zone("UTC", UTC)


def zone_of(choice: str, browser_timezone: str | None) -> Zone:
    """Return the zone to show: UTC, or the browser's if "local" is chosen and it named one we know."""
    if choice != "local" or not browser_timezone:
        return UTC_ZONE
    try:
        return Zone(browser_timezone, ZoneInfo(browser_timezone))
    except (ValueError, OSError, KeyError):  # a name this machine has no data for
        return UTC_ZONE


def age(seconds: float | None) -> str:
    """Return "43 s", "3 min", "2.5 h", "4 d"; a dash where nobody knows."""
    if seconds is None:
        return UNKNOWN
    if seconds < 90:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 36 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} d"
