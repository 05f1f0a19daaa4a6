"""A month's node cost, allocated to tenant, tier and model so that every level adds up to the cent.

Money is `Decimal` USD, node time seconds, use engine-seconds (time a request held a place on an engine).
Rule "engine-seconds/1": a node-second of a pool has `slots` engine-seconds to give (`max_num_seqs`); what
requests held of them is theirs in proportion, the rest is the pool's idle line. Without known slots all
of a pool's cost goes to its users in proportion, and only time nobody used is idle. Amounts are rounded
once, by largest remainder. Prevents: idle smeared over tenants unseen, and cents that do not add up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, ROUND_HALF_UP, Decimal
from typing import Literal, TypeVar

from fleet.months import Month

METHOD = "engine-seconds/1"
CENT = Decimal("0.01")
SECONDS_PER_HOUR = Decimal(3600)

Key = TypeVar("Key", bound=Hashable)
LineKind = Literal["usage", "idle"]


@dataclass(frozen=True, slots=True)
class NodeTime:
    """Observed up time of a pool's nodes of one price class at one price."""

    pool: str
    price_class: str
    up_s: Decimal
    usd_per_node_hour: Decimal | None  # None: no price was in force


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


@dataclass(frozen=True, slots=True)
class SpendLine:
    """One line of a month. Idle lines have no tenant, tier or model."""

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
    amount_usd: Decimal  # whole cents


@dataclass(frozen=True, slots=True)
class MonthSpend:
    """A month's lines. `total_usd` is the sum of the lines and of the pools' rounded node cost."""

    month: Month
    method: str
    lines: tuple[SpendLine, ...]
    total_usd: Decimal
    idle_usd: Decimal
    node_hours: Decimal
    unpriced_node_hours: Decimal  # observed, but no price was in force: not in the total
    unplaced_engine_s: Decimal  # use in a pool without observed node time: not in the total
    is_estimated: bool  # the month is not over, or its data may still arrive


def allocate(
    month: Month,
    node_time: Sequence[NodeTime],
    use: Sequence[Use],
    slots: Mapping[str, int | None],
    *,
    is_estimated: bool,
) -> MonthSpend:
    """Return the month's lines. `slots` is the places on one node, by pool; None where not known.

    Lines are ordered by pool, kind, tenant, tier, model. Pure and independent of the inputs' order.
    """
    cost, hours, unpriced = _pool_costs(node_time)
    use_by_pool: dict[str, list[Use]] = defaultdict(list)
    for item in use:
        use_by_pool[item.pool].append(item)
    rounded = round_to_total(cost, _whole_cents(sum(cost.values(), Decimal(0))))
    lines: list[SpendLine] = []
    for pool in sorted(cost):
        lines += _pool_lines(pool, rounded[pool], hours[pool], use_by_pool[pool], slots.get(pool))
    unplaced = sum(
        (u.engine_s for pool, items in use_by_pool.items() if pool not in cost for u in items), Decimal(0)
    )
    return MonthSpend(
        month=month,
        method=METHOD,
        lines=tuple(lines),
        total_usd=sum(rounded.values(), Decimal("0.00")),
        idle_usd=sum((line.amount_usd for line in lines if line.kind == "idle"), Decimal("0.00")),
        node_hours=sum(hours.values(), Decimal(0)),
        unpriced_node_hours=unpriced,
        unplaced_engine_s=unplaced,
        is_estimated=is_estimated,
    )


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


def _whole_cents(amount: Decimal) -> Decimal:
    return amount.quantize(CENT, ROUND_HALF_UP)


def _pool_costs(
    node_time: Sequence[NodeTime],
) -> tuple[dict[str, Decimal], dict[str, Decimal], Decimal]:
    cost: dict[str, Decimal] = defaultdict(Decimal)
    hours: dict[str, Decimal] = defaultdict(Decimal)
    unpriced = Decimal(0)
    for item in sorted(node_time, key=lambda t: (t.pool, t.price_class, t.up_s)):
        up_hours = item.up_s / SECONDS_PER_HOUR
        if item.usd_per_node_hour is None:
            unpriced += up_hours
            continue
        cost[item.pool] += up_hours * item.usd_per_node_hour
        hours[item.pool] += up_hours
    return dict(cost), dict(hours), unpriced


def _pool_lines(
    pool: str, amount: Decimal, hours: Decimal, use: Sequence[Use], slots: int | None
) -> list[SpendLine]:
    used_s = sum((item.engine_s for item in use), Decimal(0))
    offered_s = hours * SECONDS_PER_HOUR * slots if slots else used_s
    whole_s = max(offered_s, used_s)  # clocks differ a little: never give out more than there is
    shares: dict[tuple[str, str, str], Decimal] = defaultdict(Decimal)
    counts: dict[tuple[str, str, str], tuple[int, int, int]] = defaultdict(lambda: (0, 0, 0))
    for item in use:
        key = (item.tenant, item.tier, item.model)
        shares[key] += item.engine_s
        requests, prompt, output = counts[key]
        counts[key] = (requests + item.requests, prompt + item.prompt_tokens, output + item.output_tokens)
    idle = ("", "", "")
    parts = {key: (s / whole_s if whole_s else Decimal(0)) for key, s in shares.items()}
    parts[idle] = Decimal(1) - sum(parts.values(), Decimal(0)) if whole_s else Decimal(1)
    cents = round_to_total({key: max(part, Decimal(0)) * amount for key, part in parts.items()}, amount)
    lines = [
        SpendLine("usage", *key, pool, *counts[key], shares[key], parts[key] * hours, cents[key])
        for key in sorted(shares)
    ]
    if hours:
        lines.insert(
            0, SpendLine("idle", *idle, pool, 0, 0, 0, Decimal(0), parts[idle] * hours, cents[idle])
        )
    return lines
