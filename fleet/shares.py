"""Splitting a whole number into whole parts that add up to it exactly.

Used for quotas over gateways: parts and totals are counts. Prevents: rounding that hands out more than a
quota, or loses a token at each gateway.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from fleet.errors import InvalidInput


def split(total: int, weights: Sequence[int]) -> tuple[int, ...]:
    """Return parts of `total` (>= 0) in proportion to `weights` (>= 0, not all 0); they sum to `total`.

    Each part is its exact share rounded down or up. The units left over go to the largest remainders, ties
    to the earlier place. Raises InvalidInput. Source: largest remainder method (Hamilton, 1792).
    """
    if total < 0 or any(weight < 0 for weight in weights):
        raise InvalidInput(f"cannot split {total} by {list(weights)}: negative", hint="Use counts >= 0")
    whole = sum(weights)
    if whole == 0:
        raise InvalidInput(f"cannot split {total} among weights that sum to 0", hint="Give one a weight")
    exact = [Fraction(total * weight, whole) for weight in weights]
    parts = [int(share) for share in exact]
    by_remainder = sorted(range(len(parts)), key=lambda place: parts[place] - exact[place])
    for place in by_remainder[: total - sum(parts)]:
        parts[place] += 1
    return tuple(parts)
