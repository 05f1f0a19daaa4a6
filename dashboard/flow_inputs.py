"""Whose requests a comparison's traffic is, typed: weights of tiers, tenants with share and weight.

What was measured keeps its digits until somebody changes it. Shares are percent here and ratios in the
document. Prevents: weights that only a measurement can set, and a measured share rounded by looking at it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import streamlit as st

from control.comparison_documents import DEFAULTS
from dashboard import words
from fleet.errors import InvalidInput

TIERS = ("interactive", "batch", "best_effort")
MAX_CHARACTERS = 8_000
_TENANTS = "compare_tenants"
_HINT = "One line a tenant: tier, name, percent of the tier's requests, weight, as in: batch, acme, 80, 1"

#: Tier -> tenant -> share of the tier and weight, as a document has them.
Tenants = dict[str, dict[str, list[float]]]


def fill(whole: Mapping[str, Any]) -> None:
    """Let the fields show what a document says."""
    for tier in TIERS:
        st.session_state[f"compare_weight_{tier}"] = _weight(whole["weights"], tier)
    st.session_state[_TENANTS] = as_lines(whole["tenants"])


def asked(before: Mapping[str, Any]) -> dict[str, Any]:
    """Draw the fields; return `weights` and `tenants`. Raises InvalidInput for lines that say neither."""
    with st.expander("Weights and tenants"):
        return {
            "weights": _weights(before.get("weights", DEFAULTS["weights"].value)),
            "tenants": _tenants(before.get("tenants", DEFAULTS["tenants"].value)),
        }


def _weight(weights: Mapping[str, float], tier: str) -> float:
    return float(weights.get(tier, DEFAULTS["weights"].value[tier]))


def _weights(before: Mapping[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    st.caption("Weights among tiers that wait: shares of contention, not caps")
    for place, tier in zip(st.columns(len(TIERS)), TIERS, strict=True):
        value = place.number_input(
            tier.replace("_", " ").capitalize(),
            1e-3,
            1e6,
            _weight(before, tier),
            5.0,
            key=f"compare_weight_{tier}",
            persist_state="session",
        )
        found[tier] = float(value or _weight(before, tier))
    is_same = all(math.isclose(found[tier], _weight(before, tier), rel_tol=1e-6) for tier in TIERS)
    return dict(before) if is_same else found


def _tenants(before: Tenants) -> Tenants:
    shown = as_lines(before)
    text = st.text_area(
        "Tenants",
        shown,
        key=_TENANTS,
        placeholder="batch, acme, 80, 1\nbatch, beta, 20, 1",
        help=f"{_HINT}. Empty: tenants are not told apart",
        max_chars=MAX_CHARACTERS,
        persist_state="session",
    )
    return before if (text or "").strip() == shown.strip() else from_lines(text or "")


def as_lines(tenants: Mapping[str, Mapping[str, list[float]]]) -> str:
    """Return tenants one a line: tier, name, percent of the tier, weight."""
    return "\n".join(
        f"{words.tier(tier)}, {name}, {round(100 * share, 4):g}, {weight:g}"
        for tier, named in tenants.items()
        for name, (share, weight) in named.items()
    )


def from_lines(text: str) -> Tenants:
    """Return the tenants that lines describe; the weight may be left out. InvalidInput names the line."""
    found: Tenants = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        tier, name, values = _tenant(line, number)
        if name in found.setdefault(tier, {}):
            raise InvalidInput(
                f"{name[:40]} stands twice in {tier[:40]}", hint="Once a tier", field="tenants"
            )
        found[tier][name] = values
    return found


def _tenant(line: str, number: int) -> tuple[str, str, list[float]]:
    parts = [part.strip() for part in line.split(",")]
    try:
        tier, name, share, weight = parts if len(parts) == 4 else [*parts, "1"]
        return tier.replace("-", "_"), name, [float(share.removesuffix("%")) / 100, float(weight)]
    except ValueError as exc:
        said = f"line {number} of the tenants says {line[:60]!r}"
        raise InvalidInput(said, hint=_HINT, field="tenants") from exc
