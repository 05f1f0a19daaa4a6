"""What strangers may read about a database that is away: that it is, and since when. Instants, UTC.

Owns when the database answered this process last. The address and the driver's words go to the log alone.
Prevents: a socket's path or a server's name on a page that anybody can open, and an error without its age.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from datetime import datetime

from fleet.errors import FleetError, Unavailable

log = logging.getLogger(__name__)

#: The setting that errors about reaching the database point at.
DATABASE_FIELD = "DATABASE_URL"
HINT = (
    "Gateways keep admitting by their last good policy. Look whether Postgres runs and has room on disk, "
    "and whether DATABASE_URL is right; this dashboard's log holds the details"
)


@dataclass(slots=True)
class Outage:
    """When the database answered last, and when it was first seen not to. Safe from every thread."""

    answered_at: datetime | None = None
    noticed_at: datetime | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answered(self, now: datetime) -> None:
        """Note that the database answered."""
        with self._lock:
            self.answered_at, self.noticed_at = now, None

    def failed(self, now: datetime, why: FleetError) -> None:
        """Note that it did not; the first time, the log says why, with the details."""
        with self._lock:
            is_first = self.noticed_at is None
            self.noticed_at = self.noticed_at or now
        if is_first:
            log.warning("the database is away", extra={"reason": why.message})

    def words(self) -> str:
        """Return that it does not answer, when that was noticed, and when its last answer was."""
        said = "the database does not answer"
        if self.noticed_at is not None:
            said += f", noticed at {self.noticed_at:%H:%M:%S} UTC"
        if self.answered_at is not None:
            said += f"; its last answer was at {self.answered_at:%H:%M:%S} UTC"
        return said


#: The one of this process.
SEEN = Outage()


def public(exc: FleetError, seen: Outage = SEEN) -> FleetError:
    """Return `exc` as anybody may read it: of a database that is away, without its address."""
    if not isinstance(exc, Unavailable) or exc.field != DATABASE_FIELD:
        return exc
    return Unavailable(seen.words(), hint=HINT)
