"""How an axis of dollars is written: with cents where its range is small. Pure; amounts are US dollars.

Prevents: an axis that reads "$1, $1, $1" because its steps are cents, and a hover of $0 for 40 cents.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

#: Below a range of `WHOLE` an axis has steps that are no whole dollars; below `CENTS` no whole cents.
WHOLE, CENTS = 10.0, 0.1


def digits(amounts: Iterable[float | None], *, least: float = 0.0) -> int:
    """Return how many decimals tell apart the steps of an axis from `least` to the largest of `amounts`."""
    known = [amount for amount in amounts if amount is not None]
    span = max((*known, least)) - min((*known, least))
    return 0 if span >= WHOLE else 2 if span >= CENTS else 4


def axis(amounts: Iterable[float | None], *, least: float = 0.0) -> dict[str, Any]:
    """Return the settings of an axis of dollars from `least`, for all `amounts` drawn along it."""
    return {"tickprefix": "$", "tickformat": form(digits(amounts, least=least))}


def form(decimals: int) -> str:
    """Return the number format of an amount with so many decimals, as Plotly takes it."""
    return f",.{decimals}f"
