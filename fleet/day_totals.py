"""A month's money by quarter-hour, so that days, ranges and months add up to one figure in every zone.

USD as `Decimal`, hours are node-hours. Each part of a month (nodes of a class and pool, unused commitments,
overhead, adjustments) is spread over its quarter-hours by what they cost, rounded on the running sum: any
stretch of time is within a cent a part of its exact cost, and stretches that meet add up exactly. Every
zone's midnight falls on a quarter-hour. Prevents: days that sum to another total than their range because
a reader looks from UTC+5:30.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Literal
from zoneinfo import ZoneInfo

from fleet.commitments import Commitment, settle
from fleet.errors import InvalidInput
from fleet.instants import require_day
from fleet.months import QUARTER, Month
from fleet.spend import SECONDS_PER_HOUR, MonthSpend, round_to_total, whole_cents

PartKind = Literal["nodes", "commitment", "overhead", "adjustment"]
MAX_RANGE_DAYS = 400
ZERO = Decimal(0)
NO_USD = Decimal("0.00")


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """What was paid for."""

    kind: PartKind
    pool: str  # "" for the platform and for adjustments
    price_class: str  # "" but for nodes


@dataclass(frozen=True, slots=True)
class Slice:
    """One part of one quarter-hour. `usd` is exact where it goes in, whole cents where it comes out."""

    at: datetime
    part: Part
    usd: Decimal
    hours: Decimal  # of nodes; of a commitment: committed and not used
    unpriced_hours: Decimal = ZERO  # of `hours`: no price was in force, so they are not in `usd`


@dataclass(frozen=True, slots=True)
class Day:
    """What one calendar day cost. `total_usd` is the sum of the three others.

    Of a day that `is_recorded` says no to, nodes are not 0 but not known: no node time was counted by then.
    """

    day: date
    nodes_usd: Decimal
    charges_usd: Decimal  # unused commitments and overhead
    adjustments_usd: Decimal  # of closed months, on the first day of the month that carries them
    node_hours: Decimal
    unpriced_hours: Decimal
    is_recorded: bool = True

    @property
    def is_known(self) -> bool:
        """Say whether anything is known of the day's cost."""
        return self.is_recorded or bool(self.charges_usd or self.adjustments_usd)

    @property
    def total_usd(self) -> Decimal:
        """Return what the day cost."""
        return self.nodes_usd + self.charges_usd + self.adjustments_usd


@dataclass(frozen=True, slots=True)
class DayTotals:
    """Days of a range and their sum, cut at midnight of `zone`."""

    zone: str
    start: datetime
    end: datetime
    days: tuple[Day, ...]

    @property
    def is_known(self) -> bool:
        """Say whether anything is known of the range's cost."""
        return any(day.is_known for day in self.days)

    @property
    def total_usd(self) -> Decimal:
        """Return what the range cost: the sum of its days, whatever zone they are cut in."""
        return sum((day.total_usd for day in self.days), NO_USD)


def quarter_costs(
    node_s: Mapping[tuple[str, str, datetime], Decimal],
    prices: Mapping[tuple[str, str, datetime], Decimal | None],
    commitments: Sequence[Commitment],
    month: Month,
    until: datetime,
) -> list[Slice]:
    """Return the exact cost of each part in each quarter-hour of `month` up to `until`.

    `node_s` is node-seconds by (pool, price class, quarter-hour), `prices` USD per node-hour for the same
    keys. Reserved nodes use commitments first, as in `fleet.commitments.settle`.
    """
    slices: list[Slice] = []
    reserved: dict[datetime, dict[tuple[str, datetime], Decimal]] = defaultdict(dict)
    for (pool, price_class, at), up_s in node_s.items():
        if price_class == "reserved" and commitments:
            reserved[at][pool, at] = up_s
        else:
            slices.append(_priced(pool, price_class, at, up_s, prices[pool, price_class, at]))
    if commitments:
        at = month.start
        while at < min(until, month.end):
            slices += _committed(commitments, reserved.get(at, {}), at, until, prices)
            at += QUARTER
    return slices


def _priced(pool: str, price_class: str, at: datetime, up_s: Decimal, price: Decimal | None) -> Slice:
    hours = up_s / SECONDS_PER_HOUR
    usd = ZERO if price is None else hours * price
    return Slice(at, Part("nodes", pool, price_class), usd, hours, hours if price is None else ZERO)


def _committed(
    commitments: Sequence[Commitment],
    reserved: Mapping[tuple[str, datetime], Decimal],
    at: datetime,
    until: datetime,
    prices: Mapping[tuple[str, str, datetime], Decimal | None],
) -> list[Slice]:
    quarter = Month("", "UTC", at, at + QUARTER)
    settled = settle(commitments, reserved, quarter, until)
    unused_s: dict[str, Decimal] = defaultdict(Decimal)
    for each in commitments:
        unused_s[each.pool or ""] += each.committed_s(at, min(until, quarter.end))
    found: list[Slice] = []
    for used in settled.used:
        unused_s[used.pool] -= used.up_s
        found.append(_priced(used.pool, "reserved", at, used.up_s, used.usd_per_node_hour))
    for (pool, _), up_s in settled.left.items():
        found.append(_priced(pool, "reserved", at, up_s, prices[pool, "reserved", at]))
    for charge in settled.charges:
        hours = unused_s[charge.pool] / SECONDS_PER_HOUR if charge.kind == "commitment" else ZERO
        found.append(Slice(at, Part(charge.kind, charge.pool, ""), charge.usd, hours))
    return found


