"""How far a study is, in words, and what a replayed policy would have done. Pure.

Counts are requests, shares ratios, times seconds. Prevents: a bar without what it counts, and a refusal
told without what the policy in force does to the same requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from control.study_process import State, StudyView
from dashboard import words


def part(view: StudyView) -> float:
    """Return how much of the present step is done, 0..1."""
    return min(1.0, view.done / view.of) if view.of else 0.0


def progress_text(view: StudyView) -> str:
    """Return how far a study is in one line."""
    if view.state is State.WAITS:
        return f"Waits for {words.plural(view.ahead, 'simulation')} before it"
    ran = f"{view.ran_s:.0f} s"
    if not view.of:
        return f"Starting, {ran}"
    return f"{view.step}: {view.done:,} of {view.of:,}, {ran}"


def replay_verdict(found: Mapping[str, Any]) -> tuple[words.Tone, str]:
    """Return in one sentence whom the draft would have refused, against the policy in force."""
    groups = found["groups"]
    offered = sum(row["offered"] for row in groups)
    draft = sum(row["would_refuse"] for row in groups)
    force = sum(row["in_force_refuses"] or 0 for row in groups)
    share = words.percent(draft / offered, 2) if offered else words.UNKNOWN
    said = (
        f"The draft would have refused {draft:,} of {offered:,} requests ({share}), the policy in force "
        f"{force:,}."
    )
    worst = max(groups, key=lambda row: row["would_refuse"] - (row["in_force_refuses"] or 0), default=None)
    if worst is not None and worst["would_refuse"] > (worst["in_force_refuses"] or 0):
        more = worst["would_refuse"] - (worst["in_force_refuses"] or 0)
        tier = words.tier(worst["tier"])
        said += (
            f" {words.plain(worst['tenant'])} in {tier} loses most: {words.plural(more, 'request')} more."
        )
    return ("watch" if draft > force else "good"), said


def replay_rows(found: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return tenants and tiers, those whom the draft changes most first."""
    rows = sorted(
        found["groups"],
        key=lambda row: (
            -abs(row["would_refuse"] - (row["in_force_refuses"] or 0)),
            -row["would_refuse"],
            row["tenant"],
        ),
    )
    return {
        "tenant": [row["tenant"] for row in rows],
        "tier": [words.tier(row["tier"]) for row in rows],
        "offered": [words.count(row["offered"]) for row in rows],
        "draft": [words.count(row["would_refuse"]) for row in rows],
        "in force": [words.count(row["in_force_refuses"]) for row in rows],
        "then": [words.count(row["recorded_refused"]) for row in rows],
        "wait": [words.seconds(row["queue_wait_p95_s"]) for row in rows],
        "why": [
            ", ".join(f"{reason.replace('_', ' ')} {count:,}" for reason, count in row["by_reason"].items())
            for row in rows
        ],
    }


def replay_notes(found: Mapping[str, Any]) -> str:
    """Return what was replayed, and what it leaves out."""
    said = f"{found['traffic']}. {found['note'].capitalize()}."
    if found["unplaced"]:
        said += (
            f" {words.plural(found['unplaced'], 'request')} refused then had no served one of the same "
            "tenant and tier: their sizes are not known, so they are not in it."
        )
    return said
