"""What comes too late for a closed month, as lines of the next one that closes.

A closed month is divided again, with the prices, slots and rule it was closed with, first with the use and
then with the node time known now; what differs from its lines and their earlier adjustments becomes
adjustment lines. Late use moves cost between tenants and idle and sums to 0; late node time adds its own
cost. Prevents: a closed month that changes, and late use or node time nobody pays for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal, InvalidOperation

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from control import audit, late_node_time, month_inputs
from control.closed_months import ClosedMonth, adjustment_lines, closed_month, closed_months, stored_lines
from control.month_inputs import Basics
from control.roles import Actor, Permission, require
from control.tables import MonthCloseRow, MonthCorrectionRow, UsageQuarterRow, UsageRecordRow
from fleet.errors import Conflict, InvalidInput
from fleet.spend import LATE_NODE_TIME, LATE_USE, SpendLine, late_kind

MAX_CORRECTION_USD = Decimal(1_000_000_000)
ZERO = Decimal(0)
Place = tuple[str, str, str, str, str]  # kind, tenant, tier, model, pool


@dataclass(frozen=True, slots=True)
class LateRecord:
    """A usage record that came after its month was closed."""

    gateway: str
    spool: str
    seq: int
    tenant: str
    finished_at: datetime
    received_at: datetime


@dataclass(frozen=True, slots=True)
class Pending:
    """What the next month to close will carry of closed ones."""

    lines: tuple[SpendLine, ...]  # by month adjusted
    unpriced_node_hours: Decimal  # late, and without a price: in no line yet
    carried: dict[str, Basics]  # by month whose late node time the lines account for: what it is now


def pending(session: Session) -> list[SpendLine]:
    """Return the adjustment lines that the next month to close will carry, by month adjusted."""
    return list(to_carry(session).lines)


def to_carry(session: Session) -> Pending:
    """Return what the next month to close carries: late use, late node time, corrections."""
    closed = closed_months(session)
    settled = adjustment_lines(session, [month.name for month in closed])
    lines: list[SpendLine] = []
    carried: dict[str, Basics] = {}
    unpriced = ZERO
    for month in reversed(closed):
        before = late_node_time.accounted(session, month)
        after = before
        if late_node_time.has_unaccounted(session, month.name, closed[0]):
            after = carried[month.name] = late_node_time.known_now(session, month, before)
        own = [line for line in settled if line.adjusts == month.name]
        found, left_out = _of_late(session, month, own, before, after)
        lines += found
        unpriced += left_out
    return Pending((*lines, *_of_corrections(session, settled)), unpriced, carried)


def late_lines(session: Session, name: str) -> list[SpendLine]:
    """Return by how much late node time changes closed month `name`, in the kinds of line it changes.

    Both what later months carry already and what the next one to close will.
    """
    found = [
        *adjustment_lines(session, [name]),
        *(line for line in pending(session) if line.adjusts == name),
    ]
    return [replace(line, kind=kind) for line in found if (kind := late_kind(line, LATE_NODE_TIME))]


def late_records(session: Session, name: str, *, limit: int = 1_000) -> list[LateRecord]:
    """Return usage records of closed month `name` that were not in it, by time received."""
    found = closed_month(session, name)
    if found is None:
        raise Conflict(f"{name} is not closed", hint="Use that comes before the close is in the month")
    marks = session.execute(
        select(MonthCloseRow.watermark).where(MonthCloseRow.month == name)
    ).scalar_one()["usage"]
    u = UsageRecordRow
    known = [and_(u.gateway == gw, u.spool == spool) for gw, spool, _ in marks]
    later = [and_(u.gateway == gw, u.spool == spool, u.seq > seq) for gw, spool, seq in marks]
    rows = session.scalars(
        select(u)
        .where(u.finished_at >= found.month.start, u.finished_at < found.month.end)
        .where(or_(*later, ~or_(*known)) if marks else u.seq >= 0)
        .order_by(u.received_at, u.gateway, u.spool, u.seq)
        .limit(limit)
    )
    return [LateRecord(r.gateway, r.spool, r.seq, r.tenant, r.finished_at, r.received_at) for r in rows]


def correct(
    session: Session,
    *,
    month: str,
    tenant: str,
    amount_usd: str | Decimal,
    reason: str,
    actor: Actor,
    now: datetime,
    tier: str = "",
    model: str = "",
    pool: str = "",
) -> int:
    """Correct closed `month` by an amount (negative: less) on the next month that closes; return its id.

    Joins the caller's transaction. Raises InvalidInput, Conflict if the month is not closed, Forbidden.
    """
    require(actor, Permission.CLOSE_MONTHS)
    amount, reason = _amount(amount_usd), reason.strip()
    if not 1 <= len(reason) <= 300 or not reason.isprintable():
        raise InvalidInput(
            "a correction needs a reason of 1 to 300 characters", hint="Say what was wrong", field="reason"
        )
    for field, value in (("tenant", tenant), ("tier", tier), ("model", model), ("pool", pool)):
        if len(value) > 200 or not (value.isprintable() or not value):
            raise InvalidInput(f"the {field} is not a name", hint="Use at most 200 characters", field=field)
    if closed_month(session, month) is None:
        raise Conflict(f"{month} is not closed", hint="Only closed months are corrected this way")
    row = MonthCorrectionRow(
        month=month,
        tenant=tenant,
        tier=tier,
        model=model,
        pool=pool,
        amount_usd=amount,
        reason=reason,
        created_by=actor.name,
        created_at=now,
    )
    session.add(row)
    session.flush()
    detail = {"correction": row.id, "tenant": tenant, "amount_usd": str(amount)}
    audit.append(session, actor, "month.correct", f"month {month}", reason, detail, now)
    return row.id


def _of_late(
    session: Session, closed: ClosedMonth, settled: list[SpendLine], before: Basics, after: Basics
) -> tuple[list[SpendLine], Decimal]:
    """Return the lines by which `closed` differs from what is known now, and late unpriced node-hours."""
    known = _accounted(stored_lines(session, closed.name), settled)
    has_late_use = _has_late_use(session, closed, known.values())
    if not has_late_use and after is before:
        return [], ZERO
    use = month_inputs.use(session, closed.month, before.rule)
    with_use = known
    if has_late_use:
        with_use = _sums(before.spend(closed.month, use, is_estimated=False).lines)
    lines = _changes(known, with_use, closed.name, LATE_USE)
    if after is before:
        return lines, ZERO
    spend = after.spend(closed.month, use, is_estimated=False)
    lines += _changes(with_use, _sums(spend.lines), closed.name, LATE_NODE_TIME)
    return lines, spend.unpriced_node_hours


def _sums(lines: Iterable[SpendLine]) -> dict[Place, _Sum]:
    return {_place(line): _Sum.of(line) for line in lines}


def _changes(
    before: dict[Place, _Sum], after: dict[Place, _Sum], month: str, cause: str
) -> list[SpendLine]:
    lines: list[SpendLine] = []
    for place in sorted(before.keys() | after.keys()):
        change = after.get(place, _Sum()).minus(before.get(place, _Sum()))
        if change != _Sum():
            lines.append(change.as_line(place, month, cause))
    return lines


def _has_late_use(session: Session, closed: ClosedMonth, known: Iterable[_Sum]) -> bool:
    """Say whether the month's use is other than what its lines and their adjustments count."""
    q = UsageQuarterRow
    counted = session.scalar(
        select(func.coalesce(func.sum(q.requests), 0)).where(
            q.quarter >= closed.month.start, q.quarter < closed.month.end
        )
    )
    return counted != sum(each.requests for each in known)


