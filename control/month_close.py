"""Closes months: open, closing, closed; whole in one transaction, signed, and never changed again.

While a month is written, everything it is made of lets nobody write and is read once: what was committed
before is in the month, what comes after is late. Prevents: a record that is in no month or in
two, and a close that a crash leaves half done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from control import audit, late_node_time
from control.book_locks import hold_books
from control.closed_months import (
    ClosedMonth,
    closed_month,
    closed_months,
    require_zone,
    stored_body,
    stored_spend,
)
from control.exports import is_file_of, spend_csv
from control.month_checks import Check, checklist
from control.month_keys import check_signature, signing_key
from control.month_seal import VERSION, key_id, sealed
from control.queries_spend import OpenMonth, first_observed, months_with_data, open_month
from control.roles import Actor, Permission, require
from control.tables import MonthCloseRow, MonthClosingRow, MonthLineRow, UsageCursorRow
from fleet.errors import Conflict, InvalidInput
from fleet.months import Month
from fleet.spend import MonthSpend, MonthState, SpendLine

#: In the order in which writers of usage take them, so that nobody waits in a circle.
LOCKED = (
    "usage_record",
    "usage_quarter",
    "usage_cursor",
    "node_quarter",
    "price",
    "month_correction",
    "commitment",
    "allocation_rule",
    "pool",
    "month_close",
)
_ONE_INSERT = 1_000


@dataclass(frozen=True, slots=True)
class MonthView:
    """A month in the list. Of an open one nothing is computed."""

    name: str
    state: MonthState
    is_current: bool
    closed: ClosedMonth | None

    def as_dict(self) -> dict[str, object]:
        """Return it for JSON; amounts as text."""
        said: dict[str, object] = {"month": self.name, "state": self.state}
        closed = self.closed
        if closed is not None:
            said |= {
                "time_zone": closed.month.zone,
                "method": closed.method,
                "total_usd": f"{closed.total_usd:.2f}",
                "rows": closed.rows,
                "sha256": closed.sha256,
                "signature": closed.signature,
                "key_id": closed.key_id,
                "closed_at": closed.closed_at.astimezone(UTC).isoformat(),
                "closed_by": closed.closed_by,
            }
        return said


@dataclass(frozen=True, slots=True)
class Verified:
    """What a closed month was checked for."""

    month: str
    sha256: str
    is_file_whole: bool  # the kept bytes have the checksum
    are_lines_whole: bool  # the kept lines are those of the file, and sum to the total
    is_signed: bool | None  # None: no key to check the signature with
    signature_by: str  # what told, or why nothing could
    seal_version: int  # what the signature is about: `control/month_seal.py`

    @property
    def holds(self) -> bool:
        """Say whether everything that could be checked holds."""
        return self.is_file_whole and self.are_lines_whole and self.is_signed is not False


def months(session: Session, *, zone: ZoneInfo, now: datetime) -> list[MonthView]:
    """Return the months since the first observed node time, newest first, each with its state."""
    require_zone(session, zone)
    closed = {found.name: found for found in closed_months(session)}
    closing = set(session.scalars(select(MonthClosingRow.month)))
    found: list[MonthView] = []
    for each in months_with_data(session, zone=zone, now=now):
        state: MonthState = "closing" if each.name in closing else "open"
        if each.name in closed:
            state = "closed"
        found.append(MonthView(each.name, state, each.is_current, closed.get(each.name)))
    return found


def start_closing(
    session: Session, name: str, *, zone: ZoneInfo, actor: Actor, now: datetime
) -> tuple[Check, ...]:
    """Put a month into the state closing and return its checklist. Again: only the checklist.

    Joins the caller's transaction. Raises Conflict for a month that is closed or not recorded; Forbidden.
    """
    require(actor, Permission.CLOSE_MONTHS)
    spend = _closable(session, name, zone, now).spend
    if session.get(MonthClosingRow, name) is None:
        session.add(MonthClosingRow(month=name, started_at=now, started_by=actor.name))
        audit.append(session, actor, "month.closing", f"month {name}", "", {}, now)
    return checklist(session, spend, zone, now)


def stop_closing(session: Session, name: str, *, actor: Actor, now: datetime) -> None:
    """Take a month back from closing to open. Raises Conflict if it is not closing; Forbidden."""
    require(actor, Permission.CLOSE_MONTHS)
    row = session.get(MonthClosingRow, name)
    if row is None:
        raise Conflict(f"{name[:20]} is not closing", hint="See `rhodeck months list`")
    session.delete(row)
    audit.append(session, actor, "month.reopen", f"month {name}", "", {}, now)


def close_month(
    session: Session,
    name: str,
    *,
    zone: ZoneInfo,
    actor: Actor,
    now: datetime,
    key_file: Path,
    accept: bool = False,
    note: str = "",
) -> ClosedMonth:
    """Close a month that is closing, for good. `accept` waives checks that do not block.

    Joins the caller's transaction, best one that read nothing yet. Raises Conflict when a check fails
    (naming all), the month is not closing or others hold the books; Forbidden; Unavailable without the key
    that signed the months before.
    """
    require(actor, Permission.CLOSE_MONTHS)
    if len(note) > 300:
        raise InvalidInput("the note is longer than 300 characters", hint="Shorten it", field="note")
    hold_books(session, LOCKED, "SHARE ROW EXCLUSIVE", "the month was not closed")
    found = _closable(session, name, zone, now)
    spend = found.spend
    if spend.state != "closing":
        raise Conflict(
            f"{name} is {spend.state}", hint="Begin with `rhodeck months close`; see its checklist"
        )
    checks = checklist(session, spend, zone, now)
    _require_met(name, checks, accept=accept)
    basis = found.basics.as_json()
    basis[late_node_time.CARRIED] = {month: base.as_json() for month, base in found.carried.items()}
    whole = replace(spend, state="closed", is_estimated=False)
    _write(session, whole, checks, basis, signing_key(session, key_file), actor, now, note)
    detail = {"total_usd": str(spend.total_usd), "accepted": [c.name for c in checks if not c.is_met]}
    audit.append(session, actor, "month.close", f"month {name}", note, detail, now)
    closed = closed_month(session, name)
    if closed is None:  # it was written above
        raise Conflict(f"{name} was not closed", hint="Try again", retryable=True)
    return closed


def verify(session: Session, name: str, *, key_file: Path | None) -> Verified:
    """Check a closed month's file, lines and signature. Raises Conflict if it is open, Unavailable."""
    found = closed_month(session, name)
    if found is None:
        raise Conflict(f"{name[:20]} is not closed", hint="See `rhodeck months list`")
    body, spend = stored_body(session, name), stored_spend(session, found)
    sha256 = hashlib.sha256(body).hexdigest()
    signed = check_signature(session, name, key_file)
    return Verified(
        month=name,
        sha256=sha256,
        is_file_whole=sha256 == found.sha256,
        are_lines_whole=is_file_of(spend, body)
        and len(spend.lines) == found.rows
        and sum((line.amount_usd for line in spend.lines), Decimal(0)) == found.total_usd
        and sum((line.amount_usd for line in spend.lines if line.kind == "idle"), Decimal(0))
        == found.idle_usd,
        is_signed=signed.holds,
        signature_by=signed.by,
        seal_version=found.seal_version,
    )