def in_cents(spend: MonthSpend, costs: Iterable[Slice]) -> list[Slice]:
    """Return `costs` in whole cents that sum to what each part of the month's lines sums to.

    A part the lines have and `costs` do not (the books were changed by hand), and adjustments, stand on
    the month's first quarter-hour.
    """
    by_part: dict[Part, list[Slice]] = defaultdict(list)
    for each in _merged(costs):
        by_part[each.part].append(each)
    groups: dict[tuple[str, str], dict[Part, Decimal]] = defaultdict(dict)
    has_burst = {line.pool for line in spend.lines if line.kind == "burst"}
    for part, slices in by_part.items():
        is_burst = part.price_class == "spot" and part.pool in has_burst
        kind = "burst" if is_burst else "usage" if part.kind == "nodes" else part.kind
        groups[part.pool, kind][part] = sum((each.usd for each in slices), ZERO)
    made: list[Slice] = []
    for key, total in _group_totals(spend).items():
        shares = _shares(groups.pop(key, {}), total, key)
        for part, cents in shares.items():
            made += _spread(by_part.pop(part, []), part, cents, spend.month.start)
    for part, slices in by_part.items():  # hours without cost: unpriced
        made += _spread(slices, part, NO_USD, spend.month.start)
    return sorted(made, key=lambda each: (each.at, each.part))


def day_totals(
    slices: Iterable[Slice],
    start: datetime,
    end: datetime,
    zone: ZoneInfo,
    *,
    recorded: tuple[datetime, datetime] | None = None,
) -> DayTotals:
    """Return the days of [start, end), cut at midnight of `zone`, days without cost included.

    `recorded` is the span node time is known of (by default all): days wholly outside say so.
    """
    sums: dict[date, list[Decimal]] = {day: _empty() for day in _dates(start, end, zone)}
    place = {"nodes": 0, "commitment": 1, "overhead": 1, "adjustment": 2}
    for each in slices:
        if start <= each.at < end:
            day = sums[each.at.astimezone(zone).date()]
            day[place[each.part.kind]] += each.usd
            if each.part.kind == "nodes":
                day[3] += each.hours
            day[4] += each.unpriced_hours
    first, last = (start, end) if recorded is None else recorded
    known = set(_dates(max(first, start), min(last, end), zone))
    return DayTotals(
        zone.key, start, end, tuple(Day(day, *sums[day], is_recorded=day in known) for day in sorted(sums))
    )


def span_of(first: date, last: date, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Return the instants of the days `first` to `last` of `zone`, both included.

    Raises InvalidInput for a range that is turned around, longer than `MAX_RANGE_DAYS` or out of range.
    """
    first, last = require_day(first, "from"), require_day(last, "to")
    count = (last - first).days + 1
    if not 1 <= count <= MAX_RANGE_DAYS:
        raise InvalidInput(
            f"{first} to {last} is {count} days",
            hint=f"Give 1 to {MAX_RANGE_DAYS} days, the first one first",
            field="to",
        )
    return _midnight(first, zone), _midnight(last + timedelta(days=1), zone)


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)


def _dates(start: datetime, end: datetime, zone: ZoneInfo) -> list[date]:
    first = start.astimezone(zone).date()
    last = (end - timedelta(microseconds=1)).astimezone(zone).date()
    return [first + timedelta(days=n) for n in range((last - first).days + 1)] if end > start else []


def _empty() -> list[Decimal]:
    return [NO_USD, NO_USD, NO_USD, ZERO, ZERO]


def _merged(costs: Iterable[Slice]) -> list[Slice]:
    sums: dict[tuple[datetime, Part], list[Decimal]] = defaultdict(lambda: [ZERO, ZERO, ZERO])
    for each in costs:
        total = sums[each.at, each.part]
        total[0] += each.usd
        total[1] += each.hours
        total[2] += each.unpriced_hours
    return [Slice(*key, *sums[key]) for key in sorted(sums)]


def _group_totals(spend: MonthSpend) -> dict[tuple[str, str], Decimal]:
    sums: dict[tuple[str, str], Decimal] = defaultdict(lambda: NO_USD)
    for line in spend.lines:
        if line.kind == "adjustment":
            sums["", "adjustment"] += line.amount_usd
        else:
            sums[line.pool, "usage" if line.kind == "idle" else line.kind] += line.amount_usd
    return dict(sums)


def _shares(costs: Mapping[Part, Decimal], total: Decimal, key: tuple[str, str]) -> dict[Part, Decimal]:
    """Return whole cents by part that sum to `total`."""
    whole = sum(costs.values(), ZERO)
    if not whole:
        pool, kind = key
        named = kind if kind in ("commitment", "overhead", "adjustment") else "nodes"
        return {Part(named, pool, ""): total}
    return round_to_total({part: usd * total / whole for part, usd in costs.items()}, total)


def _spread(slices: Sequence[Slice], part: Part, cents: Decimal, start: datetime) -> list[Slice]:
    whole = sum((each.usd for each in slices), ZERO)
    if not slices:
        return [Slice(start, part, cents, ZERO)] if cents else []
    made: list[Slice] = []
    running, given = ZERO, NO_USD
    for each in slices:
        running += each.usd
        upto = whole_cents(running * cents / whole) if whole else NO_USD
        made.append(Slice(each.at, part, upto - given, each.hours, each.unpriced_hours))
        given = upto
    if cents - given:  # nothing but a rounding of the last running sum
        last = made[-1]
        made[-1] = Slice(last.at, part, last.usd + cents - given, last.hours, last.unpriced_hours)
    return made
