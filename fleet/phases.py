"""Prefill phases: room on a prefill node for the prompt of a request that has its decode node already.

Tokens are counts, times monotonic seconds. What is booked here is a node's room only: quotas, shares and
the place in the queue were settled when the request got its decode node. First come, first served, so that
no prompt is passed by smaller ones. Prevents: prompts sent to prefill nodes beyond their KV cache, and room
on them that stays booked after its phase.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from fleet.budget import NodeBudget
from fleet.offers import Refused
from fleet.outcomes import Outcome, Tier
from fleet.placement import Placement
from fleet.pool_names import prefill_of
from fleet.refusals import Refusals


@dataclass(slots=True, eq=False)
class Phase:
    """One prompt's wait for a prefill node, and its room there. `Phases.end` ends both, once."""

    model: str
    tier: Tier
    tokens: int
    avoid: tuple[str, ...]  # nodes that had it already
    node: str | None = None  # None: it waits
    is_open: bool = True


class Phases:
    """All prefill phases of one gate. The owner calls `starts` after each `begin`, `end` and reading."""

    def __init__(self, placement: Placement, refusals: Refusals) -> None:
        self._placement = placement
        self._refusals = refusals
        self._waiting: dict[Phase, None] = {}  # in order of arrival
        self.running = 0
        self.results: Counter[str] = Counter()  # done, without_params, failed, refused

    @property
    def waiting(self) -> int:
        """Return how many wait for room."""
        return len(self._waiting)

    def begin(self, model: str, tier: Tier, tokens: int, avoid: tuple[str, ...] = ()) -> Phase:
        """Ask for room for `tokens` of prompt, on none of the nodes in `avoid`."""
        phase = Phase(model, tier, tokens, avoid)
        self._waiting[phase] = None
        return phase

    def could_start(self, phase: Phase, now_s: float) -> bool:
        """Say whether an open node could ever hold it."""
        return any(
            book.is_open(now_s) and (book.budget_tokens or 0) >= phase.tokens
            for book in self._candidates(phase)
        )

    def starts(self, now_s: float) -> list[Phase]:
        """Book and return what starts now; each has its `node`. A model's later ones wait for its first."""
        started: list[Phase] = []
        blocked: set[tuple[str, Tier]] = set()
        for phase in list(self._waiting):
            key = (phase.model, phase.tier)
            if key in blocked:
                continue
            book = self._choose(phase, now_s)
            if book is None:
                blocked.add(key)
                continue
            book.book(phase.tokens, None)
            phase.node = book.name
            del self._waiting[phase]
            self.running += 1
            started.append(phase)
        return started

    def end(self, phase: Phase) -> None:
        """Give the room, or the place in the queue, back. Later calls change nothing."""
        if not phase.is_open:
            return
        phase.is_open = False
        if phase.node is None:
            del self._waiting[phase]
            return
        self.running -= 1
        book = self._placement.book(phase.node)
        book.free(phase.tokens, None)
        self._placement.forget_if_empty(book)

    def refusal(self, outcome: Outcome, reason: str) -> Refused:
        """Return the refusal of a request that gets no prefill node, with a time to come back."""
        self._refusals.about = None
        return self._refusals.refuse(outcome, reason)

    def _candidates(self, phase: Phase) -> Iterator[NodeBudget]:
        pool = self._placement.pool(prefill_of(phase.model), phase.tier)
        return (book for book in pool or () if book.name not in phase.avoid)

    def _choose(self, phase: Phase, now_s: float) -> NodeBudget | None:
        """Return the least loaded open node with room, cheapest class first."""
        pool = self._placement.pool(prefill_of(phase.model), phase.tier)
        for group in pool.groups if pool is not None else ():
            fitting = [
                book
                for book in group
                if book.room >= phase.tokens and book.is_open(now_s) and book.name not in phase.avoid
            ]
            if fitting:
                return min(fitting, key=lambda book: book.load)
        return None