def _closable(session: Session, name: str, zone: ZoneInfo, now: datetime) -> OpenMonth:
    require_zone(session, zone)
    if closed_month(session, name) is not None:
        raise Conflict(f"{name} is closed", hint="What comes late is adjusted in the next month")
    found = open_month(session, name, zone=zone, now=now)
    if found.spend.state == "not recorded" or first_observed(session) is None:
        raise Conflict(
            f"{name} is not recorded: no node was observed up by its end",
            hint="Months begin to count when the first node answers",
        )
    return found


def _require_met(name: str, checks: Sequence[Check], *, accept: bool) -> None:
    failed = [check for check in checks if not check.is_met and (check.is_blocking or not accept)]
    if not failed:
        return
    said = "; ".join(f"{check.name}: {check.found}" for check in failed)
    hint = (
        "Accept what does not block, or put it right"
        if not any(c.is_blocking for c in failed)
        else ("Put it right, then close")
    )
    raise Conflict(f"{name} cannot close: {said}", hint=hint)


def _write(
    session: Session,
    spend: MonthSpend,
    checks: Sequence[Check],
    basis: dict[str, Any],
    key: bytes,
    actor: Actor,
    now: datetime,
    note: str,
) -> None:
    export = spend_csv(spend, now)
    month = spend.month
    closed = closed_months(session)
    row = MonthCloseRow(
        month=month.name,
        number=closed[0].number + 1 if closed else 1,
        zone=month.zone,
        starts_at=month.start,
        ends_at=month.end,
        method=spend.method,
        rows=export.rows,
        total_usd=spend.total_usd,
        idle_usd=spend.idle_usd,
        node_hours=round(spend.node_hours, 6),  # as it is kept, and signed
        sha256=export.sha256,
        signature="",
        key_id=key_id(key),
        body=export.body,
        basis=basis,
        watermark={
            "usage": _cursors(session),
            late_node_time.CARRIED: late_node_time.newest_change(session),
        },
        checklist={c.name: {"met": c.is_met, "blocking": c.is_blocking, "found": c.found} for c in checks},
        closed_at=now,
        closed_by=actor.name,
        note=note,
        seal_version=VERSION,
    )
    row.signature = sealed(row, closed[0].signature if closed else "").signed_by(key)
    session.add(row)
    session.flush()
    values = [_values(month, number, line) for number, line in enumerate(spend.lines, start=1)]
    for start in range(0, len(values), _ONE_INSERT):
        session.execute(insert(MonthLineRow), values[start : start + _ONE_INSERT])
    session.execute(delete(MonthClosingRow).where(MonthClosingRow.month == month.name))


def _values(month: Month, number: int, line: SpendLine) -> dict[str, Any]:
    fields = {name: getattr(line, name) for name in SpendLine.__slots__}
    return {"month": month.name, "number": number} | fields


def _cursors(session: Session) -> list[list[Any]]:
    c = UsageCursorRow
    rows = session.execute(select(c.gateway, c.spool, c.seq).order_by(c.gateway, c.spool))
    return [[gateway, spool, seq] for gateway, spool, seq in rows]
