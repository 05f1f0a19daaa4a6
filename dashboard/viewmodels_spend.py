"""A month's spend in words: lines, subtotals that equal the total, idle as its own line, prices. Pure.

Money is Decimal USD, shown to the cent and added up by `fleet.spend`. Prevents: subtotals that do not add
up, and idle time smeared over tenants unseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Literal

from control.exports import Export, status_of
from control.prices import Price
from control.queries_spend import MonthName
from dashboard import words
from dashboard.times import Zone
from dashboard.viewmodels import Card
from dashboard.viewmodels_months import method_words
from fleet.spend import MonthSpend, SpendLine, subtotals


def cards(month: MonthSpend) -> list[Card]:
    """Return total, idle, node-hours and whether the month is final."""
    total = month.total_usd if month.has_records else None
    idle_share = float(month.idle_usd / total) if total else None
    used = subtotals(month.lines, "kind").get(("usage",), Decimal(0)) if month.has_node_time else None
    idle = month.idle_usd if month.has_node_time else None
    status = status_of(month).replace("_", " ")
    return [
        Card(
            "Spend",
            words.cents(total),
            status if month.has_records else "nothing recorded",
            "watch" if month.is_estimated else "good",
            "the month is not over, or its data may still arrive" if month.is_estimated else "",
        ),
        Card("Used by tenants", words.cents(used), "metered", "plain", method_words(month.method)),
        Card(
            "Idle",
            words.cents(idle),
            "its own line",
            "plain",
            f"{words.percent(idle_share)} of the total{_beside_idle(month)}",
        ),
        Card(
            "Node-hours",
            words.number(float(month.node_hours) if month.has_node_time else None, 4),
            "observed up",
            "plain",
            f"months begin and end in {month.month.zone}",
        ),
    ]


def _beside_idle(month: MonthSpend) -> str:
    """Return the other costs that are no tenant's use, so that the cards add up to the first one."""
    sums = subtotals(month.lines, "kind")
    others = [
        f"{words.cents(usd)} {kind}" for (kind,), usd in sums.items() if kind not in ("usage", "idle")
    ]
    return f"; beside it {', '.join(sorted(others))}" if others else ""


def _nobodys(lines: Sequence[SpendLine]) -> str:
    """Return what lines that are no tenant's are: "idle (nobody's)"; of several kinds "nobody's"."""
    kinds = {line.kind for line in lines}
    return f"{kinds.pop()} (nobody's)" if len(kinds) == 1 else "nobody's"


def line_rows(month: MonthSpend) -> dict[str, list[Any]]:
    """Return the month's lines by column, and the total as the last one."""
    lines = month.lines
    return {
        "line": [*(line.kind for line in lines), "total"],
        "tenant": [*(line.tenant or _nobodys([line]) for line in lines), ""],
        "tier": [*(words.tier(line.tier) for line in lines), ""],
        "model": [*(line.model for line in lines), ""],
        "pool": [*(line.pool for line in lines), ""],
        "requests": [
            *(_metered(line, line.requests) for line in lines),
            _counted(month, [line.requests for line in lines]),
        ],
        "prompt": [
            *(_metered(line, line.prompt_tokens) for line in lines),
            _counted(month, [line.prompt_tokens for line in lines]),
        ],
        "output": [
            *(_metered(line, line.output_tokens) for line in lines),
            _counted(month, [line.output_tokens for line in lines]),
        ],
        "hours": [*(f"{line.node_hours:,.4f}" for line in lines), _hours(month)],
        "usd": [*(words.cents(line.amount_usd) for line in lines), words.cents(_known(month))],
    }


def _known(month: MonthSpend) -> Decimal | None:
    return month.total_usd if month.has_records else None


def _counted(month: MonthSpend, values: Sequence[int]) -> int | None:
    """Return the sum of the lines, None where no line could be made of what was used."""
    return sum(values) if month.has_records and not (month.unplaced_engine_s and not values) else None


def _hours(month: MonthSpend) -> str | None:
    return f"{month.node_hours:,.4f}" if month.has_node_time else None


def _metered(line: SpendLine, value: int) -> int | None:
    return value if line.kind == "usage" else None


def subtotal_rows(month: MonthSpend, by: Literal["tenant", "tier", "model"]) -> dict[str, list[Any]]:
    """Return the subtotals by tenant, tier or model, largest first; with idle they equal the total."""
    sums = sorted(subtotals(month.lines, by).items(), key=lambda item: (-item[1], item[0]))
    total = month.total_usd
    nobodys = _nobodys([line for line in month.lines if not getattr(line, by)])
    return {
        "of": [*(_part(name, by) or nobodys for (name,), _ in sums), "total"],
        "usd": [*(words.cents(amount) for _, amount in sums), words.cents(_known(month))],
        "share": [*(_share(amount, total) for _, amount in sums), 100.0 if total else None],
    }


def _part(name: str, by: Literal["tenant", "tier", "model"]) -> str:
    """Return a name as it is: only tiers, which are ours, are written otherwise."""
    return words.tier(name) if by == "tier" else name


def _share(amount: Decimal, total: Decimal) -> float | None:
    return float(100 * amount / total) if total else None


def warnings(month: MonthSpend) -> list[str]:
    """Return what is not in the total."""
    said: list[str] = []
    if month.unpriced_node_hours:
        said.append(
            f"{month.unpriced_node_hours:,.2f} node-hours have no price and are not in the total; "
            "no export is made until they have one. Add a price below."
        )
    if month.unplaced_engine_s:
        said.append(
            f"{month.unplaced_engine_s:,.0f} engine-seconds were used in pools without observed node time "
            "and are not in the total."
        )
    return said


def export_text(export: Export, zone: Zone) -> str:
    """Return what the file will say of itself."""
    if not export.rows:
        return (
            f"`{export.file_name}`: no rows, nothing is recorded as of {zone.stamp(export.generated_at)}."
        )
    return (
        f"`{export.file_name}`: {words.plural(export.rows, 'row')}, "
        f"{words.plain(words.cents(export.total_usd))}, "
        f"sha256 `{export.sha256}`, as of {zone.stamp(export.generated_at)}. The sha256 is also the "
        "download's ETag; an estimated month changes as use arrives."
    )


def export_path(month: str, fmt: str = "csv", layout: str = "plain") -> str:
    """Return the address of the month's file."""
    return f"/exports/spend/{month}.{fmt}" + ("" if layout == "plain" else f"?layout={layout}")


def month_label(month: MonthName) -> str:
    """Return a month's name in the list."""
    return f"{month.name} (running)" if month.is_current else month.name


def price_rows(prices: Sequence[Price], zone: Zone) -> dict[str, list[Any]]:
    """Return every price ever set, newest first."""
    return {
        "class": [p.price_class.replace("_", " ") for p in prices],
        "pool": [p.pool or "all pools" for p in prices],
        "usd": [_price(p.usd_per_node_hour) for p in prices],
        "from": [zone.stamp(p.effective_from) for p in prices],
        "source": [p.source for p in prices],
        "by": [p.created_by for p in prices],
    }


def _price(usd: Decimal) -> str:
    """Return a price with cents, and with more digits where it has them."""
    short = usd.quantize(Decimal("0.01"))
    return f"{short:,}" if short == usd else f"{usd.normalize():,f}"


def start_of(day: date | None) -> datetime | None:
    """Return 00:00 UTC of a day; None stays None."""
    return None if day is None else datetime.combine(day, time(), UTC)
