"""Our books beside a provider's invoice, by node class and day: hours, price, amount, and what is left.

USD as `Decimal`, hours are node-hours. In every row, and in every sum of rows, to the cent:
invoice - ours = hours + price + unexplained. Hours: other hours at our price. Price: another price for
the invoice's hours. Unexplained stays on its row. Prevents: a difference that is spread over classes
until it looks like rounding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from fleet.months import Month
from fleet.spend import CENT, whole_cents

ZERO = Decimal(0)
NO_USD = Decimal("0.00")
#: What a label may be declared as besides a price class: not node time, nothing of ours beside it.
OTHER = "other"
Key = tuple[str, date | None]


@dataclass(frozen=True, slots=True)
class InvoiceLine:
    """One line of an invoice. `node_class`: "on_demand", "spot/burst", OTHER; None: nobody has said."""

    day: date | None  # None: the invoice does not say
    label: str  # what the provider calls it
    node_class: str | None
    hours: Decimal | None
    usd_per_hour: Decimal | None
    usd: Decimal


@dataclass(frozen=True, slots=True)
class OurTime:
    """What our books have of one pool and price class on one day of the invoice's zone."""

    day: date
    price_class: str
    pool: str
    hours: Decimal  # of `reserved`: committed and unused ones too
    usd: Decimal  # whole cents
    unpriced_hours: Decimal = ZERO


