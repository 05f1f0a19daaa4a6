"""Prices of node-hours, dated: add one, find the one in force. The past keeps its price.

USD per node-hour as `Decimal`. A price of a pool comes before one for all pools. Prevents: a price edit
that rewrites last month, and a node without a price counted as free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation

from sqlalchemy import select
from sqlalchemy.orm import Session

from control import audit
from control.book_locks import hold_books
from control.roles import Actor, Permission, require
from control.tables import PoolRow, PriceRow
from fleet.errors import InvalidInput
from fleet.instants import require_instant
from fleet.messages import PRICE_CLASSES

MAX_USD_PER_NODE_HOUR = Decimal(100_000)


@dataclass(frozen=True, slots=True)
class Price:
    """What a node-hour costs from `effective_from` on; `pool` None means every pool without its own."""

    price_class: str
    pool: str | None
    usd_per_node_hour: Decimal
    effective_from: datetime
    source: str
    created_by: str
    created_at: datetime


def prices(session: Session) -> list[Price]:
    """Every price ever set, newest first."""
    p = PriceRow
    rows = session.scalars(select(p).order_by(p.effective_from.desc(), p.id.desc()))
    return [
        Price(
            r.price_class,
            r.pool,
            r.usd_per_node_hour,
            r.effective_from,
            r.source,
            r.created_by,
            r.created_at,
        )
        for r in rows
    ]


def in_force(known: Sequence[Price], price_class: str, pool: str, at: datetime) -> Decimal | None:
    """Return USD per node-hour at `at`, or None. `known` is newest first, as `prices` gives it."""
    for wanted in (pool, None):
        for price in known:
            if price.price_class == price_class and price.pool == wanted and price.effective_from <= at:
                return price.usd_per_node_hour
    return None


def add_price(
    session: Session,
    *,
    price_class: str,
    usd_per_node_hour: str | Decimal,
    effective_from: datetime,
    source: str,
    actor: Actor,
    now: datetime,
    pool: str | None = None,
) -> None:
    """Set a price from `effective_from` on. Joins the caller's transaction.

    A price may begin in the past only where none was in force. Raises InvalidInput for a price that is no
    amount, would change what was spent, or has no source; Conflict if others hold the books; Forbidden.
    """
    require(actor, Permission.SET_PRICES)
    if price_class not in PRICE_CLASSES:
        raise InvalidInput(
            f"{price_class!r} is not a price class",
            hint=f"Use one of {', '.join(PRICE_CLASSES)}",
            field="price_class",
        )
    effective_from = require_instant(effective_from, "effective_from")
    amount = _amount(usd_per_node_hour)
    source = source.strip()
    if not source or len(source) > 300:
        raise InvalidInput(
            "a price needs a source of 1 to 300 characters",
            hint="Name the contract or page and its date",
            field="source",
        )
    if pool is not None and session.get(PoolRow, pool) is None:
        raise InvalidInput(f"there is no pool {pool}", hint="See `rhodeck pools list`", field="pool")
    hold_books(session, ("price",), "SHARE ROW EXCLUSIVE", "no price was added")
    if effective_from < now and _would_change_the_past(session, price_class, pool, effective_from, now):
        raise InvalidInput(
            f"{effective_from.isoformat()} is in the past: a new price never changes what was spent",
            hint="Let it take effect now or later; only time that had no price can get one afterwards",
            field="effective_from",
        )
    session.add(
        PriceRow(
            price_class=price_class,
            pool=pool,
            usd_per_node_hour=amount,
            effective_from=effective_from,
            source=source,
            created_by=actor.name,
            created_at=now,
        )
    )
    detail = {
        "usd_per_node_hour": str(amount),
        "effective_from": effective_from.isoformat(),
        "source": source,
    }
    audit.append(session, actor, "price.add", f"{price_class} {pool or 'all pools'}", "", detail, now)


def _would_change_the_past(
    session: Session, price_class: str, pool: str | None, start: datetime, now: datetime
) -> bool:
    """Say whether a price from `start` on would stand where another was in force.

    It would hold up to the next price of its own pool. A pool's price also covers one for all pools.
    """
    p = PriceRow
    known = session.execute(select(p.pool, p.effective_from).where(p.price_class == price_class)).all()
    own = [at for owner, at in known if owner == pool]
    shared = [at for owner, at in known if owner is None]
    end = min((at for at in own if at > start), default=now)
    return any(at <= start for at in own) or (pool is not None and any(at < min(end, now) for at in shared))


def _amount(value: str | Decimal) -> Decimal:
    try:
        amount = Decimal(value)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or not 0 <= amount <= MAX_USD_PER_NODE_HOUR or amount != round(amount, 6):
        raise InvalidInput(
            f"{str(value)[:40]!r} is not a price",
            hint=f"Give USD per node-hour from 0 to {MAX_USD_PER_NODE_HOUR:,}, at most 6 decimals",
            field="usd_per_node_hour",
        )
    return amount
