"""A month's file in the format and layout asked for, from the books or from what was closed.

One transaction of one snapshot reads everything. Prevents: an XLSX of a closed month that says something
else than the bytes that were signed.
"""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from sqlalchemy.orm import Session

from control.closed_months import stored_body
from control.exports import Export, Format, Layout, month_export
from control.queries_spend import month_spend
from control.settings import Settings
from fleet.focus import Issuer


def month_in(
    session: Session,
    name: str,
    fmt: Format,
    layout: Layout,
    *,
    zone: ZoneInfo,
    now: datetime,
    issuer: Issuer | None = None,
) -> Export:
    """Return month `name` as a file. Raises as `month_spend` and `month_export` do."""
    spend = month_spend(session, name, zone=zone, now=now)
    body = stored_body(session, name) if spend.state == "closed" else None
    return month_export(spend, fmt, layout, now=now, issuer=issuer, canonical=body)


def issuer_of(settings: Settings) -> Issuer:
    """Return who charges whom in FOCUS files, from the settings."""
    return Issuer(
        settings.finance_account,
        settings.finance_account,
        settings.finance_provider,
        settings.finance_host or settings.finance_provider,
    )
