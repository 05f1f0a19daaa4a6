"""What finance declares: how cost is divided from a month on, and what is paid whether used or not.

USD as `Decimal`. Neither touches a closed month. Prevents: a rule without a reason, and a commitment
entered afterwards that changes what was closed.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import cast, get_args
from zoneinfo import ZoneInfo

from sqlalchemy.orm import Session

from control import audit
from control.book_locks import hold_books
from control.closed_months import closed_months
from control.prices import MAX_USD_PER_NODE_HOUR
from control.roles import Actor, Permission, require
from control.tables import AllocationRuleRow, CommitmentRow, PoolRow
from fleet.allocation import Basis, Rule, Share
from fleet.errors import Conflict, InvalidInput
from fleet.instants import require_instant
from fleet.months import month_of

BASES: tuple[str, ...] = get_args(Basis)
SHARES: tuple[str, ...] = get_args(Share)
MAX_WEIGHT = Decimal(1_000)
MAX_NODES = 100_000
MAX_UPFRONT_USD = Decimal(10_000_000_000)


def set_rule(
    session: Session,
    *,
    from_month: str,
    basis: str,
    share: str,
    output_weight: str | Decimal,
    reason: str,
    zone: ZoneInfo,
    actor: Actor,
    now: datetime,
) -> Rule:
    """Divide cost by this rule from `from_month` on. Joins the caller's transaction.

    Raises InvalidInput for what is no rule, Conflict if that month is closed, Forbidden.
    """
    require(actor, Permission.SET_PRICES)
    _one_of("basis", basis, BASES)
    _one_of("share", share, SHARES)
    weight = _amount("output_weight", output_weight, MAX_WEIGHT)
    if not weight:
        raise InvalidInput("an output token counts 0", hint="Give more than 0", field="output_weight")
    reason = _source("reason", reason)
    month = month_of(from_month, zone)
    _require_open(session, "allocation_rule", month.start, f"{from_month} is closed")
    rule = Rule(cast("Basis", basis), cast("Share", share), weight)
    session.add(
        AllocationRuleRow(
            from_month=from_month,
            basis=basis,
            share=share,
            output_weight=weight,
            reason=reason,
            created_by=actor.name,
            created_at=now,
        )
    )
    audit.append(
        session, actor, "allocation.rule", f"from {from_month}", reason, {"method": rule.method}, now
    )
    return rule


def add_commitment(
    session: Session,
    *,
    usd_per_hour: str | Decimal,
    starts_at: datetime,
    ends_at: datetime,
    source: str,
    actor: Actor,
    now: datetime,
    pool: str | None = None,
    nodes: int = 1,
    upfront_usd: str | Decimal = "0",
) -> None:
    """Enter `nodes` committed nodes of a pool, or (no pool) the platform's own cost, from start to end.

    Joins the caller's transaction. Raises InvalidInput, Conflict if it would begin in a closed month,
    Forbidden.
    """
    require(actor, Permission.SET_PRICES)
    if pool is not None and session.get(PoolRow, pool) is None:
        raise InvalidInput(f"there is no pool {pool[:80]}", hint="See `rhodeck pools list`", field="pool")
    if not 1 <= nodes <= MAX_NODES or (pool is None and nodes != 1):
        raise InvalidInput(
            f"{nodes} nodes", hint=f"Give 1 to {MAX_NODES:,}, and 1 for the platform", field="nodes"
        )
    starts_at = require_instant(starts_at, "starts_at")
    ends_at = require_instant(ends_at, "ends_at")
    if ends_at <= starts_at:
        raise InvalidInput("the term ends before it begins", hint="Let it end later", field="ends_at")
    _require_open(session, "commitment", starts_at, f"{starts_at:%Y-%m-%d} lies in a closed month")
    hourly = _amount("usd_per_hour", usd_per_hour, MAX_USD_PER_NODE_HOUR)
    upfront = _amount("upfront_usd", upfront_usd, MAX_UPFRONT_USD)
    source = _source("source", source)
    session.add(
        CommitmentRow(
            kind="platform" if pool is None else "nodes",
            pool=pool,
            nodes=nodes,
            usd_per_hour=hourly,
            upfront_usd=upfront,
            starts_at=starts_at,
            ends_at=ends_at,
            source=source,
            created_by=actor.name,
            created_at=now,
        )
    )
    detail = {"nodes": nodes, "usd_per_hour": str(hourly), "upfront_usd": str(upfront), "source": source}
    audit.append(session, actor, "commitment.add", pool or "platform", "", detail, now)


def _require_open(session: Session, table: str, start: datetime, said: str) -> None:
    """Refuse what begins in a closed month. No month closes before what goes into `table` is committed."""
    hold_books(session, (table,), "ROW EXCLUSIVE", "nothing was entered")
    closed = closed_months(session)
    if closed and start < closed[0].month.end:
        raise Conflict(said, hint=f"Begin at {closed[0].month.end.isoformat()} or later")


def _one_of(field: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InvalidInput(
            f"{value[:40]!r} is no {field}", hint=f"Use one of {', '.join(known)}", field=field
        )


def _amount(field: str, value: str | Decimal, most: Decimal) -> Decimal:
    try:
        amount = Decimal(value)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or not 0 <= amount <= most or amount != round(amount, 6):
        raise InvalidInput(
            f"{str(value)[:40]!r} is no {field}",
            hint=f"Give a number from 0 to {most:,}, at most 6 decimals",
            field=field,
        )
    return amount


def _source(field: str, text: str) -> str:
    text = text.strip()
    if not 1 <= len(text) <= 300:
        raise InvalidInput(f"a {field} of 1 to 300 characters is needed", hint="Name it", field=field)
    return text
