"""The policy page in words: differences, conflicts, history, keys. Pure.

Prevents: a difference nobody can read, and a conflict shown without who and when.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from control.queries_policy import Revision, RevisionHead, TenantKey
from dashboard import words
from dashboard.drafts import Difference
from dashboard.policy_knobs import change_words
from dashboard.times import UNKNOWN, Zone
from fleet.errors import InvalidPolicy

TIER_FIELDS: dict[str, str] = {
    "weight": "Weight, %",
    "queue_timeout_s": "Queue timeout, s",
    "max_queued_requests": "Queue, requests",
}


def value_text(value: Any) -> str:
    """Return a policy value as text; an absent one as a dash."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,g}"
    if isinstance(value, (list, tuple)):
        parts = cast("Sequence[object]", value)
        return ", ".join(value_text(part) for part in parts)
    return str(value)


def field_text(pointer: str) -> str:
    """Return a JSON pointer as a path people read: "tenants > acme > tokens_per_minute"."""
    parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    return " \u203a ".join(parts) or "the whole policy"


def difference_rows(changes: Sequence[Difference]) -> dict[str, list[Any]]:
    """Return a draft's differences by column; what others changed meanwhile only where somebody did."""
    rows: dict[str, list[Any]] = {
        "field": [field_text(c.pointer) for c in changes],
        "old": [value_text(c.old) for c in changes],
        "new": [value_text(c.new) for c in changes],
        "means": [change_words(c) for c in changes],
    }
    if any(c.is_conflict for c in changes):
        rows["theirs"] = [value_text(c.theirs) if c.is_conflict else "" for c in changes]
    return rows


def others_rows(changes: Sequence[tuple[str, Any, Any]]) -> dict[str, list[Any]]:
    """Return what others changed, by column."""
    return {
        "field": [field_text(pointer) for pointer, _, _ in changes],
        "old": [value_text(old) for _, old, _ in changes],
        "new": [value_text(new) for _, _, new in changes],
    }


def weights_text(weights: Mapping[str, int]) -> str:
    """Return the sum of the tiers' weights in words."""
    total = sum(weights.values())
    if total == 100:
        return "The weights sum to 100 %."
    return f"The weights sum to {total} %: they must sum to 100; {_correction(total)}."


def _correction(total: int) -> str:
    return f"take {total - 100} away somewhere" if total > 100 else f"give {100 - total} more somewhere"


def head_text(head: Revision | None, at: datetime, zone: Zone) -> str:
    """Return which revision is in force, whose, and why."""
    if head is None:
        return "No policy was published yet: gateways admit nothing. What you publish becomes revision 1."
    return (
        f"Revision **{head.number}** by {words.plain(head.author)}, "
        f"{words.plain(zone.since(head.created_at, at))}: {words.plain(head.note)}"
    )


def moved_text(head: Revision, base: int) -> str:
    """Return that somebody published since the draft was begun."""
    return (
        f"Your draft began on revision {base}; {words.plain(head.author)} has published revision "
        f"{head.number} since: {words.plain(head.note)}"
    )


def problem_for(problem: InvalidPolicy | None, section: str) -> str | None:
    """Return the problem's words if its field lies in `section` ("tiers", "tenants", "" for the rest)."""
    if problem is None:
        return None
    here = (problem.field or "").split("/")[1:2]
    where = here[0] if here and here[0] in ("tiers", "tenants") else ""
    if where != section:
        return None
    pointer = problem.field or ""
    message = problem.message.removeprefix(f"{pointer}: ")
    hint = "" if problem.hint == f"Correct {pointer}" else f". {words.plain(problem.hint)}"
    return f"{words.plain(field_text(pointer))}: {words.plain(message)}{hint}"


def history_rows(history: Sequence[RevisionHead], zone: Zone) -> dict[str, list[Any]]:
    """Return the history by column, newest first."""
    return {
        "revision": [r.number for r in history],
        "at": [zone.stamp(r.created_at) for r in history],
        "author": [r.author for r in history],
        "note": [r.note for r in history],
        "restores": [f"r{r.restores}" if r.restores is not None else "" for r in history],
        "rollout": [(r.rollout_state or UNKNOWN).replace("_", " ") for r in history],
    }


def key_rows(keys: Sequence[TenantKey], zone: Zone) -> dict[str, list[Any]]:
    """Return tenants' keys by column."""
    return {
        "key": [k.id for k in keys],
        "tenant": [k.tenant for k in keys],
        "label": [k.label for k in keys],
        "by": [k.created_by for k in keys],
        "at": [zone.stamp(k.created_at) for k in keys],
        "state": [
            "in force" if k.revoked_at is None else f"revoked {zone.stamp(k.revoked_at)}" for k in keys
        ],
    }


def as_text(document: Mapping[str, Any]) -> str:
    """Return a document as JSON people edit."""
    return json.dumps(document, indent=2, ensure_ascii=False)


def command_text(parent: int, note: str) -> str:
    """Return the same publish as a command line."""
    shown = note.strip().replace("'", "'\\''") or "why"
    return f"rhodeck policy publish policy.json --parent {parent} --note '{shown}'"


def pending_text(changes: Sequence[Difference]) -> str:
    """Return how many changes wait in the draft."""
    return f"**{words.plural(len(changes), 'pending change')}**" if changes else "No pending changes"


def restorable(history: Sequence[RevisionHead]) -> list[int]:
    """Return the revisions that can be rolled back to, newest first: all but the newest."""
    return [r.number for r in history[1:]]