def _of_corrections(session: Session, settled: list[SpendLine]) -> list[SpendLine]:
    done = {line.note.split(":", 1)[0] for line in settled}
    rows = session.scalars(select(MonthCorrectionRow).order_by(MonthCorrectionRow.id))
    return [
        SpendLine(
            "adjustment",
            r.tenant,
            r.tier,
            r.model,
            r.pool,
            0,
            0,
            0,
            ZERO,
            ZERO,
            r.amount_usd,
            adjusts=r.month,
            note=f"correction {r.id}: {r.reason}",
        )
        for r in rows
        if f"correction {r.id}" not in done
    ]


@dataclass(frozen=True, slots=True)
class _Sum:
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    engine_s: Decimal = ZERO
    node_hours: Decimal = ZERO
    amount_usd: Decimal = Decimal("0.00")

    @staticmethod
    def of(line: SpendLine) -> _Sum:
        return _Sum(
            line.requests,
            line.prompt_tokens,
            line.output_tokens,
            line.engine_s,
            line.node_hours,
            line.amount_usd,
        )

    def plus(self, other: _Sum, sign: int = 1) -> _Sum:
        return _Sum(
            self.requests + sign * other.requests,
            self.prompt_tokens + sign * other.prompt_tokens,
            self.output_tokens + sign * other.output_tokens,
            self.engine_s + sign * other.engine_s,
            self.node_hours + sign * other.node_hours,
            self.amount_usd + sign * other.amount_usd,
        )

    def minus(self, other: _Sum) -> _Sum:
        """Return the difference; of node-hours as both stand to 6 places.

        Levels are rounded, not their difference: changes carried one after the other then add up to the
        last level, and none is left over to be carried again.
        """
        return replace(
            self.plus(other, -1), node_hours=round(self.node_hours, 6) - round(other.node_hours, 6)
        )

    def as_line(self, place: Place, adjusts: str, cause: str) -> SpendLine:
        kind, tenant, tier, model, pool = place
        return SpendLine(
            "adjustment",
            tenant,
            tier,
            model,
            pool,
            self.requests,
            self.prompt_tokens,
            self.output_tokens,
            self.engine_s,
            self.node_hours,
            self.amount_usd,
            adjusts=adjusts,
            note=cause + kind,
        )


def _accounted(stored: Iterable[SpendLine], settled: Iterable[SpendLine]) -> dict[Place, _Sum]:
    """Return what the closed month's own lines and their adjustments by what came late add up to."""
    sums: dict[Place, _Sum] = defaultdict(_Sum)
    for line in stored:
        if line.kind != "adjustment":
            sums[_place(line)] = sums[_place(line)].plus(_Sum.of(line))
    for line in settled:
        if kind := late_kind(line):
            place = (kind, line.tenant, line.tier, line.model, line.pool)
            sums[place] = sums[place].plus(_Sum.of(line))
    return sums


def _place(line: SpendLine) -> Place:
    return (line.kind, line.tenant, line.tier, line.model, line.pool)


def _amount(value: str | Decimal) -> Decimal:
    try:
        amount = Decimal(value)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or not 0 < abs(amount) <= MAX_CORRECTION_USD or amount != round(amount, 2):
        raise InvalidInput(
            f"{str(value)[:40]!r} is not an amount of a correction",
            hint="Give USD other than 0 with at most 2 decimals, negative for less",
            field="amount_usd",
        )
    return round(amount, 2)
