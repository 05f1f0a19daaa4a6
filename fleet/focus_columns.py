"""What FOCUS asks of each column we write, and a check of rows against it.

The table is ours, written from the specification's requirements of dataset Cost and Usage (1.2 and 1.4);
the public validator knows 1.2 only and judges neither products nor allowed values. Prevents: a file that
calls itself FOCUS and that a FinOps tool refuses, or reads wrong without a word.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal

FocusVersion = Literal["1.2", "1.4"]
VERSIONS: tuple[FocusVersion, ...] = ("1.4", "1.2")
Kind = Literal["text", "usd", "price", "product", "quantity", "integer", "time", "json"]
Fields = Mapping[str, Any]

CATEGORIES = ("Usage", "Purchase", "Tax", "Credit", "Adjustment")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its kind, whether it may be null, its allowed values, and who knows it."""

    name: str
    kind: Kind = "text"
    may_be_null: bool = False
    allowed: tuple[str, ...] = ()
    versions: tuple[FocusVersion, ...] = VERSIONS


_NEW: tuple[FocusVersion, ...] = ("1.4",)
_OLD: tuple[FocusVersion, ...] = ("1.2",)
#: By name, as the specification lists them; our own (`x_`) after all of FOCUS.
_ALL = (
    Column("AllocatedMethodId", may_be_null=True, versions=_NEW),
    Column("AllocatedResourceId", may_be_null=True, versions=_NEW),
    Column("AllocatedResourceName", may_be_null=True, versions=_NEW),
    Column("AllocatedTags", "json", may_be_null=True, versions=_NEW),
    Column("BilledCost", "usd"),
    Column("BillingAccountId"),
    Column("BillingAccountName", may_be_null=True),
    Column("BillingCurrency", allowed=("USD",)),
    Column("BillingPeriodEnd", "time"),
    Column("BillingPeriodStart", "time"),
    Column("ChargeCategory", allowed=CATEGORIES),
    Column("ChargeClass", may_be_null=True, allowed=("Correction",)),
    Column("ChargeDescription", may_be_null=True),
    Column("ChargeFrequency", allowed=("One-Time", "Recurring", "Usage-Based")),
    Column("ChargePeriodEnd", "time"),
    Column("ChargePeriodStart", "time"),
    Column("ConsumedQuantity", "quantity", may_be_null=True),
    Column("ConsumedUnit", may_be_null=True),
    Column("ContractedCost", "product"),
    Column("ContractedUnitPrice", "price", may_be_null=True),
    Column("EffectiveCost", "usd"),
    Column("HostProviderName", versions=_NEW),
    Column("InvoiceId", may_be_null=True),
    Column("InvoiceIssuerName"),
    Column("ListCost", "product"),
    Column("ListUnitPrice", "price", may_be_null=True),
    Column("PricingCategory", may_be_null=True, allowed=("Standard", "Dynamic", "Committed", "Other")),
    Column("PricingQuantity", "quantity", may_be_null=True),
    Column("PricingUnit", may_be_null=True),
    Column("ProviderName", versions=_OLD),
    Column("PublisherName", versions=_OLD),
    Column("ResourceId", may_be_null=True),
    Column("ResourceName", may_be_null=True),
    Column("ResourceType", may_be_null=True),
    Column("ServiceCategory", allowed=("AI and Machine Learning",)),
    Column("ServiceName"),
    Column("ServiceProviderName", versions=_NEW),
    Column("ServiceSubcategory", allowed=("Generative AI",)),
    Column("SkuId", may_be_null=True),
    Column("SkuMeter", may_be_null=True),
    Column("SkuPriceDetails", "json", may_be_null=True),
    Column("SkuPriceId", may_be_null=True),
    Column("SubAccountId", may_be_null=True),
    Column("SubAccountName", may_be_null=True),
    Column("SubAccountType", may_be_null=True),
    Column("x_Line"),
    Column("x_Tier", may_be_null=True),
    Column("x_Model", may_be_null=True),
    Column("x_Requests", "integer"),
    Column("x_InputTokens", "integer"),
    Column("x_OutputTokens", "integer"),
    Column("x_EngineSeconds", "quantity"),
    Column("x_AllocationMethod"),
    Column("x_TimeZone"),
    Column("x_MonthState"),
)


@lru_cache(maxsize=4)
def columns(version: FocusVersion) -> tuple[Column, ...]:
    """Return the columns of a version in the order of the file."""
    return tuple(column for column in _ALL if version in column.versions)


def problems(rows: Sequence[Fields], version: FocusVersion) -> list[str]:
    """Return what in `rows` is against FOCUS, each with the row's number from 1; empty if nothing is."""
    wanted = columns(version)
    names = [column.name for column in wanted]
    found: list[str] = []
    for number, row in enumerate(rows, start=1):
        if list(row) != names:
            found.append(f"row {number}: its columns are not those of FOCUS {version}, in their order")
            continue
        said = [text for column in wanted if (text := _cell_problem(column, row[column.name]))]
        said = said or [text for text, holds in RULES if not holds(row)]
        found += [f"row {number}: {text}" for text in said]
    return found


