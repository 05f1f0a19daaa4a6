"""The record in words. Pure.

Prevents: a detail that is only half shown without saying so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from control.audit import BrokenRow
from control.queries_policy import AuditEntry
from dashboard import words
from dashboard.times import Zone
from dashboard.words import Tone

PAGE_ROWS = 100
MAX_DETAIL = 400


def rows(entries: Sequence[AuditEntry], zone: Zone) -> dict[str, list[Any]]:
    """Return rows of the record by column, newest first."""
    return {
        "id": [e.id for e in entries],
        "at": [zone.stamp(e.at) for e in entries],
        "actor": [e.actor for e in entries],
        "role": [e.role for e in entries],
        "via": [e.via for e in entries],
        "action": [e.action for e in entries],
        "subject": [e.subject for e in entries],
        "note": [e.note for e in entries],
        "detail": [_detail(e.detail) for e in entries],
    }


def _detail(detail: dict[str, Any]) -> str:
    text = json.dumps(detail, ensure_ascii=False, sort_keys=True) if detail else ""
    return text if len(text) <= MAX_DETAIL else f"{text[:MAX_DETAIL]} \u2026 ({len(text):,} characters)"


def matching(entries: Sequence[AuditEntry], text: str) -> list[AuditEntry]:
    """Return the entries that name `text` (any case) as actor, action, subject or reason."""
    wanted = text.strip().lower()
    return [
        e for e in entries if wanted in f"{e.actor}\n{e.action}\n{e.subject}\n{e.note}\n{e.via}".lower()
    ]


def verdict(broken: BrokenRow | None, last: int) -> tuple[Tone, str]:
    """Return whether the record can be trusted, in words."""
    if broken is not None:
        return "act", f"The record cannot be trusted from row {broken.id} on: {words.plain(broken.reason)}."
    return "good", (
        f"All {words.plural(last, 'row')} follow from each other, and every revision has its row."
        if last
        else "The record is empty."
    )


def shown_text(shown: Sequence[AuditEntry], loaded: Sequence[AuditEntry], text: str) -> str:
    """Return which rows are on the page."""
    if not loaded:
        return "No rows here."
    span = f"rows {loaded[-1].id:,} to {loaded[0].id:,}"
    return (
        f"{len(shown)} of {span} name {words.plain(text.strip())!s}" if text.strip() else span.capitalize()
    )


def older_than(entries: Sequence[AuditEntry]) -> int | None:
    """Return the number older rows lie below; None when this is the end of the record."""
    return entries[-1].id if entries and entries[-1].id > 1 else None
