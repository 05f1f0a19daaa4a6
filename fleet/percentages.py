"""How a share of a whole is written: "6.24 %", in sentences, tables and reports alike. Pure.

Shares are 0..1. Prevents: one page that says 6.24% and 6.24 %, and "-0 %".
"""

from __future__ import annotations


def percent(share: float, digits: int = 0, *, is_signed: bool = False) -> str:
    """Return `share` (0..1, or a change) as percent with `digits` decimals, spaced as the SI asks for."""
    value = round(100 * share, digits) + 0.0  # no "-0"
    return f"{value:{'+' if is_signed else ''}.{digits}f} %"
