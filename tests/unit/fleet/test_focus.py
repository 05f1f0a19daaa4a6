"""FOCUS rows of a month: what the specification asks of columns, and that no cent is lost on the way."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.allocation import Rule, allocate
from fleet.focus import Issuer, Row, rows
from fleet.focus_columns import VERSIONS, FocusVersion, columns, problems
from fleet.months import month_of
from fleet.spend import LATE_USE, Charge, MonthSpend, NodeTime, SpendLine, Use

BERLIN = ZoneInfo("Europe/Berlin")
OCTOBER = month_of("2026-10", BERLIN)  # has the hour that winter time gives
HOUR = Decimal(3600)
ZERO = Decimal(0)
ISSUER = Issuer("cc-4400", "ML platform", "ML Platform", "Example Cloud")
#: Columns FOCUS 1.4 wants in every dataset, from its "Feature level: Mandatory".
MANDATORY = [
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ContractedCost",
    "EffectiveCost",
    "HostProviderName",
    "InvoiceIssuerName",
    "ListCost",
    "PricingQuantity",
    "PricingUnit",
    "ServiceCategory",
    "ServiceName",
    "ServiceProviderName",
]


def month(**changes: object) -> MonthSpend:
    """100 node-hours of h100 at 28 USD and 10 spot at 16; a quarter used; unused commitment; a platform."""
    spend = allocate(
        OCTOBER,
        [
            NodeTime("h100", "on_demand", 100 * HOUR, Decimal(28)),
            NodeTime("h100", "spot", 10 * HOUR, Decimal(16)),
        ],
        [
            Use("acme", "interactive", "llama", "h100", 10, 700, 300, 11 * HOUR),
            Use("beta", "batch", "llama", "h100", 5, 70, 30, Decimal("16.5") * HOUR),
        ],
        {"h100": 1},
        is_estimated=False,
        charges=[Charge("commitment", "h100", Decimal("123.45")), Charge("overhead", "", Decimal("77.77"))],
        rule=Rule(**changes),  # pyright: ignore[reportArgumentType]
    )
    late = SpendLine(
        "adjustment",
        "acme",
        "batch",
        "llama",
        "h100",
        1,
        2,
        3,
        ZERO,
        ZERO,
        Decimal("-4.38"),
        "2026-09",
        f"{LATE_USE}usage",  # as control.adjustments writes it
    )
    entered = SpendLine(
        "adjustment",
        "acme",
        "",
        "",
        "",
        0,
        0,
        0,
        ZERO,
        ZERO,
        Decimal("-250.00"),
        "2026-09",
        "outage of 9 September",
    )
    lines = (*spend.lines, late, entered)
    total = spend.total_usd + late.amount_usd + entered.amount_usd
    return MonthSpend(
        OCTOBER, spend.method, lines, total, spend.idle_usd, spend.node_hours, ZERO, ZERO, False, "closed"
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("share", ["apart", "proportional", "even"])
def test_every_kind_of_line_is_what_focus_asks(version: FocusVersion, share: str) -> None:
    assert problems(rows(month(share=share), ISSUER, version), version) == []


def test_the_newest_version_has_the_mandatory_columns_and_our_own_after_them() -> None:
    names = [column.name for column in columns("1.4")]
    assert set(MANDATORY) <= set(names)
    assert not {"ProviderName", "PublisherName"} & set(names)  # gone since 1.4
    own = [name.startswith("x_") for name in names]
    assert own == sorted(own)
    assert all(len(name) <= 50 for name in names)


def total(found: list[Row], column: str) -> Decimal:
    """Add a column up; every row has it, as an exact number."""
    values = [row[column] for row in found]
    assert all(isinstance(value, Decimal | int) for value in values)
    return sum((value for value in values if isinstance(value, Decimal | int)), Decimal(0))


def test_billed_cost_sums_to_the_month_and_effective_cost_too() -> None:
    # 100 x 28 + 10 x 16 + 123.45 + 77.77 - 4.38 - 250 = 2906.84
    found = rows(month(), ISSUER, "1.4")
    assert total(found, "BilledCost") == Decimal("2906.84")
    assert total(found, "EffectiveCost") == Decimal("2906.84")


def test_used_and_idle_time_of_a_pool_have_one_price_and_spot_its_own() -> None:
    found = rows(month(), ISSUER, "1.4")
    prices = {(row["SkuPriceId"], row["ListUnitPrice"]) for row in found if row["SkuPriceId"]}
    assert ("node-time/h100", Decimal(28)) in prices
    assert ("spot-node-time/h100", Decimal(16)) in prices
    hours = total([row for row in found if row["SkuId"] == "node-time/h100"], "ConsumedQuantity")
    assert hours == 100


def test_a_month_is_one_of_its_zone_written_in_utc() -> None:
    row = rows(month(), ISSUER, "1.4")[0]
    assert row["BillingPeriodStart"] == datetime(2026, 9, 30, 22, 0, tzinfo=UTC)  # summer time
    assert row["BillingPeriodEnd"] == datetime(2026, 10, 31, 23, 0, tzinfo=UTC)


def test_what_came_late_corrects_the_month_it_happened_in_on_the_next_invoice() -> None:
    late, entered = rows(month(), ISSUER, "1.4")[-2:]
    for row in (late, entered):
        assert row["ChargeClass"] == "Correction"
        assert row["ChargePeriodStart"] == datetime(2026, 8, 31, 22, 0, tzinfo=UTC)
        assert row["InvoiceId"] == "cc-4400-2026-10"
    assert (late["ChargeCategory"], entered["ChargeCategory"]) == ("Usage", "Adjustment")


def test_an_open_month_has_no_invoice_and_idle_time_no_sub_account() -> None:
    spend = month()
    open_month = MonthSpend(
        OCTOBER, spend.method, spend.lines, spend.total_usd, ZERO, spend.node_hours, ZERO, ZERO, True
    )
    found = rows(open_month, ISSUER, "1.4")
    assert {row["InvoiceId"] for row in found} == {None}
    idle = next(row for row in found if row["x_Line"] == "idle")
    assert (idle["SubAccountId"], idle["AllocatedResourceId"]) == (None, None)
    assert idle["AllocatedMethodId"] == spend.method  # the part of the split that went to nobody


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ChargeCategory", "usage", "not one of"),
        ("BillingCurrency", "usd", "not one of"),
        ("BilledCost", 1.5, "not a usd"),  # a float
        ("BilledCost", Decimal("1.005"), "not a usd"),
        ("BilledCost", Decimal("NaN"), "not a usd"),
        ("ServiceName", "", "not a text"),
        ("ServiceName", None, "is null"),
        ("BillingPeriodStart", datetime(2026, 10, 1), "not a time"),  # noqa: DTZ001
        ("BillingPeriodStart", datetime(2026, 10, 1, tzinfo=BERLIN), "not a time"),
        ("ContractedCost", Decimal("0.01"), "not price times quantity"),
        ("PricingQuantity", None, "parts of a price"),
        ("ConsumedQuantity", None, "quantity"),
        ("SubAccountName", None, "sub account"),
        ("ChargeClass", "Correction", "not of a period before"),
        ("ChargePeriodEnd", datetime(2027, 1, 1, tzinfo=UTC), "outside"),
        ("AllocatedTags", "[1]", "not a json"),
    ],
)
def test_the_check_finds_what_is_against_the_specification(name: str, value: object, said: str) -> None:
    found = rows(month(), ISSUER, "1.4")
    at = next(number for number, row in enumerate(found) if row["x_Line"] == "usage")
    found[at][name] = value  # pyright: ignore[reportArgumentType]
    wrong = problems(found, "1.4")
    assert wrong
    assert all(text.startswith(f"row {at + 1}: ") for text in wrong)
    assert any(said in text for text in wrong), wrong


def test_the_check_finds_a_column_too_many_or_out_of_order() -> None:
    found = rows(month(), ISSUER, "1.4")
    found[0] = dict(reversed(found[0].items()))
    found[1] |= {"Cost": Decimal(1)}
    assert [text[:6] for text in problems(found, "1.4")] == ["row 1:", "row 2:"]


@given(
    st.lists(
        st.tuples(st.integers(0, 10**7), st.integers(0, 10**6), st.sampled_from(["on_demand", "spot"])),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.integers(0, 10**6), max_size=6),
    st.sampled_from(["apart", "proportional", "even"]),
)
def test_any_month_keeps_its_cents_and_holds_the_specification(
    nodes: list[tuple[int, int, str]], engine_s: list[int], share: str
) -> None:
    spend = allocate(
        OCTOBER,
        [
            NodeTime(f"p{number % 2}", price_class, Decimal(up_s) / 1000, Decimal(milli) / 1000)
            for number, (up_s, milli, price_class) in enumerate(nodes)
        ],
        [
            Use(f"t{number}", "batch", "m", f"p{number % 2}", 1, 1, 1, Decimal(used) / 1000)
            for number, used in enumerate(engine_s)
        ],
        {"p0": 4, "p1": None},
        is_estimated=True,
        rule=Rule(share=share),  # pyright: ignore[reportArgumentType]
    )
    found = rows(spend, ISSUER, "1.4")
    assert problems(found, "1.4") == []
    assert total(found, "BilledCost") == spend.total_usd
