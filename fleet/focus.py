"""A month's lines as rows of FOCUS, the FinOps Open Cost and Usage Specification.

USD as `Decimal`; times UTC, ends not included; None is null. Cents stand in BilledCost, which sums to the
month; ContractedCost is the unit price times the quantity, unrounded. What the columns must hold stands in
`fleet/focus_columns.py`. Prevents: a chargeback file in which price times quantity is not the cost, and a
correction that finance's tool takes for new use.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_HALF_EVEN, Decimal
from zoneinfo import ZoneInfo

from fleet.focus_columns import FocusVersion, columns
from fleet.months import Month, month_of
from fleet.spend import LineKind, MonthSpend, SpendLine, late_kind

Value = str | int | Decimal | datetime | None
Row = dict[str, Value]

PRICE_STEP = Decimal("0.00000001")
QUANTITY_STEP = Decimal("0.000001")
ZERO = Decimal(0)
SERVICE = "LLM Inference"
HOURS, MONTHS = "Node-Hours", "Months"
#: Kind of line -> category, frequency, pricing category, meter, what it is.
_KINDS: dict[LineKind, tuple[str, str, str | None, str, str]] = {
    "usage": ("Usage", "Usage-Based", "Standard", "Node Time", "Node time used"),
    "idle": ("Usage", "Usage-Based", "Standard", "Node Time", "Node time nobody used"),
    "burst": ("Usage", "Usage-Based", "Dynamic", "Spot Node Time", "Node time of spot nodes"),
    "commitment": (
        "Purchase",
        "Recurring",
        "Standard",
        "Committed Nodes",
        "Committed nodes that did not run",
    ),
    "overhead": ("Purchase", "Recurring", "Standard", "Platform", "The platform itself"),
    "adjustment": ("Adjustment", "One-Time", None, "", "Correction"),
}


@dataclass(frozen=True, slots=True)
class Issuer:
    """Who charges whom: the account that pays for the fleet, and who runs it on whose machines."""

    account_id: str = "rhodeck"
    account_name: str = "Rhodeck"
    provider: str = "Rhodeck"
    host: str = "Rhodeck"  # of the machines; the provider itself where that is not told


@dataclass(frozen=True, slots=True)
class Price:
    """What a unit of one pool's and meter's charge cost in the month."""

    unit: str
    usd: Decimal
    hours: bool  # quantity is the line's node-hours, else its part of one month

    def quantity(self, line: SpendLine) -> Decimal:
        """Return how many units `line` is."""
        if self.hours:
            return line.node_hours.quantize(QUANTITY_STEP, ROUND_HALF_EVEN)
        return (line.amount_usd / self.usd if self.usd else ZERO).quantize(PRICE_STEP, ROUND_HALF_EVEN)


def rows(spend: MonthSpend, issuer: Issuer, version: FocusVersion) -> list[Row]:
    """Return the month's rows in the order of its lines, each with the columns of `version` in their order.

    An invoice number only for a closed month. Source: FOCUS, dataset Cost and Usage.
    """
    prices = _prices(spend.lines)
    names = [column.name for column in columns(version)]
    found: list[Row] = []
    for line in spend.lines:
        full = _common(spend, issuer) | _charge(spend, line) | _who(spend, line) | _own(spend, line)
        if line.kind != "adjustment":
            full |= _priced(line, prices[_sku(line)])
        found.append({name: full.get(name) for name in names})
    return found


def _sku(line: SpendLine) -> str:
    """Return the meter a line is charged by: one for used and idle time of a pool, the same each month."""
    meter = {"usage": "node-time", "idle": "node-time", "burst": "spot-node-time"}.get(line.kind, line.kind)
    return f"{meter}/{line.pool}" if line.pool else meter


def _prices(lines: Sequence[SpendLine]) -> dict[str, Price]:
    usd: dict[str, Decimal] = defaultdict(Decimal)
    hours: dict[str, Decimal] = defaultdict(Decimal)
    for line in lines:
        usd[_sku(line)] += line.amount_usd
        hours[_sku(line)] += line.node_hours
    return {
        sku: Price(HOURS, (total / hours[sku]).quantize(PRICE_STEP, ROUND_HALF_EVEN), True)
        if hours[sku] >= QUANTITY_STEP
        else Price(MONTHS, total, False)
        for sku, total in usd.items()
    }


def _common(spend: MonthSpend, issuer: Issuer) -> Row:
    is_closed = spend.state == "closed"
    return {
        "BillingAccountId": issuer.account_id,
        "BillingAccountName": issuer.account_name,
        "BillingCurrency": "USD",
        "BillingPeriodStart": spend.month.start,
        "BillingPeriodEnd": spend.month.end,
        "InvoiceId": f"{issuer.account_id}-{spend.month.name}" if is_closed else None,
        "InvoiceIssuerName": issuer.provider,
        "ServiceProviderName": issuer.provider,
        "HostProviderName": issuer.host,
        "ProviderName": issuer.provider,
        "PublisherName": issuer.provider,
        "ServiceCategory": "AI and Machine Learning",
        "ServiceSubcategory": "Generative AI",
        "ServiceName": SERVICE,
    }


def _charge(spend: MonthSpend, line: SpendLine) -> Row:
    category, frequency, pricing, meter, words = _KINDS[_kind_of(line)]
    period: Month = spend.month
    description = words + (f" in pool {line.pool}" if line.pool else "")
    if line.adjusts:
        period = month_of(line.adjusts, ZoneInfo(spend.month.zone))
        description = f"Correction of {line.adjusts}: {line.note or words}"
    return {
        "BilledCost": line.amount_usd,
        "EffectiveCost": line.amount_usd,
        "ListCost": line.amount_usd,
        "ContractedCost": line.amount_usd,
        "ChargeCategory": category,
        "ChargeClass": "Correction" if line.adjusts else None,
        "ChargeDescription": description,
        "ChargeFrequency": frequency,
        "ChargePeriodStart": period.start,
        "ChargePeriodEnd": period.end,
        "PricingCategory": None if line.kind == "adjustment" else pricing,
        "SkuMeter": None if line.kind == "adjustment" else meter,
        "ResourceId": f"pool/{line.pool}" if line.pool else None,
        "ResourceName": line.pool or None,
        "ResourceType": "Node Pool" if line.pool else None,
    }


def _kind_of(line: SpendLine) -> LineKind:
    """Return the kind of line an adjustment changes; a correction somebody entered stays an adjustment."""
    return late_kind(line) or line.kind


def _who(spend: MonthSpend, line: SpendLine) -> Row:
    """Return whose charge it is. The part of a pool that is allocated to nobody has only the method."""
    is_split = bool(line.pool) or bool(line.tenant)
    who = "/".join(part for part in (line.tenant, line.tier, line.model) if part)
    tags = {"rhodeck/tier": line.tier, "rhodeck/model": line.model}
    return {
        "SubAccountId": line.tenant or None,
        "SubAccountName": line.tenant or None,
        "SubAccountType": "Tenant" if line.tenant else None,
        "AllocatedMethodId": spend.method if is_split else None,
        "AllocatedResourceId": (who or None) if line.tenant else None,
        "AllocatedResourceName": (who or None) if line.tenant else None,
        "AllocatedTags": _json({k: v for k, v in tags.items() if v}) if line.tenant else None,
    }


def _priced(line: SpendLine, price: Price) -> Row:
    sku, quantity = _sku(line), price.quantity(line)
    is_use = _KINDS[line.kind][0] == "Usage"
    cost = price.usd * quantity
    return {
        "SkuId": sku,
        "SkuPriceId": sku,
        "SkuPriceDetails": _json({"x_Pool": line.pool}) if line.pool else None,
        "PricingQuantity": quantity,
        "PricingUnit": price.unit,
        "ConsumedQuantity": quantity if is_use else None,
        "ConsumedUnit": price.unit if is_use else None,
        "ListUnitPrice": price.usd,
        "ContractedUnitPrice": price.usd,
        "ListCost": cost,
        "ContractedCost": cost,
    }


def _own(spend: MonthSpend, line: SpendLine) -> Row:
    return {
        "x_Line": line.kind,
        "x_Tier": line.tier or None,
        "x_Model": line.model or None,
        "x_Requests": line.requests,
        "x_InputTokens": line.prompt_tokens,
        "x_OutputTokens": line.output_tokens,
        "x_EngineSeconds": line.engine_s.quantize(QUANTITY_STEP, ROUND_HALF_EVEN),
        "x_AllocationMethod": spend.method,
        "x_TimeZone": spend.month.zone,
        "x_MonthState": spend.state,
    }


def _json(fields: Mapping[str, str]) -> str | None:
    return json.dumps(dict(fields), ensure_ascii=False, sort_keys=True) if fields else None
