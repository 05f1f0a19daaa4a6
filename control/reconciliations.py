"""A month's invoices beside the books: what is compared, what is not, and the bridge to the month's total.

USD as `Decimal`. Our side is cut at the days of the invoice's zone from the same cents as the month.
Prevents: a reconciliation that holds only because it left something out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy.orm import Session

from control.adjustments import late_lines
from control.day_spend import spend_slices, zone_named
from control.invoices import Invoice, invoices, lines_of, saved_mapping
from control.queries_spend import month_spend
from fleet.day_totals import Slice
from fleet.errors import NotFound
from fleet.invoice_columns import class_of
from fleet.months import Month, month_of
from fleet.reconciliation import InvoiceLine, OurTime, Reconciliation, Sums, Variance, reconcile
from fleet.spend import MonthSpend, subtotals

NO_USD = Decimal("0.00")


@dataclass(frozen=True, slots=True)
class Label:
    """What a provider calls a kind of line, what it is for us, and how much stands under it."""

    provider: str
    label: str
    node_class: str | None  # None: nobody has said, and its words do not tell
    lines: int
    usd: Decimal


@dataclass(frozen=True, slots=True)
class Report:
    """A month reconciled. month - not compared + late + edges = our side of the comparison."""

    invoices: tuple[Invoice, ...]
    found: Reconciliation
    labels: tuple[Label, ...]
    zone: str  # the declared one
    month_usd: Decimal  # the month's total as everywhere else
    not_compared_usd: Decimal  # platform overhead and adjustments: on no provider's invoice
    late_usd: Decimal  # node time that came after the month was closed; a later month carries it
    edges_usd: Decimal  # hours between the month's ends in the invoice's zone and in the declared one
    is_estimated: bool


def reconciliation(session: Session, name: str, *, zone: ZoneInfo, now: datetime) -> Report:
    """Return month `name`'s invoices beside our books. `zone` is the declared one.

    Invoices of several providers stand together. Where their zones differ, days are not compared. Raises
    NotFound if no invoice of the month was imported, InvalidInput for what is no month.
    """
    month_of(name, zone)
    kept = invoices(session, name)
    if not kept:
        raise NotFound(
            f"no invoice of {name} was imported", hint="Import one with `rhodeck invoices import`"
        )
    zones = {invoice.mapping.zone for invoice in kept}
    cut = zone_named(zones.pop()) if len(zones) == 1 else zone
    month = month_of(name, cut)
    lines, labels = _lines(session, kept, keep_days=not zones)
    slices = spend_slices(session, month.start, month.end, zone=zone, now=now, has_late=True)
    ours = _our_time(slices, month, cut)
    spend = month_spend(session, name, zone=zone, now=now)
    left_out = _left_out(spend)
    compared = sum((item.usd for item in ours), NO_USD)
    late = _late(session, spend)
    return Report(
        tuple(kept),
        reconcile(month, ours, lines),
        tuple(labels),
        zone.key,
        spend.total_usd,
        left_out,
        late,
        compared - late - (spend.total_usd - left_out),
        spend.is_estimated,
    )


def _lines(
    session: Session, kept: Sequence[Invoice], *, keep_days: bool
) -> tuple[list[InvoiceLine], list[Label]]:
    lines: list[InvoiceLine] = []
    labels: list[Label] = []
    for invoice in kept:
        classes = saved_mapping(session, invoice.provider).classes
        rate, sums = invoice.usd_per_unit, dict[str, list[Any]]()
        for row in lines_of(session, invoice):
            usd = row.amount * rate
            total = sums.setdefault(row.label, [0, Decimal(0)])
            total[0] += 1
            total[1] += usd
            lines.append(
                InvoiceLine(
                    row.day if keep_days else None,
                    row.label,
                    class_of(row.label, classes),
                    row.hours,
                    None if row.price is None else row.price * rate,
                    usd,
                )
            )
        labels += [
            Label(invoice.provider, label, class_of(label, classes), count, usd)
            for label, (count, usd) in sorted(sums.items(), key=lambda item: -abs(item[1][1]))
        ]
    return lines, labels


def _our_time(slices: Iterable[Slice], month: Month, cut: ZoneInfo) -> list[OurTime]:
    """Return what providers bill of our slices: nodes, and what was committed and not used."""
    sums: dict[tuple[date, str, str], OurTime] = {}
    for each in slices:
        part = each.part
        if part.kind not in ("nodes", "commitment") or not month.start <= each.at < month.end:
            continue
        key = (each.at.astimezone(cut).date(), part.price_class or "reserved", part.pool)
        had = sums.get(key) or OurTime(*key, Decimal(0), NO_USD)
        sums[key] = replace(
            had,
            hours=had.hours + each.hours,
            usd=had.usd + each.usd,
            unpriced_hours=had.unpriced_hours + each.unpriced_hours,
        )
    return [sums[key] for key in sorted(sums)]


def _left_out(spend: MonthSpend) -> Decimal:
    kinds = subtotals(spend.lines, "kind")
    return sum((kinds.get((kind,), NO_USD) for kind in ("overhead", "adjustment")), NO_USD)


def _late(session: Session, spend: MonthSpend) -> Decimal:
    if spend.state != "closed":
        return NO_USD
    lines = late_lines(session, spend.month.name)
    return sum((line.amount_usd for line in lines if line.kind != "overhead"), NO_USD)


def as_json(report: Report) -> dict[str, Any]:
    """Return a report for JSON; amounts as text."""
    found = report.found
    by_class: dict[str, Any] = {name: _sums(sums) for name, sums in found.by_class().items()}
    days: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in found.rows:
        days[row.node_class].append(_row(row))
    return {
        "month": found.month.name,
        "invoice_time_zone": found.month.zone,
        "declared_time_zone": report.zone,
        "estimated": report.is_estimated,
        "invoices": [
            {
                "provider": i.provider,
                "invoice": i.id,
                "sha256": i.sha256,
                "rows": i.rows,
                "amount": str(i.amount),
                "currency": i.currency,
                "usd_per_unit": str(i.usd_per_unit.normalize()),
                "rate_source": i.rate_source,
                "replaces": i.replaces,
                "imported_at": i.imported_at.isoformat(),
                "imported_by": i.imported_by,
            }
            for i in report.invoices
        ],
        "month_usd": f"{report.month_usd:.2f}",
        "not_compared_usd": f"{report.not_compared_usd:.2f}",
        "late_node_time_usd": f"{report.late_usd:.2f}",
        "edges_usd": f"{report.edges_usd:.2f}",
        "total": _sums(found.total()),
        "by_class": by_class,
        "rows": [row for name in sorted(days) for row in days[name]],
        "labels": [
            {
                "provider": each.provider,
                "label": each.label,
                "node_class": each.node_class,
                "lines": each.lines,
                "usd": f"{each.usd:.2f}",
            }
            for each in report.labels
        ],
    }


def _sums(sums: Sums) -> dict[str, str]:
    return {
        "our_hours": f"{sums.our_hours:.4f}",
        "invoice_hours": f"{sums.invoice_hours:.4f}",
        "our_usd": f"{sums.our_usd:.2f}",
        "invoice_usd": f"{sums.invoice_usd:.2f}",
        "difference_usd": f"{sums.difference_usd:.2f}",
        "hours_usd": f"{sums.hours_usd:.2f}",
        "price_usd": f"{sums.price_usd:.2f}",
        "unexplained_usd": f"{sums.unexplained_usd:.2f}",
    }


def _row(row: Variance) -> dict[str, Any]:
    def text(value: Decimal | None, places: int) -> str | None:
        return None if value is None else f"{value:.{places}f}"

    return {
        "node_class": row.node_class,
        "day": row.day and row.day.isoformat(),
        "our_hours": text(row.our_hours, 4),
        "invoice_hours": text(row.invoice_hours, 4),
        "our_usd_per_hour": text(row.our_price, 6),
        "invoice_usd_per_hour": text(row.invoice_price, 6),
        "our_usd": text(row.our_usd, 2),
        "invoice_usd": text(row.invoice_usd, 2),
        "difference_usd": text(row.difference_usd, 2),
        "hours_usd": text(row.hours_usd, 2),
        "price_usd": text(row.price_usd, 2),
        "unexplained_usd": text(row.unexplained_usd, 2),
        "why": row.why,
    }
