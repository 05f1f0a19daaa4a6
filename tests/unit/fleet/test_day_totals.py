"""Days, ranges and months are one sum, whatever zone the days are cut in."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.allocation import allocate
from fleet.commitments import Commitment, settle
from fleet.day_totals import DayTotals, Slice, day_totals, in_cents, quarter_costs, span_of
from fleet.errors import InvalidInput
from fleet.months import QUARTER, Month, month_of
from fleet.spend import MonthSpend, NodeTime, SpendLine

UTC_ZONE = ZoneInfo("UTC")
KOLKATA = ZoneInfo("Asia/Kolkata")  # UTC+5:30
#: Half and quarter hours, both hemispheres' summer time, the date line, and no summer time at all.
ZONES = (
    "UTC",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "America/New_York",
    "Europe/Berlin",
    "Pacific/Kiritimati",
    "Pacific/Chatham",
)
DAY = timedelta(days=1)
PRICES = {"on_demand": Decimal("28.137"), "reserved": Decimal("18.8"), "spot": Decimal("6.0004")}


def a_month(
    name: str,
    zone: ZoneInfo,
    seconds: dict[tuple[str, str, int], int],
    commitments: tuple[Commitment, ...] = (),
    adjustment: str | None = None,
) -> tuple[MonthSpend, list[Slice]]:
    """Return a month's lines and its cents by quarter-hour. Seconds are by (pool, class, place)."""
    month = month_of(name, zone)
    quarters = int((month.end - month.start) / QUARTER)
    node_s = {
        (pool, kind, month.start + QUARTER * (place % quarters)): Decimal(s)
        for (pool, kind, place), s in seconds.items()
    }
    prices: dict[tuple[str, str, datetime], Decimal | None] = {key: PRICES[key[1]] for key in node_s}
    reserved = {(pool, at): s for (pool, kind, at), s in node_s.items() if kind == "reserved"}
    settled = settle(commitments, reserved, month, month.end)
    node_time = [
        *settled.used,
        *(NodeTime(pool, "reserved", s, PRICES["reserved"]) for (pool, _), s in settled.left.items()),
        *(NodeTime(p, k, s, PRICES[k]) for (p, k, _), s in node_s.items() if k != "reserved"),
    ]
    spend = allocate(month, node_time, [], {}, is_estimated=False, charges=settled.charges)
    if adjustment is not None:
        spend = with_adjustment(spend, Decimal(adjustment))
    costs = quarter_costs(node_s, prices, commitments, month, month.end)
    return spend, in_cents(spend, costs)


def with_adjustment(spend: MonthSpend, usd: Decimal) -> MonthSpend:
    line = SpendLine(
        "adjustment", "acme", "", "", "", 0, 0, 0, Decimal(0), Decimal(0), usd, adjusts="2026-01"
    )
    return MonthSpend(
        spend.month,
        spend.method,
        (*spend.lines, line),
        spend.total_usd + usd,
        spend.idle_usd,
        spend.node_hours,
        Decimal(0),
        Decimal(0),
        is_estimated=False,
    )


def of_month(spend: MonthSpend, slices: list[Slice], zone: ZoneInfo) -> DayTotals:
    return day_totals(slices, spend.month.start, spend.month.end, zone)


def commitment(month: Month) -> Commitment:
    return Commitment(
        1,
        "nodes",
        "a",
        2,
        Decimal("17.1"),
        Decimal(1_000),
        month.start + timedelta(hours=7),
        month.end + DAY,
    )


places = st.tuples(st.sampled_from(("a", "b")), st.sampled_from(tuple(PRICES)), st.integers(0, 31 * 96 - 1))


@settings(max_examples=60)
@given(
    st.sampled_from(("2026-02", "2026-03", "2026-04", "2026-10", "2026-11")),
    st.sampled_from(ZONES),
    st.sampled_from(ZONES),
    st.dictionaries(places, st.integers(1, 3_600), max_size=40),
    st.booleans(),
    st.sampled_from((None, "-12.34", "0.01")),
    st.lists(st.integers(0, 31 * 96), max_size=6),
)
def test_days_and_ranges_sum_to_the_month_in_every_viewers_zone(
    name: str,
    declared: str,
    viewer: str,
    seconds: dict[tuple[str, str, int], int],
    committed: bool,
    adjustment: str | None,
    cuts: list[int],
) -> None:
    zone, looks_from = ZoneInfo(declared), ZoneInfo(viewer)
    month = month_of(name, zone)
    spend, slices = a_month(name, zone, seconds, (commitment(month),) if committed else (), adjustment)
    own, theirs = of_month(spend, slices, zone), of_month(spend, slices, looks_from)
    assert own.total_usd == theirs.total_usd == spend.total_usd
    assert [day.day.strftime("%Y-%m") for day in own.days] == [name] * len(own.days)
    # Any way to cut the month into ranges adds up too.
    at = [month.start, *(min(month.start + QUARTER * c, month.end) for c in sorted(cuts)), month.end]
    parts = [day_totals(slices, a, b, looks_from).total_usd for a, b in pairwise(at)]
    assert sum(parts, Decimal(0)) == spend.total_usd
    # And each part of each day: nodes, charges and adjustments.
    for found in (own, theirs):
        charged = sum((d.charges_usd for d in found.days), Decimal(0))
        assert charged == sum(
            (line.amount_usd for line in spend.lines if line.kind in ("commitment", "overhead")),
            Decimal(0),
        )


