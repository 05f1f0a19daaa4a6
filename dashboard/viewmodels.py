"""Words every page uses: cards, notices, and the verdicts about freshness and conditions. Pure.

Prevents: a state that is only a colour, and a reader who has to know a threshold by heart.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from control.freshness import Freshness
from control.queries_policy import Condition
from dashboard.times import UNKNOWN, age
from dashboard.words import Tone


@dataclass(frozen=True, slots=True)
class Card:
    """One number with its word."""

    label: str
    value: str
    word: str
    tone: Tone
    note: str = ""
    help: str = ""

    @property
    def key(self) -> str:
        """The card's name in the page: its label in plain letters."""
        return "".join(c if c.isalnum() else "_" for c in self.label.partition(",")[0].lower())


def last_known(cards: Sequence[Card]) -> list[Card]:
    """Return numbers of an earlier answer as they were, without a verdict about the present.

    What was not known then is no last known number, and stays as it is.
    """
    known = "last known"
    return [
        card
        if card.tone == "unknown" and card.value == UNKNOWN
        else replace(card, tone="unknown", word=known)
        for card in cards
    ]


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing that wants attention, or happened."""

    tone: Tone
    word: str
    text: str
    since: str
    page: str = ""  # path of the page's file, for a link
    link: str = ""
    query: dict[str, str] = field(default_factory=dict)
    alert: int | None = None  # the alert that can be acknowledged here


FLEET_PAGE = "app_pages/fleet.py"
ALERTS_PAGE = "app_pages/alerts.py"
DIAGNOSIS_PAGE = "app_pages/diagnosis.py"
NODE_PAGE = "app_pages/node.py"
POLICY_PAGE = "app_pages/policy.py"
ROLLOUT_PAGE = "app_pages/rollout.py"
SPEND_PAGE = "app_pages/spend.py"
AUDIT_PAGE = "app_pages/audit.py"
QUALITY_PAGE = "app_pages/data_quality.py"
#: What the data-quality page calls "of every source".
ALL_SOURCES = "all sources"

CONDITION_LOOKS: dict[Condition, tuple[Tone, str]] = {
    "converged": ("good", "converged"),
    "behind": ("watch", "behind"),
    "drifting": ("watch", "drifting"),
    "unreachable": ("act", "unreachable"),
    "rejected": ("act", "rejected"),
    "unknown": ("unknown", "unknown"),
}
#: A sign before the word, for tables that can hold neither colour nor icon.
SIGNS: dict[Tone, str] = {
    "good": "\u2713",
    "watch": "\u25b2",
    "act": "\u2716",
    "unknown": "?",
    "plain": "\u2022",
}


#: Conditions under which what a gateway said last is no word about the present.
NOT_HEARD: frozenset[Condition] = frozenset({"unreachable", "unknown"})
#: Remarks that make a fresh node worth a look: its numbers may be those of an engine that hangs.
SUSPECT = frozenset({"frozen", "stalled"})


def node_state_text(
    freshness: Freshness,
    age_s: float | None,
    state: str,
    flags: Collection[str] = (),
    *,
    is_ejected: bool = False,
) -> str:
    """Return a node's state with the age of its last sample: "fresh, 4 s", "silent, never seen"."""
    seen = "never seen" if age_s is None else age(age_s)
    desired = "" if state == "active" else f", {state}"
    tone = freshness_tone(freshness)
    if tone == "good" and (is_ejected or SUSPECT.intersection(flags)):
        tone = "watch"
    return f"{SIGNS[tone]} {freshness.value}, {seen}{desired}"


def freshness_tone(freshness: Freshness) -> Tone:
    """Return how a freshness looks."""
    return {Freshness.FRESH: "good", Freshness.STALE: "watch", Freshness.SILENT: "act"}[freshness]  # type: ignore[return-value]
