"""Money adds up: lines to pools, pools to the month, at every level, to the cent."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.allocation import allocate
from fleet.errors import InvalidInput
from fleet.months import month_at, month_of, quarter_of
from fleet.spend import NodeTime, SpendLine, Use, round_to_total, subtotals

UTC_ZONE = ZoneInfo("UTC")
NOVEMBER = month_of("2026-11", UTC_ZONE)


def use(tenant: str, engine_s: str, *, tier: str = "interactive", model: str = "m", pool: str = "a") -> Use:
    return Use(tenant, tier, model, pool, 1, 10, 20, Decimal(engine_s))


def hours(
    count: str, price: str | None = "28", *, pool: str = "a", price_class: str = "on_demand"
) -> NodeTime:
    return NodeTime(pool, price_class, Decimal(count) * 3600, None if price is None else Decimal(price))


def amounts(lines: tuple[SpendLine, ...]) -> dict[str, Decimal]:
    return {line.tenant or "idle": line.amount_usd for line in lines}


def test_use_pays_for_the_slots_it_held_and_idle_is_its_own_line() -> None:
    # 10 node-hours at 28 = 280 USD; 4 slots a node = 144,000 engine-seconds to give.
    # acme held 36,000 (a quarter: 70 USD), beta 14,400 (a tenth: 28 USD); the rest, 182 USD, is idle.
    spend = allocate(
        NOVEMBER, [hours("10")], [use("acme", "36000"), use("beta", "14400")], {"a": 4}, is_estimated=False
    )
    assert amounts(spend.lines) == {
        "idle": Decimal("182.00"),
        "acme": Decimal("70.00"),
        "beta": Decimal("28.00"),
    }
    assert spend.total_usd == Decimal("280.00")
    assert spend.idle_usd == Decimal("182.00")


def test_without_known_slots_users_share_all_of_it() -> None:
    spend = allocate(
        NOVEMBER, [hours("10")], [use("acme", "30"), use("beta", "10")], {"a": None}, is_estimated=False
    )
    assert amounts(spend.lines) == {
        "idle": Decimal("0.00"),
        "acme": Decimal("210.00"),
        "beta": Decimal("70.00"),
    }


def test_a_pool_nobody_used_is_all_idle() -> None:
    spend = allocate(NOVEMBER, [hours("2", "6", price_class="spot")], [], {"a": 256}, is_estimated=True)
    assert amounts(spend.lines) == {"idle": Decimal("12.00")}


def test_a_missing_price_is_said_and_never_counts_as_free() -> None:
    spend = allocate(
        NOVEMBER, [hours("3", None), hours("1")], [use("acme", "5")], {"a": 4}, is_estimated=True
    )
    assert spend.unpriced_node_hours == 3
    assert spend.total_usd == Decimal("28.00")


def test_use_without_node_time_is_said_and_not_charged() -> None:
    spend = allocate(NOVEMBER, [hours("1")], [use("acme", "7", pool="gone")], {"a": 4}, is_estimated=True)
    assert spend.unplaced_engine_s == 7
    assert amounts(spend.lines) == {"idle": Decimal("28.00")}


def test_three_equal_users_of_a_dollar_lose_no_cent() -> None:
    # 1.00 / 3 = 0.333...: two pay 0.33 and one 0.34.
    spend = allocate(NOVEMBER, [hours("1", "1")], [use(t, "10") for t in "xyz"], {}, is_estimated=False)
    paid = sorted(line.amount_usd for line in spend.lines if line.kind == "usage")
    assert paid == [Decimal("0.33"), Decimal("0.33"), Decimal("0.34")]


money = st.decimals(min_value=0, max_value=10**6, places=6, allow_nan=False)
names = st.sampled_from(["acme", "beta", "gamma", "delta"])
uses = st.builds(
    Use,
    tenant=names,
    tier=st.sampled_from(["interactive", "batch"]),
    model=st.sampled_from(["m", "n"]),
    pool=st.sampled_from(["a", "b"]),
    requests=st.integers(0, 10**6),
    prompt_tokens=st.integers(0, 10**9),
    output_tokens=st.integers(0, 10**9),
    engine_s=st.decimals(min_value=0, max_value=10**7, places=3, allow_nan=False),
)
times = st.builds(
    NodeTime,
    pool=st.sampled_from(["a", "b"]),
    price_class=st.sampled_from(["on_demand", "spot"]),
    up_s=st.decimals(min_value=0, max_value=10**7, places=3, allow_nan=False),
    usd_per_node_hour=st.one_of(st.none(), money),
)
slot_counts = st.fixed_dictionaries({"a": st.one_of(st.none(), st.integers(1, 512)), "b": st.just(256)})


@given(st.lists(times, max_size=8), st.lists(uses, max_size=12), slot_counts)
def test_every_level_adds_up_to_the_month(
    node_time: list[NodeTime], used: list[Use], slots: dict[str, int | None]
) -> None:
    spend = allocate(NOVEMBER, node_time, used, slots, is_estimated=True)
    exact = sum(
        (t.up_s / 3600 * t.usd_per_node_hour for t in node_time if t.usd_per_node_hour is not None),
        Decimal(0),
    )
    assert abs(spend.total_usd - exact) <= Decimal("0.0051")
    assert all(line.amount_usd >= 0 and line.amount_usd.as_tuple().exponent == -2 for line in spend.lines)
    for by in (("tenant",), ("tier",), ("model",), ("pool", "kind"), ("tenant", "tier", "model", "pool")):
        assert sum(subtotals(spend.lines, *by).values(), Decimal(0)) == spend.total_usd  # type: ignore[arg-type]


@given(st.lists(times, max_size=6), st.lists(uses, max_size=8), st.randoms())
def test_the_order_of_records_changes_nothing(node_time: list[NodeTime], used: list[Use], random) -> None:
    before = allocate(NOVEMBER, node_time, used, {"a": 8, "b": 8}, is_estimated=True)
    random.shuffle(node_time)
    random.shuffle(used)
    after = allocate(NOVEMBER, node_time, used, {"a": 8, "b": 8}, is_estimated=True)
    assert [(line.tenant, line.pool, line.amount_usd) for line in before.lines] == [
        (line.tenant, line.pool, line.amount_usd) for line in after.lines
    ]


def test_rounding_gives_the_cents_to_the_largest_remainders() -> None:
    rounded = round_to_total(
        {"a": Decimal("0.339"), "b": Decimal("0.331"), "c": Decimal("0.330")}, Decimal("1.00")
    )
    assert rounded == {"a": Decimal("0.34"), "b": Decimal("0.33"), "c": Decimal("0.33")}


def test_months_have_their_own_length_in_their_own_zone() -> None:
    assert (month_of("2026-02", UTC_ZONE).end - month_of("2026-02", UTC_ZONE).start).days == 28
    assert (month_of("2028-02", UTC_ZONE).end - month_of("2028-02", UTC_ZONE).start).days == 29
    # New York leaves daylight saving on 1 November 2026 at 02:00: that month has 30 days and an hour.
    november = month_of("2026-11", ZoneInfo("America/New_York"))
    assert (november.end - november.start).total_seconds() == 30 * 86_400 + 3_600
    # UTC+5:30: the month begins at 18:30 UTC of the day before, on a quarter-hour.
    india = month_of("2026-11", ZoneInfo("Asia/Kolkata"))
    assert india.start == datetime(2026, 10, 31, 18, 30, tzinfo=UTC)
    assert quarter_of(india.start) == india.start


def test_an_instant_belongs_to_the_month_of_the_declared_zone() -> None:
    at = datetime(2026, 10, 31, 19, 0, tzinfo=UTC)
    assert month_at(at, UTC_ZONE).name == "2026-10"
    assert month_at(at, ZoneInfo("Asia/Kolkata")).name == "2026-11"
    assert month_of("2026-12", UTC_ZONE).end == datetime(2027, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("name", ["2026-13", "2026-1", "26-01", "", "2026-11-01", "0001-01", "2026-11\n"])
def test_what_is_not_a_month_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="is not a month"):
        month_of(name, UTC_ZONE)
