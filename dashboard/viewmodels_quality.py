"""Data quality in words: what is wrong with which source, since when, and which numbers suffer. Pure.

Prevents: "0 findings" read as "everything is fine" while nothing was judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from control.queries_quality import ROWS_MAX, FindingView
from dashboard import words
from dashboard.data import Pulse
from dashboard.times import Zone, age
from dashboard.viewmodels import ALL_SOURCES, SIGNS, Card
from dashboard.viewmodels_frame import stale_after
from dashboard.words import Tone
from fleet.quality_kinds import EVERYTHING, GATEWAY_EVERYTHING, Severity

OURSELVES = "controller"
NAMES_SHOWN = 3
TOUCHED = "Sources with a fault or warning"
TONES: dict[str, Tone] = {Severity.FAULT: "act", Severity.WARNING: "watch", Severity.NOTE: "plain"}
MEANS = {
    Severity.FAULT: "numbers are unknown",
    Severity.WARNING: "numbers are worse than usual",
    Severity.NOTE: "worth knowing",
}


def source_name(view: FindingView) -> str:
    """Return the source as people call it."""
    return view.source if view.source else OURSELVES


def sources(views: Sequence[FindingView], nodes: Sequence[str]) -> list[str]:
    """Return what the filter offers: everything, then each source with a finding or a name."""
    return [ALL_SOURCES, *sorted({*nodes, *(source_name(v) for v in views)})]


def chosen(views: Sequence[FindingView], source: str) -> list[FindingView]:
    """Return the findings of one source, or all of them."""
    return [v for v in views if source in (ALL_SOURCES, source_name(v))]


def cards(views: Sequence[FindingView], *, is_judged: bool = True) -> list[Card]:
    """Return how many findings stand, by how bad they are, and how many sources they are about.

    Without `is_judged` nobody has looked: then none is no number.
    """
    if not is_judged and not views:
        labels = (*(f"{severity.value.capitalize()}s" for severity in Severity), TOUCHED)
        return [Card(label, words.UNKNOWN, "not judged yet", "unknown") for label in labels]
    standing = [v for v in views if v.is_open]
    found = [_card(severity, [v for v in standing if v.severity == severity]) for severity in Severity]
    touched = {(v.scope, v.source) for v in standing if v.severity != Severity.NOTE}
    tone: Tone = "watch" if touched else "good"
    return [*found, Card(TOUCHED, words.count(len(touched)), "look below" if touched else "none", tone)]


def _card(severity: Severity, views: Sequence[FindingView]) -> Card:
    tone = TONES[severity] if views else "good"
    return Card(
        f"{severity.value.capitalize()}s",
        words.count(len(views)),
        "standing" if views else "none",
        tone,
        MEANS[severity] if views else "",
    )


def rows(
    views: Sequence[FindingView], now: datetime, zone: Zone, *, has_ended: bool = False
) -> dict[str, list[Any]]:
    """Return findings by column. Only those that have ended show how long they lasted."""
    columns: dict[str, list[Any]] = {
        "severity": [f"{SIGNS[TONES.get(v.severity, 'unknown')]} {v.severity}" for v in views],
        "source": [_link(v) for v in views],
        "what": [f"{v.title}: {about}" if (about := _about(v)) else v.title for v in views],
        "affects": [_affects(v) for v in views],
        "since": [zone.since(v.since, now) for v in views],
        "lasted": [age(((v.until or now) - v.since).total_seconds()) for v in views],
    }
    del columns["affects" if has_ended else "lasted"]
    return columns


def _affects(view: FindingView) -> str:
    """Return the numbers that suffer, in the three lines there are; a list of everything as that."""
    for everything in (EVERYTHING, GATEWAY_EVERYTHING):
        if set(everything) <= set(view.affects):
            more = [name for name in view.affects if name not in everything]
            return ", ".join(["every number from it", *more])
    return ", ".join(view.affects) or words.UNKNOWN


def _about(view: FindingView) -> str:
    """Return which metric and engine of its source a finding is about; "" for all of it."""
    return ", ".join(part for part in (view.metric, view.engine and f"engine {view.engine}") if part)


def what_to_do(views: Sequence[FindingView]) -> list[str]:
    """Return each kind of finding once: where it stands, the newest detail and what to do about it."""
    kinds: dict[str, list[FindingView]] = {}
    for view in views:
        kinds.setdefault(view.title, []).append(view)
    return [_kind_text(title, found) for title, found in kinds.items()]


def _kind_text(title: str, found: Sequence[FindingView]) -> str:
    names = list(dict.fromkeys(source_name(v) for v in found))
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    newest = max(found, key=lambda v: v.since)
    example = f" {source_name(newest)}: {newest.detail}." if newest.detail else ""
    return f"{title} ({', '.join(names[:NAMES_SHOWN])}{more}).{example} {newest.do}".strip()


def _link(view: FindingView) -> str:
    if view.scope == "node":
        return f"/node?node={quote(view.source, safe='')}#{view.source}"
    return f"/data_quality?source={quote(source_name(view), safe='')}#{source_name(view)}"


def summary(views: Sequence[FindingView], pulse: Pulse | None, now: datetime) -> tuple[Tone, str]:
    """Return the answer to the page's question in one sentence."""
    if pulse is None or pulse.at is None:
        return "unknown", "Nothing was judged yet: no scrape round is stored. Is `rhodeck control` running?"
    round_age_s = (now - pulse.at).total_seconds()
    if round_age_s > stale_after(pulse):
        said = f"The newest round is {age(round_age_s)} old"
        return "unknown", f"{said}: what stands below is as of then, and may be over."
    faults = sum(v.is_open and v.severity == Severity.FAULT for v in views)
    warnings = sum(v.is_open and v.severity == Severity.WARNING for v in views)
    if faults or warnings:
        said = f"{words.plural(faults, 'fault')} and {words.plural(warnings, 'warning')} stand."
        return ("act" if faults else "watch"), f"{said} The numbers named under “affects” suffer."
    notes = sum(v.is_open and v.severity == Severity.NOTE for v in views)
    also = f" {words.plural(notes, 'note')} worth knowing below." if notes else ""
    return "good", f"Every source says what it should, and nothing contradicts itself.{also}"


def cut_text(views: Sequence[FindingView]) -> str:
    """Return what is left out; "" when everything is shown."""
    return f"Only the first {ROWS_MAX} findings are shown." if len(views) >= ROWS_MAX else ""


def node_lines(views: Sequence[FindingView], now: datetime, zone: Zone) -> list[str]:
    """Return what stands about one node, as plain sentences for its page."""
    return [
        f"{v.title}{f' ({v.metric})' if v.metric else ''}, since {zone.since(v.since, now)}"
        + (f": {v.detail}" if v.detail else "")
        for v in views
        if v.is_open
    ]
