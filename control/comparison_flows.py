"""Whose requests a comparison's traffic is: tiers, their weights of contention, tenants in them.

Shares are ratios of all requests for tiers, of its tier's requests for a tenant, so that a tier's share may
change without its tenants; weights are the policy's. Prevents: refusals divided by weights that no gateway
has, and a list of tenants that no address can hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from fleet.errors import InvalidInput
from fleet.refusal_split import TIER_WEIGHTS, Flow

#: Tenants told apart in a tier; whoever is left goes together as one more.
MOST_TENANTS = 20
MAX_NAME = 80
_TIERS_HINT = 'Give each tier\'s share of requests, as {"interactive": 0.6, "batch": 0.4}'
_WEIGHTS_HINT = 'Give each tier\'s weight, as {"interactive": 70, "batch": 25, "best_effort": 5}'
_TENANTS_HINT = 'Give shares of the tier and weights, as {"batch": {"acme": [0.8, 1], "beta": [0.2, 1]}}'


@dataclass(frozen=True, slots=True)
class Flows:
    """Flows as read, and the three parts of a document written out."""

    flows: tuple[Flow, ...]
    tiers: dict[str, float]
    weights: dict[str, float]
    tenants: dict[str, dict[str, list[float]]]  # tier -> tenant -> share of the tier, weight


def read_flows(tiers: Any, weights: Any, tenants: Any) -> Flows:
    """Return the flows that a document's parts describe; shares are scaled to add up to exactly 1.

    A tenant's value is its share of the tier, or that and its weight. Raises InvalidInput with the JSON
    pointer of the first fault.
    """
    shares = _scaled(_by_tier(tiers, "/tiers", _TIERS_HINT, 0.0, 1.0), "/tiers", _TIERS_HINT)
    heavy = _by_tier(weights, "/weights", _WEIGHTS_HINT, 1e-3, 1e6)
    missing = next((tier for tier in shares if tier not in heavy), None)
    if missing is not None:
        raise InvalidInput(f"/weights has none for {missing}", field="/weights", hint=_WEIGHTS_HINT)
    within = _tenants(tenants, shares)
    flows: list[Flow] = []
    for tier, share in shares.items():
        named = within.get(tier) or {"": [1.0, 1.0]}
        flows += [Flow(name, tier, share * part, weight) for name, (part, weight) in named.items()]
    return Flows(tuple(flows), shares, heavy, within)


def _tenants(given: Any, tiers: Mapping[str, float]) -> dict[str, dict[str, list[float]]]:
    """Tenants of each tier, those with most requests first, whoever is left last."""
    found: dict[str, dict[str, list[float]]] = {}
    for tier, named in _object(given, "/tenants", _TENANTS_HINT).items():
        at = f"/tenants/{tier[:40]}"
        if tier not in tiers:
            raise InvalidInput(
                f"{at}: /tiers has no such tier", field=at, hint=f"Tiers: {', '.join(tiers)}"
            )
        parts = {name: _part(name, value, at) for name, value in _object(named, at, _TENANTS_HINT).items()}
        if not 1 <= len(parts) <= MOST_TENANTS:
            raise InvalidInput(f"{at} has {len(parts)} tenants", field=at, hint=f"Give 1 to {MOST_TENANTS}")
        shares = _scaled({name: part[0] for name, part in parts.items()}, at, _TENANTS_HINT)
        order = sorted(shares, key=lambda name: (is_rest(name), -shares[name], name))
        found[tier] = {name: [shares[name], parts[name][1]] for name in order}
    return {tier: found[tier] for tier in tiers if tier in found}


def rest(count: int) -> str:
    """Return what tenants are called that are not told apart. No tenant's name has a space."""
    return f"{count} others"


def is_rest(name: str) -> bool:
    """Say whether a name stands for those that are not told apart."""
    return " " in name


def _part(name: str, value: Any, at: str) -> list[float]:
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise InvalidInput(
            f"{at} names a tenant {name[:40]!r}", field=at, hint=f"1 to {MAX_NAME} characters"
        )
    pair = cast("list[Any]", value) if isinstance(value, list) else [value, 1.0]
    if len(pair) != 2:
        raise InvalidInput(f"{at}/{name} has {len(pair)} numbers", field=at, hint=_TENANTS_HINT)
    return [_number(pair[0], f"{at}/{name}", 0.0, 1.0), _number(pair[1], f"{at}/{name}", 1e-3, 1e6)]


def _by_tier(given: Any, at: str, hint: str, low: float, high: float) -> dict[str, float]:
    named = _object(given, at, hint)
    unknown = next((name for name in named if name not in TIER_WEIGHTS), None)
    if unknown is not None:
        known = ", ".join(TIER_WEIGHTS)
        raise InvalidInput(
            f"there is no tier {unknown[:40]!r}", field=f"{at}/{unknown[:40]}", hint=f"Tiers: {known}"
        )
    if not named:
        raise InvalidInput(f"{at} is empty", field=at, hint=hint)
    return {tier: _number(named[tier], f"{at}/{tier}", low, high) for tier in TIER_WEIGHTS if tier in named}


def _object(given: Any, at: str, hint: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise InvalidInput(f"{at} is {given!r}"[:200], field=at, hint=hint)
    return cast("dict[str, Any]", given)


def _scaled(shares: Mapping[str, float], at: str, hint: str) -> dict[str, float]:
    total = sum(shares.values())
    if not 0.99 <= total <= 1.01:
        raise InvalidInput(f"the shares in {at} add up to {total:g}", field=at, hint=hint)
    scale = 1.0 if math.isclose(total, 1.0, abs_tol=1e-9) else total  # reading twice must change nothing
    return {name: share / scale for name, share in shares.items()}


def _number(value: Any, pointer: str, low: float, high: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        raise InvalidInput(
            f"{pointer} is {value!r}"[:200], field=pointer, hint=f"Give a number from {low:g} to {high:g}"
        )
    return float(value)
