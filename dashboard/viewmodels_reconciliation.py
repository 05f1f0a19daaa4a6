"""Days of a month and its invoices in words: what differs, by how much, and what nobody can explain. Pure.

Money is Decimal USD to the cent. Prevents: "reconciled" over an unexplained difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from control.invoice_files import InvoiceFile
from control.reconciliations import Label, Report
from dashboard import words
from dashboard.times import UNKNOWN, Zone
from dashboard.viewmodels import Card
from dashboard.words import Tone
from fleet.day_totals import DayTotals
from fleet.invoice_columns import ROLES
from fleet.reconciliation import OTHER, Sums, Variance

#: What a label may be called on the page.
CLASSES = ("on_demand", "reserved", "spot", OTHER)


def day_rows(found: DayTotals) -> dict[str, list[Any]]:
    """Return days and their sum, which is the month's total."""
    days = found.days
    return {
        "day": [*(f"{d.day:%a %-d %b}" for d in days), "total"],
        "usd": [
            *(_usd(d.total_usd if d.is_known else None) for d in days),
            _usd(found.total_usd if found.is_known else None),
        ],
        "nodes": [
            *(_usd(d.nodes_usd if d.is_recorded else None) for d in days),
            _usd(_sum(d.nodes_usd for d in days)),
        ],
        "charges": [*(_usd(d.charges_usd) for d in days), _usd(_sum(d.charges_usd for d in days))],
        "adjustments": [
            *(_usd(d.adjustments_usd) for d in days),
            _usd(_sum(d.adjustments_usd for d in days)),
        ],
        "hours": [
            *(_hours(d.node_hours if d.is_recorded else None) for d in days),
            f"{_sum(d.node_hours for d in days):,.2f}",
        ],
    }


def days_text(found: DayTotals) -> str:
    """Return whose days these are."""
    return (
        f"Days of {found.zone}, the zone months are cut in, wherever you look from. "
        "They sum to the month's total to the cent."
    )


def _sum(values: Any) -> Decimal:
    return sum(values, Decimal("0.00"))


def headline(report: Report) -> tuple[Tone, str]:
    """Return whether the invoices and the books agree, in one sentence."""
    total = report.found.total()
    unexplained = sum(map(abs, _open(report)), Decimal(0))
    if unexplained:
        said = f"{words.cents(unexplained)} of the invoice are unexplained"
        return "act", words.plain(f"{said}; in all it is {_more(total.difference_usd)}")
    if any(part.hours_usd or part.price_usd for part in _but_other(report)):  # classes may cancel out
        said = f"The invoice is {_more(total.difference_usd)}: {_parts(total)}"
        return "watch", words.plain(said)
    if total.difference_usd:
        beside = f"; beside them stand {words.cents(total.difference_usd)} declared as no node time"
        return "good", words.plain(f"Invoice and books agree to the cent{beside}")
    return "good", "Invoice and books agree to the cent"


def _but_other(report: Report) -> list[Sums]:
    """Return the sums of classes, without what was declared as no node time."""
    return [sums for name, sums in report.found.by_class().items() if name != OTHER]


def _open(report: Report) -> list[Decimal]:
    """Return what is unexplained by row: days of a class that cancel out are not explained by that."""
    return [r.unexplained_usd for r in report.found.rows if r.unexplained_usd and r.node_class != OTHER]


def _more(usd: Decimal) -> str:
    if not usd:
        return "the same as our books"
    return f"{words.cents(abs(usd))} {'more' if usd > 0 else 'less'} than our books"


def _parts(total: Sums) -> str:
    return f"{_signed(total.hours_usd)} by other hours, {_signed(total.price_usd)} by another price"


def cards(report: Report) -> list[Card]:
    """Return both sides, the difference and what is unexplained."""
    total = report.found.total()
    unexplained = sum((s.unexplained_usd for s in _but_other(report)), Decimal("0.00"))
    is_open = bool(_open(report))
    names = ", ".join(dict.fromkeys(invoice.provider for invoice in report.invoices))
    return [
        Card("Invoice", words.cents(total.invoice_usd), "imported", "plain", names),
        Card(
            "Our books",
            words.cents(total.our_usd),
            "estimated" if report.is_estimated else "compared part",
            "watch" if report.is_estimated else "plain",
            f"days of {report.found.month.zone}",
        ),
        Card(
            "Hours and price",
            _signed(total.hours_usd + total.price_usd),
            "explained",
            "watch" if total.hours_usd or total.price_usd else "good",
            _parts(total),
        ),
        Card(
            "Unexplained",
            _signed(unexplained),
            "look at its rows" if is_open else "nothing",
            "act" if is_open else "good",
        ),
    ]


def class_rows(report: Report) -> dict[str, list[Any]]:
    """Return each node class and the total; the classes add up to it."""
    parts = [*report.found.by_class().items(), ("total", report.found.total())]
    return {"class": [name.replace("on_demand", "on-demand") for name, _ in parts]} | _columns(
        [sums for _, sums in parts]
    )


