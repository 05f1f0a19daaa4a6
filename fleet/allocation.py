"""How a month's cost becomes lines: use pays for what it held, the rest stands apart or is shared by rule.

Money is `Decimal` USD. A node-second of a pool has `slots` engine-seconds to give (`max_num_seqs`); what
requests held of them is used, the rest is the pool's idle line. The used part is divided by the rule's
basis. Spot nodes beside nodes of another class are the pool's burst line. Without known slots all is used.
Amounts are rounded once, by largest remainder. Prevents: idle smeared over tenants unseen, a rule nobody
can name afterwards, and cents that do not add up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from fleet.months import Month
from fleet.spend import (
    SECONDS_PER_HOUR,
    Charge,
    LineKind,
    MonthSpend,
    NodeTime,
    SpendLine,
    Use,
    round_to_total,
    whole_cents,
)

Basis = Literal["engine_seconds", "tokens", "kv_token_seconds"]
Share = Literal["apart", "proportional", "even"]
Who = tuple[str, str, str]  # tenant, tier, model
NOBODY: Who = ("", "", "")
#: Engine-seconds of an output token over those of a prompt token at a usual operating point: each output
#: token takes alpha / batch + beta, a prompt token gamma (12 ms, 0.1 ms, 12 us at a batch of 256).
OUTPUT_WEIGHT = Decimal(12)
ZERO = Decimal(0)


@dataclass(frozen=True, slots=True)
class Rule:
    """By what the used part is divided, and what becomes of cost that nobody's use explains."""

    basis: Basis = "engine_seconds"
    share: Share = "apart"
    output_weight: Decimal = OUTPUT_WEIGHT  # of `tokens`: what an output token counts, a prompt token 1

    @property
    def method(self) -> str:
        """Return the rule in words, as every line of a file carries it."""
        weight = f" output x{self.output_weight.normalize():f}" if self.basis == "tokens" else ""
        share = "" if self.share == "apart" else f", unused shared {self.share}"
        return f"{self.basis.replace('_', '-')}/1{weight}{share}"

    def weight(self, use: Use) -> Decimal:
        """Return what `use` counts."""
        if self.basis == "tokens":
            return use.prompt_tokens + use.output_tokens * self.output_weight
        return use.kv_token_s if self.basis == "kv_token_seconds" else use.engine_s


@dataclass(slots=True)
class _Pool:
    """What one pool cost and who used it."""

    usd: dict[LineKind, Decimal]  # "usage" is what nodes cost before idle is told apart
    hours: dict[LineKind, Decimal]
    use: dict[Who, Use]


def allocate(
    month: Month,
    node_time: Sequence[NodeTime],
    use: Sequence[Use],
    slots: Mapping[str, int | None],
    *,
    is_estimated: bool,
    charges: Sequence[Charge] = (),
    rule: Rule | None = None,
) -> MonthSpend:
    """Return the month's lines. `slots` is the places on one node, by pool; None where not known.

    Lines are ordered by pool, kind, tenant, tier, model. Pure and independent of the inputs' order.
    """
    rule = rule or Rule()
    pools, unpriced = _pools(node_time, charges)
    unplaced = ZERO
    for item in use:
        if item.pool in pools and pools[item.pool].hours:
            _add_use(pools[item.pool].use, item)
        else:
            unplaced += item.engine_s
    exact = {(name, kind): usd for name, pool in pools.items() for kind, usd in pool.usd.items()}
    cents = round_to_total(exact, whole_cents(sum(exact.values(), ZERO)))
    notes = {(c.pool, c.kind): c.note for c in charges}
    lines: list[SpendLine] = []
    for name, pool in pools.items():
        if name:
            lines += _pool_lines(name, pool, {k: cents[name, k] for k in pool.usd}, slots.get(name), rule)
    if ("", "overhead") in cents:
        everybody = _by_amount(lines)
        lines += _apart("overhead", "", cents["", "overhead"], ZERO, everybody, rule.share)
    lines = [_noted(line, notes.get((line.pool, line.kind), "")) for line in lines]
    lines.sort(key=lambda line: (line.pool, line.kind, line.tenant, line.tier, line.model))
    return MonthSpend(
        month=month,
        method=rule.method,
        lines=tuple(lines),
        total_usd=sum(cents.values(), Decimal("0.00")),
        idle_usd=sum((line.amount_usd for line in lines if line.kind == "idle"), Decimal("0.00")),
        node_hours=sum((h for pool in pools.values() for h in pool.hours.values()), ZERO),
        unpriced_node_hours=unpriced,
        unplaced_engine_s=unplaced,
        is_estimated=is_estimated,
    )


def _pools(node_time: Sequence[NodeTime], charges: Sequence[Charge]) -> tuple[dict[str, _Pool], Decimal]:
    """Return pools with their cost by kind, by name, and node-hours without a price."""
    own = {t.pool for t in node_time if t.price_class != "spot" and t.up_s}
    pools: dict[str, _Pool] = defaultdict(lambda: _Pool(defaultdict(Decimal), defaultdict(Decimal), {}))
    unpriced = ZERO
    for item in sorted(
        node_time, key=lambda t: (t.pool, t.price_class, t.usd_per_node_hour or ZERO, t.up_s)
    ):
        hours = item.up_s / SECONDS_PER_HOUR
        if item.usd_per_node_hour is None:
            unpriced += hours
            continue
        kind: LineKind = "burst" if item.price_class == "spot" and item.pool in own else "usage"
        pools[item.pool].usd[kind] += hours * item.usd_per_node_hour
        pools[item.pool].hours[kind] += hours
    for charge in sorted(charges, key=lambda c: (c.pool, c.kind, c.usd)):
        pools[charge.pool].usd[charge.kind] += charge.usd
    return dict(sorted(pools.items())), unpriced


