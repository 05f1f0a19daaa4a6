"""A month's money: what goes in, its lines, and rounding in which every level adds up to the cent.

Money is `Decimal` USD, node time seconds, use engine-seconds (time a request held a place on an engine).
How cost becomes lines stands in `fleet/allocation.py`. Prevents: cents that do not add up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, ROUND_HALF_UP, Decimal
from typing import Literal, TypeVar, get_args

from fleet.months import Month

CENT = Decimal("0.01")
SECONDS_PER_HOUR = Decimal(3600)
#: Begin the note of an adjustment by late use or late node time; the kind of line it changes follows.
LATE_USE = "late use: "
LATE_NODE_TIME = "late node time: "

Key = TypeVar("Key", bound=Hashable)
LineKind = Literal["usage", "idle", "burst", "commitment", "overhead", "adjustment"]
LINE_KINDS: tuple[LineKind, ...] = get_args(LineKind)
MonthState = Literal["not recorded", "open", "closing", "closed"]


@dataclass(frozen=True, slots=True)
class NodeTime:
    """Observed up time of a pool's nodes of one price class at one price."""

    pool: str
    price_class: str
    up_s: Decimal
    usd_per_node_hour: Decimal | None  # None: no price was in force


@dataclass(frozen=True, slots=True)
class Charge:
    """Cost that no node's up time explains: unused commitments of a pool, overhead of the platform."""

    kind: Literal["commitment", "overhead"]
    pool: str  # "" for the platform
    usd: Decimal
    note: str = ""


@dataclass(frozen=True, slots=True)
class Use:
    """Metered use of one tenant, tier and model in one pool."""

    tenant: str
    tier: str
    model: str
    pool: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    engine_s: Decimal
    kv_token_s: Decimal = Decimal(0)  # tokens held in KV cache times seconds; 0 unless the rule needs it


@dataclass(frozen=True, slots=True)
class SpendLine:
    """One line of a month. A line nobody used has no tenant, tier or model unless its cost is shared."""

    kind: LineKind
    tenant: str
    tier: str
    model: str
    pool: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    engine_s: Decimal
    node_hours: Decimal  # part of the pool's node-hours, unrounded
    amount_usd: Decimal  # whole cents; negative only in adjustments
    adjusts: str = ""  # the closed month an adjustment is for
    note: str = (
        ""  # of an adjustment: what came late and the kind of line it changes, or why it was entered
    )


def late_kind(line: SpendLine, *causes: str) -> LineKind | None:
    """Return the kind of line an adjustment by one of `causes` changes (by default any), else None."""
    for cause in causes or (LATE_USE, LATE_NODE_TIME):
        if line.kind == "adjustment" and line.note.startswith(cause):
            kind = line.note.removeprefix(cause)
            return next((known for known in LINE_KINDS if known == kind), None)
    return None


@dataclass(frozen=True, slots=True)
class MonthSpend:
    """A month's lines. `total_usd` is the sum of the lines: node cost, charges and adjustments."""

    month: Month
    method: str
    lines: tuple[SpendLine, ...]
    total_usd: Decimal
    idle_usd: Decimal
    node_hours: Decimal
    unpriced_node_hours: Decimal  # observed, but no price was in force: not in the total
    unplaced_engine_s: Decimal  # use in a pool without observed node time: not in the total
    is_estimated: bool  # the month is not over, or its data may still arrive
    state: MonthState = "open"

    @property
    def has_node_time(self) -> bool:
        """Say whether any node time is recorded. If not, what nodes cost is not 0 but not known."""
        return bool(self.state == "closed" or self.node_hours or self.unpriced_node_hours)

    @property
    def has_records(self) -> bool:
        """Say whether anything is recorded. If not, the total is not 0 but not known."""
        return self.has_node_time or bool(self.lines)


def round_to_total(amounts: Mapping[Key, Decimal], total: Decimal) -> dict[Key, Decimal]:
    """Return `amounts` (>= 0) in whole cents that sum to `total` exactly, by largest remainder.

    `total` is whole cents and within a cent of the sum per item; ties go to the smaller key's text.
    Source: Hamilton's method of apportionment.
    """
    floors = {key: amount.quantize(CENT, ROUND_FLOOR) for key, amount in amounts.items()}
    missing = int((total - sum(floors.values(), Decimal(0))) / CENT)
    by_remainder = sorted(amounts, key=lambda key: (floors[key] - amounts[key], str(key)))
    for key in by_remainder[:missing]:
        floors[key] += CENT
    return floors


def subtotals(
    lines: Sequence[SpendLine], *by: Literal["tenant", "tier", "model", "pool", "kind"]
) -> dict[tuple[str, ...], Decimal]:
    """Return the sum of amounts by the named fields; they add up to the same total at every level."""
    sums: dict[tuple[str, ...], Decimal] = defaultdict(lambda: Decimal("0.00"))
    for line in lines:
        sums[tuple(str(getattr(line, name)) for name in by)] += line.amount_usd
    return dict(sums)


def whole_cents(amount: Decimal) -> Decimal:
    """Return `amount` in whole cents, halves away from zero."""
    return amount.quantize(CENT, ROUND_HALF_UP)