def _cell_problem(column: Column, value: object) -> str:
    if value is None:
        return "" if column.may_be_null else f"{column.name} is null"
    if not _TYPES[column.kind](value):
        return f"{column.name} is not a {column.kind}: {str(value)[:40]!r}"
    if column.allowed and value not in column.allowed:
        return f"{column.name} is {str(value)[:40]!r}, not one of {', '.join(column.allowed)}"
    return ""


def _is_decimal(scale: int) -> Callable[[object], bool]:
    """Say whether a value is a finite `Decimal` of at most `scale` places. (A float carries artefacts.)"""

    def check(value: object) -> bool:
        if not isinstance(value, Decimal) or not value.is_finite():
            return False
        exponent = value.normalize().as_tuple().exponent
        return isinstance(exponent, int) and -exponent <= scale

    return check


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_time(value: object) -> bool:
    return isinstance(value, datetime) and value.utcoffset() == timedelta(0)


def _is_object(value: object) -> bool:
    try:
        return isinstance(value, str) and isinstance(json.loads(value), dict)
    except ValueError:
        return False


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


#: Decimal places a column may have. A product has those of its factors together.
SCALES: dict[Kind, int] = {"usd": 2, "price": 8, "quantity": 8, "product": 16}
_TYPES: dict[Kind, Callable[[object], bool]] = {
    "text": _is_text,
    "integer": _is_whole,
    "time": _is_time,
    "json": _is_object,
    **{kind: _is_decimal(scale) for kind, scale in SCALES.items()},
}


def _is_new_charge(row: Fields) -> bool:
    return row["ChargeCategory"] in ("Usage", "Purchase") and row["ChargeClass"] is None


def _together(*names: str) -> Callable[[Fields], bool]:
    """All null or none."""
    return lambda row: len({row[name] is None for name in names}) == 1


def _product(cost: str, price: str) -> Callable[[Fields], bool]:
    def holds(row: Fields) -> bool:
        if row[price] is None or row["PricingQuantity"] is None:
            return True
        return row[cost] == row[price] * row["PricingQuantity"]

    return holds


_PRICED = (
    "SkuPriceId",
    "SkuId",
    "PricingQuantity",
    "PricingUnit",
    "PricingCategory",
    "ContractedUnitPrice",
)
#: What must hold between the cells of a row, in the words of a problem when it does not.
RULES: tuple[tuple[str, Callable[[Fields], bool]], ...] = (
    ("the billing period is empty", lambda r: r["BillingPeriodStart"] < r["BillingPeriodEnd"]),
    ("the charge period is empty", lambda r: r["ChargePeriodStart"] < r["ChargePeriodEnd"]),
    (
        "a charge that corrects nothing lies outside its billing period",
        lambda r: (
            r["ChargeClass"] is not None
            or r["BillingPeriodStart"]
            <= r["ChargePeriodStart"]
            < r["ChargePeriodEnd"]
            <= r["BillingPeriodEnd"]
        ),
    ),
    (
        "a correction is not of a period before its billing period",
        lambda r: r["ChargeClass"] is None or r["ChargePeriodEnd"] <= r["BillingPeriodStart"],
    ),
    (
        "a purchase is Usage-Based",
        lambda r: r["ChargeCategory"] != "Purchase" or r["ChargeFrequency"] != "Usage-Based",
    ),
    ("a charge has no price", lambda r: not _is_new_charge(r) or r["SkuPriceId"] is not None),
    ("parts of a price are missing", _together(*_PRICED, "ListUnitPrice")),
    ("SkuMeter is without SkuId", _together("SkuId", "SkuMeter")),
    ("ListCost is not price times quantity", _product("ListCost", "ListUnitPrice")),
    ("ContractedCost is not price times quantity", _product("ContractedCost", "ContractedUnitPrice")),
    (
        "use has no quantity",
        lambda r: (
            r["ChargeCategory"] != "Usage"
            or r["ChargeClass"] is not None
            or r["ConsumedQuantity"] is not None
        ),
    ),
    (
        "what is not use has a consumed quantity",
        lambda r: r["ChargeCategory"] == "Usage" or r["ConsumedQuantity"] is None,
    ),
    ("ConsumedUnit and ConsumedQuantity stand apart", _together("ConsumedQuantity", "ConsumedUnit")),
    ("parts of the sub account are missing", _together("SubAccountId", "SubAccountName", "SubAccountType")),
    ("a resource has no name or type", _together("ResourceId", "ResourceName", "ResourceType")),
    (
        "a charge is allocated without a method",
        lambda r: r.get("AllocatedResourceId") is None or r["AllocatedMethodId"] is not None,
    ),
)
