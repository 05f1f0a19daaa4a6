"""Imports providers' invoices: whole or refused, once by content, replaced on the record.

Amounts stay in the invoice's currency beside the rate that makes them USD. A month's newest import of a
provider counts; the ones before stay in the books. Prevents: an invoice counted twice, and one that was
swapped for another unseen.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import func, insert, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from control import audit
from control.invoice_files import InvoiceFile
from control.roles import Actor, Permission, require
from control.tables import InvoiceLineRow, InvoiceMappingRow, InvoiceRow
from fleet.errors import Conflict, InvalidInput, NotFound
from fleet.invoice_columns import FileMapping, checked_classes
from fleet.months import month_of

PROVIDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
CURRENCY = re.compile(r"[A-Z]{3}")
_ONE_INSERT = 2_000
_LOCK_NOT_AVAILABLE = "55P03"
_UTC = ZoneInfo("UTC")


@dataclass(frozen=True, slots=True)
class Invoice:
    """One import, without its lines."""

    id: int
    provider: str
    month: str
    sha256: str
    mapping: FileMapping
    file_name: str
    rows: int
    currency: str
    amount: Decimal
    usd_per_unit: Decimal
    rate_source: str
    replaces: int | None
    note: str
    imported_at: datetime
    imported_by: str


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did. `is_new` False: this very content counts already, nothing was changed."""

    invoice: Invoice
    is_new: bool
    replaced: Invoice | None


@dataclass(frozen=True, slots=True)
class Rate:
    """The invoice's currency and what one unit of it is in USD."""

    currency: str = "USD"
    usd_per_unit: Decimal = Decimal(1)
    source: str = ""


def saved_mapping(session: Session, provider: str) -> FileMapping:
    """Return how a provider's file was read last; an empty mapping if never."""
    row = session.get(InvoiceMappingRow, checked_provider(provider))
    return FileMapping() if row is None else FileMapping.of_json(row.mapping)


def rate_of(file: InvoiceFile, currency: str | None, usd_per_unit: str | None, source: str) -> Rate:
    """Return the invoice's rate. Raises InvalidInput where one is needed, or contradicts the file."""
    named = (currency or file.currency or "USD").upper()
    if not CURRENCY.fullmatch(named) or (file.currency and named != file.currency):
        raise InvalidInput(
            f"the currency is {named[:20]!r}, the file says {file.currency or 'none'}",
            hint="ISO 4217 has three letters; leave it out where the file has a column",
            field="currency",
        )
    if named == "USD":
        if usd_per_unit is not None:
            raise InvalidInput("an invoice in USD needs no rate", hint="Leave it out", field="rate")
        return Rate()
    try:
        rate = Decimal(usd_per_unit or "")
    except InvalidOperation:
        rate = Decimal(0)
    source = source.strip()
    is_usable = rate.is_finite() and Decimal("0.000001") <= rate <= Decimal(1_000_000)
    if not is_usable or rate != round(rate, 10) or not 1 <= len(source) <= 300 or not source.isprintable():
        raise InvalidInput(
            f"the invoice is in {named}: USD per {named} and where the rate is from are needed",
            hint="Give --rate 1.0832 --rate-source 'ECB, 30 November 2026'",
            field="rate",
        )
    return Rate(named, rate, source)