@settings(max_examples=40)
@given(st.dictionaries(places, st.integers(1, 3_600), min_size=1, max_size=200))
def test_a_day_is_within_a_cent_a_part_of_what_it_cost(
    seconds: dict[tuple[str, str, int], int],
) -> None:
    spend, slices = a_month("2026-10", UTC_ZONE, seconds)
    exact: dict[date, Decimal] = {}
    month = spend.month
    quarters = int((month.end - month.start) / QUARTER)
    totals: dict[tuple[str, str, int], Decimal] = {}
    for (pool, kind, place), s in seconds.items():  # a later one of the same quarter takes its place
        totals[pool, kind, place % quarters] = Decimal(s)
    for (_, kind, place), s in totals.items():
        day = (month.start + QUARTER * place).date()
        exact[day] = exact.get(day, Decimal(0)) + s / 3600 * PRICES[kind]
    parts = {each.part for each in slices}
    for day in of_month(spend, slices, UTC_ZONE).days:
        # a cent by the running sum, and the month's own rounding of the part
        assert abs(day.total_usd - exact.get(day.day, Decimal(0))) <= Decimal("0.02") * len(parts)


def test_the_day_of_a_viewer_at_half_past_five_is_other_hours_and_the_same_money() -> None:
    # One node up all November at 24 USD an hour: 576 USD a day, 17,280 USD.
    hours = {("a", "on_demand", n): 900 for n in range(30 * 96)}
    month = month_of("2026-11", UTC_ZONE)
    node_s = {(p, k, month.start + QUARTER * n): Decimal(s) for (p, k, n), s in hours.items()}
    spend = allocate(
        month,
        [NodeTime("a", "on_demand", Decimal(30 * 86_400), Decimal(24))],
        [],
        {},
        is_estimated=False,
    )
    costs = quarter_costs(node_s, dict.fromkeys(node_s, Decimal(24)), (), month, month.end)
    slices = in_cents(spend, costs)
    own, theirs = of_month(spend, slices, UTC_ZONE), of_month(spend, slices, KOLKATA)
    assert {day.total_usd for day in own.days} == {Decimal("576.00")}
    # 00:00 UTC is 05:30 in Kolkata: its first day lacks 5.5 hours, and 1 December has them.
    assert theirs.days[0].total_usd == Decimal("576") - Decimal("132")
    assert (theirs.days[-1].day, theirs.days[-1].total_usd) == (date(2026, 12, 1), Decimal("132.00"))
    assert own.total_usd == theirs.total_usd == spend.total_usd == Decimal(17_280)


def test_the_days_summer_time_makes_long_and_short_have_25_and_23_hours() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    for name, changed, hours in (("2026-03", 29, 23), ("2026-10", 25, 25)):
        month = month_of(name, berlin)
        quarters = int((month.end - month.start) / QUARTER)
        spend, slices = a_month(name, berlin, {("a", "spot", n): 900 for n in range(quarters)})
        by_day = {day.day.day: day.node_hours for day in of_month(spend, slices, berlin).days}
        assert by_day.pop(changed) == hours
        assert set(by_day.values()) == {24}


def test_a_range_is_of_whole_days_and_bounded() -> None:
    start, end = span_of(date(2026, 3, 29), date(2026, 3, 29), ZoneInfo("Europe/Berlin"))
    assert (start, end - start) == (datetime(2026, 3, 28, 23, tzinfo=UTC), timedelta(hours=23))
    for first, last in ((date(2026, 3, 2), date(2026, 3, 1)), (date(2026, 1, 1), date(2027, 6, 1))):
        with pytest.raises(InvalidInput, match="days"):
            span_of(first, last, UTC_ZONE)
