"""What the month-close page changes: begin to close, take back, close for good, correct.

Prevents: a month closed by a page with other rules than the command line's.
"""

from __future__ import annotations

from datetime import date

from control import adjustments, allocation_rules, month_close
from control.closed_months import ClosedMonth
from dashboard.actions import change
from dashboard.deps import deps
from dashboard.viewmodels_spend import start_of
from fleet.errors import InvalidInput


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


def set_rule(from_month: str, *, basis: str, share: str, output_weight: str, reason: str) -> None:
    """Divide cost by this rule from a month on."""
    zone = deps().zone
    change(
        lambda s, actor, now: allocation_rules.set_rule(
            s,
            from_month=from_month,
            basis=basis,
            share=share,
            output_weight=output_weight,
            reason=reason,
            zone=zone,
            actor=actor,
            now=now,
        )
    )


def add_commitment(
    pool: str | None,
    *,
    nodes: int,
    usd_per_hour: str,
    upfront_usd: str,
    first: date | None,
    last: date | None,
    source: str,
) -> None:
    """Enter nodes that are paid whether used or not, or (no pool) the platform's own cost."""
    starts_at, ends_at = start_of(first), start_of(last)
    if starts_at is None or ends_at is None:
        raise InvalidInput("a commitment has a first and a last day", hint="Choose both", field="starts_at")
    change(
        lambda s, actor, now: allocation_rules.add_commitment(
            s,
            pool=pool,
            nodes=nodes,
            usd_per_hour=usd_per_hour,
            upfront_usd=upfront_usd,
            starts_at=starts_at,
            ends_at=ends_at,
            source=source,
            actor=actor,
            now=now,
        )
    )
