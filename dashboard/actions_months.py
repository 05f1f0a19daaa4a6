"""What the month-close page changes: begin to close, take back, close for good, correct.

Prevents: a month closed by a page with other rules than the command line's.
"""

from __future__ import annotations

from control import adjustments, month_close
from control.closed_months import ClosedMonth
from dashboard.actions import change
from dashboard.deps import deps


def start_closing(month: str) -> None:
    """Put a month into the state closing."""
    zone = deps().zone
    change(lambda s, actor, now: month_close.start_closing(s, month, zone=zone, actor=actor, now=now))


def stop_closing(month: str) -> None:
    """Take a month back from closing to open."""
    change(lambda s, actor, now: month_close.stop_closing(s, month, actor=actor, now=now))


def close_month(month: str, *, accept: bool, note: str) -> ClosedMonth:
    """Close a month for good."""
    of = deps()
    return change(
        lambda s, actor, now: month_close.close_month(
            s,
            month,
            zone=of.zone,
            actor=actor,
            now=now,
            key_file=of.settings.finance_key,
            accept=accept,
            note=note,
        )
    )


def correct(month: str, *, tenant: str, amount_usd: str, reason: str) -> int:
    """Correct a closed month on the next one that closes."""
    return change(
        lambda s, actor, now: adjustments.correct(
            s, month=month, tenant=tenant, amount_usd=amount_usd, reason=reason, actor=actor, now=now
        )
    )
