"""This month's spend by tenant as reconciling asks for it: added up now and then, not every second.

Amounts are USD of the finance zone's month. Prevents: a controller that adds up a month's use once a
second, and last month's spend held against this month's budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

from sqlalchemy.orm import Session

from control.queries_spend import spend_by_tenant
from fleet.months import month_at

#: Use reaches the books every five seconds at best; a budget that is spent is acted on this much later.
KEPT = timedelta(seconds=10)


class SpendToDate:
    """Callable in the place of `spend_by_tenant`. Not for use by two threads at once."""

    def __init__(self, zone: ZoneInfo) -> None:
        self._zone = zone
        self._at: datetime | None = None
        self._spend: Mapping[str, Decimal] = {}

    def __call__(self, session: Session, now: datetime) -> Mapping[str, Decimal]:
        """Return the spend of the month of `now` by tenant, at most `KEPT` old."""
        at = self._at
        is_kept = at is not None and timedelta(0) <= now - at < KEPT
        if not is_kept or at is None or month_at(at, self._zone) != month_at(now, self._zone):
            self._spend = spend_by_tenant(session, now, zone=self._zone)
            self._at = now
        return self._spend