def import_invoice(
    session: Session,
    body: bytes,
    file: InvoiceFile,
    *,
    provider: str,
    month: str | None,
    rate: Rate,
    given: FileMapping,
    file_name: str,
    actor: Actor,
    now: datetime,
    assigned: Mapping[str, str] | None = None,
    note: str = "",
) -> Imported:
    """Make `file`, read from `body`, the provider's invoice of its month; save how it was read.

    `given` is the mapping as asked for, `month` None the one its days are of. Labels in `assigned` join
    those the provider has; those of `given` may be older and are not taken. The same content again changes
    nothing. Joins the caller's transaction. Raises InvalidInput, Conflict, Forbidden.
    """
    require(actor, Permission.CLOSE_MONTHS)
    provider = checked_provider(provider)
    name = _month_of_lines(file, month)
    _require_note(note)
    _lock(session, provider)
    sha256 = hashlib.sha256(body).hexdigest()
    before = _newest(session, provider, name)
    _refuse_other_month(session, provider, name, sha256)
    is_same = before is not None and _identity(before) == (sha256, _read_as(file.mapping), rate)
    _save_mapping(session, provider, file.mapping, given, assigned or {}, actor, now)
    if is_same and before is not None:
        return Imported(before, False, None)
    row = InvoiceRow(
        provider=provider,
        month=name,
        sha256=sha256,
        mapping=file.mapping.as_json(),
        file_name="".join(c if c.isprintable() else " " for c in file_name)[-200:],
        rows=len(file.lines),
        currency=rate.currency,
        amount=file.total,
        usd_per_unit=rate.usd_per_unit,
        rate_source=rate.source,
        replaces=before.id if before else None,
        note=note,
        imported_at=now,
        imported_by=actor.name,
    )
    session.add(row)
    session.flush()
    _add_lines(session, row.id, file)
    made = _invoice(row)
    detail: dict[str, Any] = {
        "invoice": made.id,
        "sha256": sha256,
        "rows": made.rows,
        "amount": f"{made.amount} {made.currency}",
        "replaces": before and {"invoice": before.id, "amount": f"{before.amount} {before.currency}"},
    }
    audit.append(session, actor, "invoice.import", f"{provider} {name}", note, detail, now)
    return Imported(made, True, before)


def assign_labels(
    session: Session, provider: str, classes: Mapping[str, str], *, actor: Actor, now: datetime
) -> FileMapping:
    """Say what node class a provider's labels are. Joins the caller's transaction.

    Holds for every invoice of the provider, imported before too. Raises NotFound before the first import,
    InvalidInput, Forbidden.
    """
    require(actor, Permission.CLOSE_MONTHS)
    _lock(session, checked_provider(provider))
    row = session.get(InvoiceMappingRow, provider, populate_existing=True)
    if row is None:
        raise NotFound(f"{provider} has no invoice yet", hint="Import one first")
    known = FileMapping.of_json(row.mapping)
    made = replace(known, classes=checked_classes({**known.classes, **classes}))
    row.mapping = made.as_json()
    row.updated_at, row.updated_by = now, actor.name
    audit.append(session, actor, "invoice.assign", provider, "", {"classes": dict(classes)}, now)
    return made


def invoices(session: Session, month: str | None = None) -> list[Invoice]:
    """Return the invoices that count, by month (newest first) and provider."""
    i = InvoiceRow
    newest = select(func.max(i.id)).group_by(i.provider, i.month)
    asked = select(i).where(i.id.in_(newest)).order_by(i.month.desc(), i.provider)
    if month is not None:
        asked = asked.where(i.month == month)
    return [_invoice(row) for row in session.scalars(asked)]


def lines_of(session: Session, invoice: Invoice) -> list[InvoiceLineRow]:
    """Return an import's lines in the order of the file."""
    n = InvoiceLineRow
    return list(session.scalars(select(n).where(n.invoice == invoice.id).order_by(n.number)))


def checked_provider(provider: str) -> str:
    """Return a provider's name. Raises InvalidInput for what is no name."""
    if not PROVIDER.fullmatch(provider):
        raise InvalidInput(
            f"{provider[:60]!r} is not a provider's name",
            hint="Use up to 60 letters, digits, dots, dashes",
            field="provider",
        )
    return provider


def _month_of_lines(file: InvoiceFile, asked: str | None) -> str:
    """Return the month the invoice is of. Raises InvalidInput when its days are mostly of another."""
    months = Counter(line.day.strftime("%Y-%m") for line in file.lines if line.day is not None)
    if not months and asked is None:
        raise InvalidInput(
            "the invoice has no column of days",
            hint="Name the column: --map day=COLUMN; where there is none, say which month: --month 2026-11",
            field="month",
        )
    likely, count = months.most_common(1)[0] if months else (asked or "", 0)
    name = asked or likely
    month_of(name, _UTC)
    if months and 2 * months[name] < months.total():
        raise InvalidInput(
            f"{count} of {months.total()} lines are of {likely}, not of {name}",
            hint="Import it as that month, or say how its days are written with --dates",
            field="month",
        )
    return name


