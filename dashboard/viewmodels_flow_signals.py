"""What stands beside a queue's balance: bursts, KV, burn rates, hot nodes, waits, repetitions, shares.

Pure; values are in the unit of their rule. Prevents: the one line above its limit lost among forty below
theirs, and "none is above" read as "all is well" where most is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from control.flow_store import FlowNow
from dashboard import words
from dashboard.viewmodels import SIGNS
from dashboard.viewmodels_flow import label, stored
from fleet.flow_signals import UNITS, FlowRule

_RULES = {
    FlowRule.BURST: "burst",
    FlowRule.KV_EXHAUSTION: "KV in 5 minutes",
    FlowRule.SLO_BURN_FAST: "budget burn, fast",
    FlowRule.SLO_BURN_SLOW: "budget burn, slow",
    FlowRule.HOT_NODE: "hot node",
    FlowRule.UNFAIRNESS: "unfairness",
    FlowRule.STARVATION: "longest wait",
    FlowRule.RETRY_STORM: "attempts a request",
}


def others_text(states: Sequence[FlowNow]) -> str:
    """Return how many judgements are above their limit, and how many nobody knows."""
    found = _others(states)
    above = sum(_is_above(limit, one) for limit, one in found)
    unknown = sum(one["value"] is None for _, one in found)
    if not found:
        return "Not known: nothing was judged in the last minutes."
    said = f"{above} of {len(found)} above the limit" if above else f"None of {len(found)} above its limit"
    return f"{said}; {unknown} not known." if unknown else f"{said}."


def other_rows(states: Sequence[FlowNow], *, is_above: bool) -> dict[str, list[Any]]:
    """Return the judgements above their limit, or the rest: the nearest to bad first, the unknown last."""
    found = [(limit, one) for limit, one in _others(states) if _is_above(limit, one) == is_above]
    return {
        "state": [_against(one["value"], limit) for limit, one in found],
        "rule": [_RULES[FlowRule(one["rule"])] for _, one in found],
        "subject": [label(one["scope"], one["subject"]) for _, one in found],
        "value": [words.UNKNOWN if one["value"] is None else f"{one['value']:.2f}" for _, one in found],
        "limit": [f"{limit:g}" for limit, _ in found],
        "words": [words.tier(one["summary"]) for _, one in found],
    }


def _others(states: Sequence[FlowNow]) -> list[tuple[float, dict[str, Any]]]:
    """Return each judgement with its limit, the nearest to bad first."""
    found = [(UNITS[FlowRule(one["rule"])][2], one) for state in states for one in stored(state, "others")]
    found.sort(key=lambda s: (s[1]["value"] is None, -(s[1]["value"] or 0.0) / s[0], s[1]["rule"]))
    return found


def _is_above(limit: float, one: Mapping[str, Any]) -> bool:
    return one["value"] is not None and one["value"] > limit


def _against(value: float | None, limit: float) -> str:
    if value is None:
        return f"{SIGNS['unknown']} not known"
    return f"{SIGNS['watch']} above" if value > limit else f"{SIGNS['good']} below"


def share_rows(states: Sequence[FlowNow]) -> dict[str, list[Any]]:
    """Return who got how much of each tier."""
    rows = [
        (one["subject"], share)
        for state in states
        for one in stored(state, "others")
        if one["rule"] == FlowRule.UNFAIRNESS
        for share in _shares_of(one)
    ]
    return {
        "tier": [words.tier(tier) for tier, _ in rows],
        "tenant": [share["tenant"] for _, share in rows],
        "share": [words.percent(share["share"]) for _, share in rows],
        "weight": [words.percent(share["weight_ratio"]) for _, share in rows],
        "due": [words.percent(share["entitled"]) for _, share in rows],
        "state": ["yes" if share["is_backlogged"] else "no" for _, share in rows],
    }


def _shares_of(signal: Mapping[str, Any]) -> list[dict[str, Any]]:
    detail: Mapping[str, Any] = signal["detail"] or {}
    found: list[dict[str, Any]] | None = detail.get("shares")
    return found or []