@dataclass(frozen=True, slots=True)
class Variance:
    """One node class on one day. None: that side does not say, or has no such row."""

    node_class: str
    day: date | None
    our_hours: Decimal | None
    invoice_hours: Decimal | None
    our_price: Decimal | None  # USD per node-hour, the mean of the row
    invoice_price: Decimal | None
    our_usd: Decimal | None
    invoice_usd: Decimal | None
    hours_usd: Decimal
    price_usd: Decimal
    unexplained_usd: Decimal
    why: str

    @property
    def difference_usd(self) -> Decimal:
        """Return invoice less ours."""
        return (self.invoice_usd or NO_USD) - (self.our_usd or NO_USD)


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of rows."""

    our_hours: Decimal
    invoice_hours: Decimal
    our_usd: Decimal
    invoice_usd: Decimal
    hours_usd: Decimal
    price_usd: Decimal
    unexplained_usd: Decimal

    @property
    def difference_usd(self) -> Decimal:
        """Return invoice less ours: hours, price and unexplained together."""
        return self.invoice_usd - self.our_usd


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """A month's invoice beside our books. `month` is cut in the invoice's zone."""

    month: Month
    rows: tuple[Variance, ...]  # by class and day
    outside: tuple[InvoiceLine, ...]  # days outside the month: in `rows` too, as unexplained

    def total(self) -> Sums:
        """Return the sums of all rows."""
        return sums_of(self.rows)

    def by_class(self) -> dict[str, Sums]:
        """Return the sums by node class; they add up to the total."""
        parts: dict[str, list[Variance]] = defaultdict(list)
        for row in self.rows:
            parts[row.node_class].append(row)
        return {name: sums_of(rows) for name, rows in sorted(parts.items())}


def sums_of(rows: Iterable[Variance]) -> Sums:
    """Return the sums of `rows`; a side that has no row counts nothing."""
    kept = list(rows)
    return Sums(
        sum((r.our_hours or ZERO for r in kept), ZERO),
        sum((r.invoice_hours or ZERO for r in kept), ZERO),
        sum((r.our_usd or ZERO for r in kept), NO_USD),
        sum((r.invoice_usd or ZERO for r in kept), NO_USD),
        sum((r.hours_usd for r in kept), NO_USD),
        sum((r.price_usd for r in kept), NO_USD),
        sum((r.unexplained_usd for r in kept), NO_USD),
    )


def reconcile(month: Month, ours: Sequence[OurTime], lines: Sequence[InvoiceLine]) -> Reconciliation:
    """Set `ours` against `lines`, both of `month` cut in the invoice's zone.

    Our side of a class is kept by pool where the invoice's lines name the pool, and by day where they
    name days. Invoice amounts are rounded on their running sum, so that rows add up to the invoice.
    """
    named = {line.node_class for line in lines if line.node_class is not None}
    dated = {line.node_class for line in lines if line.day is not None}
    our_rows: dict[Key, _Side] = defaultdict(_Side)
    for item in ours:
        own = f"{item.price_class}/{item.pool}"
        node_class = own if own in named else item.price_class
        by_day = node_class in dated or node_class not in named
        our_rows[node_class, item.day if by_day else None].add_ours(item)
    inside = {d for d in (line.day for line in lines) if d is not None and _is_inside(d, month)}
    invoice: dict[Key, _Side] = defaultdict(_Side)
    for line in lines:
        invoice[_place(line, inside), line.day].add_line(line)
    keys = sorted(our_rows.keys() | invoice.keys(), key=lambda k: (k[0], k[1] or date.min))
    cents = _running_cents([(key, invoice[key].usd) for key in keys if key in invoice])
    rows = [_variance(key, our_rows.get(key), invoice.get(key), cents.get(key)) for key in keys]
    outside = tuple(line for line in lines if line.day is not None and line.day not in inside)
    return Reconciliation(month, tuple(rows), outside)


def _is_inside(day: date, month: Month) -> bool:
    return day.strftime("%Y-%m") == month.name


def _place(line: InvoiceLine, inside: set[date]) -> str:
    if line.node_class is None:
        return f"not assigned: {line.label or 'no label'}"
    if line.day is not None and line.day not in inside:
        return f"{line.node_class}, outside the month"
    return line.node_class


@dataclass(slots=True)
class _Side:
    """Sums of one row on one side."""

    hours: Decimal = ZERO
    usd: Decimal = ZERO
    priced: Decimal = ZERO  # hours times the price that lines state
    unpriced_hours: Decimal = ZERO
    lines: int = 0
    has_hours: bool = False
    node_class: str | None = None

    def add_ours(self, item: OurTime) -> None:
        self.has_hours = True
        self.hours += item.hours
        self.usd += item.usd
        self.unpriced_hours += item.unpriced_hours

    def add_line(self, line: InvoiceLine) -> None:
        self.lines += 1
        self.usd += line.usd
        self.node_class = line.node_class
        if line.hours is None:
            return
        self.has_hours = True
        self.hours += line.hours
        self.priced += line.usd if line.usd_per_hour is None else line.hours * line.usd_per_hour

    @property
    def price(self) -> Decimal | None:
        """Return USD per hour by what was charged."""
        return self.usd / self.hours if self.has_hours and self.hours else None


def _variance(key: Key, ours: _Side | None, invoice: _Side | None, cents: Decimal | None) -> Variance:
    node_class, day = key
    difference = (cents or NO_USD) - (ours.usd if ours else NO_USD)
    hours_usd, price_usd, why = _explained(ours, invoice, difference, node_class)
    stated = None if invoice is None or not invoice.hours else invoice.priced / invoice.hours
    return Variance(
        node_class=node_class,
        day=day,
        our_hours=ours.hours if ours else None,
        invoice_hours=invoice.hours if invoice and invoice.has_hours else None,
        our_price=ours.price if ours and not ours.unpriced_hours else None,
        invoice_price=stated if invoice and invoice.has_hours else None,
        our_usd=ours.usd if ours else None,
        invoice_usd=cents,
        hours_usd=hours_usd,
        price_usd=price_usd,
        unexplained_usd=difference - hours_usd - price_usd,
        why=why,
    )


def _explained(
    ours: _Side | None, invoice: _Side | None, difference: Decimal, node_class: str
) -> tuple[Decimal, Decimal, str]:
    """Return what hours and price explain of the difference, whole cents, and the reason in words."""
    if invoice is None:
        return difference, NO_USD, "not on the invoice"
    if invoice.node_class in (None, OTHER) or ", outside" in node_class:
        return NO_USD, NO_USD, _unplaced(invoice, node_class)
    if not invoice.has_hours:
        return NO_USD, NO_USD, "the invoice names no hours" if difference else ""
    if ours is None:
        kept = _stray(invoice, difference)
        return difference - kept, NO_USD, "we observed no such hours"
    price = ours.price
    if price is None or ours.unpriced_hours:
        return NO_USD, NO_USD, f"{ours.unpriced_hours:.2f} of our node-hours have no price"
    hours_usd = whole_cents((invoice.hours - ours.hours) * price)
    stray = _stray(invoice, difference)
    price_usd = difference - stray - hours_usd
    return hours_usd, price_usd, "hours times price is not the amount" if stray else ""


def _stray(invoice: _Side, difference: Decimal) -> Decimal:
    """Return what the invoice's own hours and prices do not explain of its amount, whole cents.

    Within a cent a line it is rounding and none. Never invented where both sides agree.
    """
    stray = whole_cents(invoice.usd - invoice.priced)
    return NO_USD if abs(stray) <= CENT * invoice.lines or not difference else stray


def _unplaced(invoice: _Side, node_class: str) -> str:
    if invoice.node_class is None:
        return "no node class is assigned to this label"
    return "outside the month" if ", outside" in node_class else "declared as not node time"


def _running_cents(amounts: Sequence[tuple[Key, Decimal]]) -> Mapping[Key, Decimal]:
    running, given = ZERO, NO_USD
    made: dict[Key, Decimal] = {}
    for key, usd in amounts:
        running += usd
        made[key] = whole_cents(running) - given
        given += made[key]
    return made