def _columns(rows: Sequence[Sums | Variance]) -> dict[str, list[Any]]:
    return {
        "ours": [_usd(row.our_usd) for row in rows],
        "invoice": [_usd(row.invoice_usd) for row in rows],
        "difference": [_signed(row.difference_usd) for row in rows],
        "hours": [_signed(row.hours_usd) for row in rows],
        "price": [_signed(row.price_usd) for row in rows],
        "unexplained": [_signed(row.unexplained_usd) for row in rows],
    }


def differing_rows(report: Report) -> dict[str, list[Any]]:
    """Return the rows by node class and day on which both sides differ, the largest first."""
    rows = [r for r in report.found.rows if r.difference_usd or r.hours_usd or r.unexplained_usd]
    rows.sort(key=lambda r: (-abs(r.unexplained_usd), -abs(r.difference_usd)))
    columns = _columns(rows)
    return {
        "what": [f"{_day(r)}, {r.node_class.replace('on_demand', 'on-demand')}" for r in rows],
        "both": [f"{_hours(r.our_hours) or UNKNOWN} / {_hours(r.invoice_hours) or UNKNOWN}" for r in rows],
        **{name: columns[name] for name in ("difference", "hours", "price", "unexplained")},
        "why": [r.why or _by(r) for r in rows],
    }


def _day(row: Variance) -> str:
    return "no day" if row.day is None else f"{row.day:%-d %b}"


def _by(row: Variance) -> str:
    if row.price_usd and row.our_price is not None and row.invoice_price is not None:
        return f"{row.invoice_price:.4f} instead of {row.our_price:.4f} USD an hour"
    return "other hours" if row.hours_usd else ""


def _hours(hours: Decimal | None) -> str | None:
    return None if hours is None else f"{hours:,.2f}"


def bridge_text(report: Report) -> str:
    """Return how our side comes from the month's total."""
    month = report.found.month
    parts = [f"The month of {report.zone} is {words.cents(report.month_usd)}"]
    if report.not_compared_usd:
        parts.append(
            f"platform overhead and adjustments, {words.cents(report.not_compared_usd)}, are on no invoice"
        )
    if report.late_usd:
        parts.append(
            f"{_signed(report.late_usd)} are node time that came after its close and stand in a later month"
        )
    if report.edges_usd:
        parts.append(
            f"{_signed(report.edges_usd)} are hours between the month's ends in {month.zone} and "
            f"in {report.zone}"
        )
    return words.plain("; ".join(parts) + ".")


def import_text(report: Report, zone: Zone) -> list[str]:
    """Return where each invoice is from."""
    said: list[str] = []
    for each in report.invoices:
        rate = "" if each.currency == "USD" else f" at {each.usd_per_unit.normalize():f} USD"
        source = f" ({each.rate_source})" if each.rate_source else ""
        instead = f", in the place of import {each.replaces}" if each.replaces else ""
        said.append(
            f"{each.provider}: {each.file_name}, {words.plural(each.rows, 'line')}, "
            f"{each.amount:,.2f} {each.currency}{rate}{source}, sha256 {each.sha256[:12]}, imported by "
            f"{each.imported_by} {zone.stamp(each.imported_at)}{instead}"
        )
    return said


def label_rows(labels: Sequence[Label]) -> dict[str, list[Any]]:
    """Return what the provider's labels are for us, those nobody assigned first."""
    rows = sorted(labels, key=lambda each: (each.node_class is not None, -abs(each.usd)))
    return {
        "provider": [each.provider for each in rows],
        "label": [each.label or "no label" for each in rows],
        "is": ["not assigned" if each.node_class is None else each.node_class for each in rows],
        "lines": [each.lines for each in rows],
        "usd": [_usd(each.usd) for each in rows],
    }


def label_names(labels: Sequence[Label]) -> list[tuple[str, str]]:
    """Return (provider, label) to choose from, those nobody assigned first."""
    rows = sorted(labels, key=lambda each: (each.node_class is not None, -abs(each.usd)))
    return [(each.provider, each.label) for each in rows if each.label]


def read_rows(file: InvoiceFile) -> dict[str, list[Any]]:
    """Return which column was taken for what, with its first value."""
    first, roles = file.lines[0], [role for role in ROLES if role in file.mapping.columns]
    values = {
        "day": None if first.day is None else f"{first.day:%-d %b %Y}",
        "label": first.label,
        "hours": _hours(first.hours),
        "price": None if first.price is None else f"{first.price:,.4f}",
        "amount": f"{first.amount:,.4f}",
        "currency": file.currency,
        "description": first.description,
    }
    return {
        "role": roles,
        "column": [file.mapping.columns[role] for role in roles],
        "first": [values[role] for role in roles],
    }


def read_text(file: InvoiceFile) -> str:
    """Return how a file would be read, in one sentence."""
    mark = "a comma" if file.mapping.decimal == "," else "a point"
    how = f"days written {file.mapping.dates} in {file.mapping.zone}"
    return words.plain(
        f"{words.plural(len(file.lines), 'line')}, {file.total:,.2f} {file.currency or 'USD'}; "
        f"{file.encoding}, {mark} before decimals, {how}."
    )


def _usd(value: Decimal | None) -> str | None:
    return None if value is None else f"{value:,.2f}"


def _signed(value: Decimal) -> str:
    return "0.00" if not value else f"{value:+,.2f}"
