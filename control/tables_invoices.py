"""Tables of providers' invoices: how each provider's file is read, what was imported, its lines.

Amounts are in the invoice's currency, as it states them. Imports are append-only: the newest of a provider
and month counts, the ones it replaced stay. Prevents: an invoice that was swapped unseen.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import CheckConstraint, Date, ForeignKey, Identity, Index, Numeric
from sqlalchemy.orm import Mapped, mapped_column

from control.tables_base import Base


class InvoiceMappingRow(Base):
    """How a provider's file is read: columns, zone, numbers, and what its labels are."""

    __tablename__ = "invoice_mapping"
    provider: Mapped[str] = mapped_column(primary_key=True)
    mapping: Mapped[dict[str, Any]]
    updated_at: Mapped[datetime]
    updated_by: Mapped[str]


class InvoiceRow(Base):
    """One import of one provider's invoice of one month. Append-only."""

    __tablename__ = "invoice"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    provider: Mapped[str]
    month: Mapped[str]
    sha256: Mapped[str]  # of the file's bytes
    mapping: Mapped[dict[str, Any]]  # how it was read
    file_name: Mapped[str]
    rows: Mapped[int]
    currency: Mapped[str]
    amount: Mapped[Decimal] = mapped_column(Numeric())
    usd_per_unit: Mapped[Decimal] = mapped_column(Numeric(20, 10))  # 1 for USD
    rate_source: Mapped[str]
    replaces: Mapped[int | None] = mapped_column(ForeignKey("invoice.id"))
    note: Mapped[str]
    imported_at: Mapped[datetime]
    imported_by: Mapped[str]
    __table_args__ = (
        CheckConstraint("usd_per_unit > 0", name="rate"),
        Index("ix_invoice_month_provider", "month", "provider", "id"),
    )


class InvoiceLineRow(Base):
    """One line of an import, by its row in the file. Append-only."""

    __tablename__ = "invoice_line"
    invoice: Mapped[int] = mapped_column(ForeignKey("invoice.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    day: Mapped[date | None] = mapped_column(Date())
    label: Mapped[str]
    description: Mapped[str]
    hours: Mapped[Decimal | None] = mapped_column(Numeric())
    price: Mapped[Decimal | None] = mapped_column(Numeric())
    amount: Mapped[Decimal] = mapped_column(Numeric())