def _add_use(sums: dict[Who, Use], item: Use) -> None:
    who = (item.tenant, item.tier, item.model)
    had = sums.get(who)
    if had is None:
        sums[who] = item
        return
    sums[who] = Use(
        *who,
        item.pool,
        had.requests + item.requests,
        had.prompt_tokens + item.prompt_tokens,
        had.output_tokens + item.output_tokens,
        had.engine_s + item.engine_s,
        had.kv_token_s + item.kv_token_s,
    )


def _pool_lines(
    name: str, pool: _Pool, cents: Mapping[LineKind, Decimal], slots: int | None, rule: Rule
) -> list[SpendLine]:
    weights = {who: rule.weight(item) for who, item in pool.use.items()}
    lines: list[SpendLine] = []
    idle_cents, idle_hours = Decimal("0.00"), ZERO
    if pool.hours:
        hours, amount = pool.hours.get("usage", ZERO), cents.get("usage", Decimal("0.00"))
        parts = _used_parts(weights, pool, slots)
        left = max(Decimal(1) - sum(parts.values(), ZERO), ZERO)
        exact = {who: part * amount for who, part in parts.items()} | {NOBODY: left * amount}
        rounded = round_to_total(exact, amount)
        lines += [
            SpendLine("usage", *who, name, *_counts(pool.use[who]), parts[who] * hours, rounded[who])
            for who in parts
        ]
        idle_cents, idle_hours = rounded[NOBODY], left * hours
        lines += _apart("idle", name, idle_cents, idle_hours, weights, rule.share)
    for kind in ("burst", "commitment"):
        if kind in cents:
            lines += _apart(kind, name, cents[kind], pool.hours.get(kind, ZERO), weights, rule.share)
    return lines


def _used_parts(weights: Mapping[Who, Decimal], pool: _Pool, slots: int | None) -> dict[Who, Decimal]:
    """Return each user's part (0..1) of what the pool's nodes cost."""
    used_s = sum((item.engine_s for item in pool.use.values()), ZERO)
    offered_s = sum(pool.hours.values(), ZERO) * SECONDS_PER_HOUR * slots if slots else used_s
    whole_s = max(offered_s, used_s)  # clocks differ a little: never give out more than there is
    whole = sum(weights.values(), ZERO)
    if not whole or not whole_s:
        return dict.fromkeys(sorted(weights), ZERO)
    return {who: weights[who] * used_s / (whole * whole_s) for who in sorted(weights)}


def _counts(item: Use) -> tuple[int, int, int, Decimal]:
    return item.requests, item.prompt_tokens, item.output_tokens, item.engine_s


def _apart(
    kind: LineKind,
    pool: str,
    cents: Decimal,
    hours: Decimal,
    weights: Mapping[Who, Decimal],
    share: Share,
) -> list[SpendLine]:
    """Return the lines of cost that nobody's use explains: one of nobody, or one of each who shares it."""
    parts = _SHARES[share](weights) or {NOBODY: Decimal(1)}
    rounded = round_to_total({who: part * cents for who, part in parts.items()}, cents)
    return [SpendLine(kind, *who, pool, 0, 0, 0, ZERO, parts[who] * hours, rounded[who]) for who in parts]


def _nobody(_weights: Mapping[Who, Decimal]) -> dict[Who, Decimal]:
    return {}


def _proportional(weights: Mapping[Who, Decimal]) -> dict[Who, Decimal]:
    whole = sum(weights.values(), ZERO)
    return {who: weights[who] / whole for who in sorted(weights)} if whole else {}


def _even(weights: Mapping[Who, Decimal]) -> dict[Who, Decimal]:
    """Return equal parts for each tenant, within a tenant in proportion to its use."""
    by_tenant: dict[str, dict[Who, Decimal]] = defaultdict(dict)
    for who, weight in weights.items():
        if weight:
            by_tenant[who[0]][who] = weight
    return {
        who: part / len(by_tenant)
        for tenant in sorted(by_tenant)
        for who, part in _proportional(by_tenant[tenant]).items()
    }


_SHARES: dict[Share, Callable[[Mapping[Who, Decimal]], dict[Who, Decimal]]] = {
    "apart": _nobody,
    "proportional": _proportional,
    "even": _even,
}


def _by_amount(lines: Iterable[SpendLine]) -> dict[Who, Decimal]:
    sums: dict[Who, Decimal] = defaultdict(Decimal)
    for line in lines:
        if line.kind == "usage":
            sums[line.tenant, line.tier, line.model] += line.amount_usd
    return sums


def _noted(line: SpendLine, note: str) -> SpendLine:
    return replace(line, note=note) if note else line