def _refuse_other_month(session: Session, provider: str, month: str, sha256: str) -> None:
    other = next(
        (
            found
            for found in invoices(session)
            if found.provider == provider and found.sha256 == sha256 and found.month != month
        ),
        None,
    )
    if other is not None:
        raise Conflict(
            f"this very file is {provider}'s invoice of {other.month}",
            hint=f"Give the file of {month}",
        )


def _newest(session: Session, provider: str, month: str) -> Invoice | None:
    i = InvoiceRow
    row = session.scalars(
        select(i).where(i.provider == provider, i.month == month).order_by(i.id.desc()).limit(1)
    ).first()
    return None if row is None else _invoice(row)


def _identity(invoice: Invoice) -> tuple[str, FileMapping, Rate]:
    rate = Rate(invoice.currency, invoice.usd_per_unit.normalize() + 0, invoice.rate_source)
    return invoice.sha256, _read_as(invoice.mapping), rate


def _read_as(mapping: FileMapping) -> FileMapping:
    """Return the part of a mapping that the lines depend on."""
    return replace(mapping, classes={})


def _lock(session: Session, provider: str) -> None:
    """Let nobody else import or assign of this provider until the transaction ends. Raises Conflict."""
    try:
        session.execute(select(func.pg_advisory_xact_lock(func.hashtext(f"invoice {provider}"))))
    except OperationalError as exc:
        if getattr(exc.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
            raise
        raise Conflict(
            f"another invoice of {provider} is being imported", hint="Try again", retryable=True
        ) from exc


def _save_mapping(
    session: Session,
    provider: str,
    read: FileMapping,
    given: FileMapping,
    assigned: Mapping[str, str],
    actor: Actor,
    now: datetime,
) -> None:
    """Keep columns and labels; how numbers and days are written only where somebody said so."""
    row = session.get(InvoiceMappingRow, provider, populate_existing=True)
    known = FileMapping() if row is None else FileMapping.of_json(row.mapping)
    classes = checked_classes({**known.classes, **assigned})
    kept = replace(read, decimal=given.decimal, dates=given.dates, classes=classes)
    if row is None:
        row = InvoiceMappingRow(provider=provider, mapping={}, updated_at=now, updated_by=actor.name)
        session.add(row)
    if row.mapping != kept.as_json():
        row.mapping, row.updated_at, row.updated_by = kept.as_json(), now, actor.name
        audit.append(session, actor, "invoice.mapping", provider, "", {"mapping": kept.as_json()}, now)
    session.flush()


def _add_lines(session: Session, invoice: int, file: InvoiceFile) -> None:
    rows: Sequence[dict[str, Any]] = [
        {
            "invoice": invoice,
            "number": line.number,
            "day": line.day,
            "label": line.label,
            "description": line.description,
            "hours": line.hours,
            "price": line.price,
            "amount": line.amount,
        }
        for line in file.lines
    ]
    for start in range(0, len(rows), _ONE_INSERT):
        session.execute(insert(InvoiceLineRow), rows[start : start + _ONE_INSERT])


def _require_note(note: str) -> None:
    if len(note) > 300 or not (note.isprintable() or not note):
        raise InvalidInput("the note is not one line of 300 characters", hint="Shorten it", field="note")


def _invoice(r: InvoiceRow) -> Invoice:
    return Invoice(
        r.id,
        r.provider,
        r.month,
        r.sha256,
        FileMapping.of_json(r.mapping),
        r.file_name,
        r.rows,
        r.currency,
        r.amount,
        r.usd_per_unit,
        r.rate_source,
        r.replaces,
        r.note,
        r.imported_at,
        r.imported_by,
    )
