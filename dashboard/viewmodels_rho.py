"""Every rho in words: one row a subject, and the formula with its values for the one chosen.

Pure. Prevents: an old verdict shown as a present number, and an occupancy read as utilization.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from control.queries_fleet import HealthView
from dashboard import words
from dashboard.times import UNKNOWN, age
from dashboard.viewmodels import SIGNS
from dashboard.viewmodels_fleet import rho_heard, rho_tone, silence_note
from fleet.health_reading import TARGET_RHO
from fleet.outcomes import TIERS

LIMITS: dict[str, str] = {
    "compute": "computing alone",
    "slots": "sequence slots",
    "kv": "KV cache",
    "batched_tokens": "token budget of a step",
    "itl": "objective between tokens",
    "mixed": "not the same for all",
}


TIER_ORDER: dict[str, int] = {tier.value: place for place, tier in enumerate(TIERS)}


def subject(view: HealthView) -> str:
    """Return what a verdict is about: "fleet", "pool main", "tier best-effort"."""
    name = view.name.replace("_", "-") if view.scope == "tier" else view.name
    return f"{view.scope} {name}".strip()


def rows(views: Sequence[HealthView]) -> dict[str, list[Any]]:
    """Return the table of rhos by column. A verdict that is old has no numbers, only its age."""
    ranked = sorted(
        views, key=lambda v: TIER_ORDER.get(v.name, len(TIER_ORDER)) if v.scope == "tier" else -1
    )
    kept = [(view, {} if view.is_stale else view.detail) for view in ranked]
    return {
        "subject": [subject(view) for view, _ in kept],
        "verdict": [_verdict(view) for view, _ in kept],
        "rho": [None if view.is_stale else rho_heard(view) for view, _ in kept],
        "interval": [
            None
            if view.is_stale
            or silence_note(view) is not None  # the whole is not known, so neither its ends
            else words.interval(view.rho_low, view.rho_high) or None
            for view, _ in kept
        ],
        "grade": [None if view.is_stale else view.grade for view, _ in kept],
        "5 min": [_with_ends(detail, "rho_slow") for _, detail in kept],
        "backlog": [_with_ends(detail, "rho_backlog") for _, detail in kept],
        "worst": [_worst(detail) for _, detail in kept],
        "higher": [_higher(detail) for _, detail in kept],
        "binding": [
            None if view.is_stale else LIMITS.get(view.binding or "", view.binding) for view, _ in kept
        ],
        "demand": [None if view.is_stale else words.rate(_demand(view)) for view, _ in kept],
        "own limits": [
            words.rate(detail["limited_rate"]) if "limited_rate" in detail else None for _, detail in kept
        ],
        "capacity": [None if view.is_stale else words.rate(view.service_rate) for view, _ in kept],
        "room": [None if view.is_stale else words.rate(view.headroom_rps) for view, _ in kept],
        "time": [_time(detail, view) for view, detail in kept],
    }


def _verdict(view: HealthView) -> str:
    if view.is_stale:
        return f"{SIGNS['unknown']} last verdict {age(view.age_s)} ago"
    if view.scope == "tier":
        return SIGNS["plain"] + " part of the fleet's"
    if silence_note(view) is not None:
        tone, word = rho_tone(rho_heard(view), None)
        return f"{SIGNS[tone]} {word}, at least" if tone == "act" else f"{SIGNS['unknown']} at least"
    tone, word = rho_tone(view.rho, view.rho_low)
    return f"{SIGNS[tone]} {word}{', partial' if view.partial else ''}"


def _demand(view: HealthView) -> float | None:
    found = view.detail.get("competing_rate")
    return view.arrival_rate if found is None else float(found)


def _with_ends(detail: dict[str, Any], name: str) -> str | None:
    value, low, high = (detail.get(key) for key in (name, f"{name}_low", f"{name}_high"))
    if value is None:
        return None
    return f"{value:.2f}" + (f" ({low:.2f} to {high:.2f})" if low is not None and high is not None else "")


def _worst(detail: dict[str, Any]) -> str | None:
    if detail.get("worst_rho") is None:
        return None
    by = f", {detail['imbalance']:.1f} times" if detail.get("imbalance") else ""
    return f"{detail['worst_rho']:.2f} {detail.get('worst', '')}{by}"


def _higher(detail: dict[str, Any]) -> float | None:
    known: dict[str, float] = detail.get("rho_with_higher") or {}
    return known.get("value")


def _time(detail: dict[str, Any], view: HealthView) -> str | None:
    if view.is_stale:
        return None
    if detail.get("time_to_saturation_s") is not None:
        if detail["time_to_saturation_s"] <= 0:
            return "saturated already"
        return f"saturated in {words.seconds(detail['time_to_saturation_s'])}"
    if detail.get("time_to_drain_s"):
        return f"drained in {words.seconds(detail['time_to_drain_s'])}"
    return "does not saturate" if view.rho is not None and view.rho < 1 else None


def why(view: HealthView) -> list[str]:
    """Return why a rho reads as it does, step by step, as plain lines."""
    lines = [str(line) for line in view.detail.get("explanation", ())]
    if view.is_stale:
        lines.insert(0, f"This verdict is {age(view.age_s)} old.")
    return lines or ["The verdict came without an explanation."]


def limit_rows(view: HealthView) -> dict[str, list[Any]]:
    """Return rho against each limit by column, the binding one marked; empty where no curve is known."""
    by_limit: dict[str, dict[str, float]] = {} if view.is_stale else view.detail.get("rho_by_limit", {})
    mu: dict[str, dict[str, float]] = view.detail.get("mu_by_limit", {})
    names = sorted(by_limit, key=lambda name: -by_limit[name].get("value", 0.0))
    return {
        "limit": [LIMITS.get(n, n) + (" (binds)" if n == view.binding else "") for n in names],
        "rho": [by_limit[n].get("value") for n in names],
        "interval": [
            words.interval(by_limit[n].get("low"), by_limit[n].get("high")) or None for n in names
        ],
        "capacity": [words.rate(mu.get(n, {}).get("value")) for n in names],
    }


def occupancy(view: HealthView | None) -> str:
    """Return the places in use with what to expect at the target: an occupancy is not utilization."""
    detail = {} if view is None or view.is_stale else view.detail
    used, expected = detail.get("batch_used_ratio"), detail.get("batch_expected_ratio")
    if used is None:
        return f"Batch in use: {UNKNOWN}"
    caption = "" if expected is None else f"; at rho {TARGET_RHO:g} expect {words.percent(expected, 0)}"
    slots = detail.get("slots_used_ratio")
    held = "" if slots is None else f", slots {words.percent(slots, 0)}"
    return f"Batch in use: {words.percent(used, 0)} of the operating batch{held}{caption}. Not utilization."
