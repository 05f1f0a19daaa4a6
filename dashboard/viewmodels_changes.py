"""Recent changes in words, one line for what belongs together. Pure.

Prevents: a person's change pushed off the page by the rows machines and scripts write.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import datetime

from control.queries_policy import AuditEntry
from dashboard import words
from dashboard.times import Zone

LINES_SHOWN = 6
NOTE_SHOWN = 80


def changes(entries: Sequence[AuditEntry], at: datetime, zone: Zone) -> list[str]:
    """Return the newest changes as lines of Markdown, newest first, one line for what belongs together."""
    return [_change_text(like, at, zone) for like in folded(entries)[:LINES_SHOWN]]


def folded(entries: Sequence[AuditEntry]) -> list[list[AuditEntry]]:
    """Return entries, newest first, in groups: a revision's rollout steps, and a row of like actions.

    Of a rollout only the newest step stands for itself, so that a machine's rows push no person's out.
    """
    groups: dict[tuple[str, ...], list[AuditEntry]] = {}
    run = 0
    before: AuditEntry | None = None
    for entry in entries:
        if entry.via == "controller":
            groups.setdefault(("steps", entry.subject), []).append(entry)
            continue
        if before is None or not _are_alike(before, entry):
            run += 1
        before = entry
        groups.setdefault(("run", str(run)), []).append(entry)
    return list(groups.values())


def _are_alike(one: AuditEntry, other: AuditEntry) -> bool:
    """Say whether two rows read as one: the same act of the same person, and nobody said why."""
    return (one.action, one.actor) == (other.action, other.actor) and not one.note and not other.note


def _shortened(note: str) -> str:
    """Return a note's beginning, cut between words; the Audit page has it whole."""
    return textwrap.shorten(note, NOTE_SHOWN, placeholder=" \u2026") or note[:NOTE_SHOWN] + "\u2026"


def _change_text(like: Sequence[AuditEntry], at: datetime, zone: Zone) -> str:
    newest = like[0]
    is_many = len(like) > 1 and newest.via != "controller"
    subject = f"{newest.subject} and {len(like) - 1} more" if is_many else newest.subject
    return (
        f"**{words.plain(newest.action)}** {words.plain(subject)} by {words.plain(newest.actor)}"
        + (f": {words.plain(_shortened(newest.note))}" if newest.note else "")
        + f" :small[:gray[{words.plain(zone.since(newest.at, at))}]]"
    )
