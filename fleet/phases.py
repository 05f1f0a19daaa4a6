"""Prefill phases: room on a prefill node for the prompt of a request that has its decode node already.

Tokens are counts, times monotonic seconds. What is booked here is a node's room only: quotas, shares and
the place in the queue were settled when the request got its decode node. First come, first served, so that
no prompt is passed by smaller ones; who may not use a node keeps nobody from it. Prevents: prompts sent to
prefill nodes beyond their KV cache, and room on them that stays booked after its phase.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fleet.budget import NodeBudget
from fleet.offers import Refused
from fleet.outcomes import Outcome, Tier
from fleet.placement import Placement
from fleet.pool_names import prefill_of
from fleet.refusals import Refusals


class Phase:
    """One prompt's wait for a prefill node, and its room there. `Phases.end` ends both, once."""

    __slots__ = ("avoid", "is_open", "model", "node", "tier", "tokens")

    def __init__(self, model: str, tier: Tier, tokens: int, avoid: tuple[str, ...]) -> None:
        self.model = model
        self.tier = tier
        self.tokens = tokens
        self.avoid = avoid  # nodes that had it already
        self.node: str | None = None  # None: it waits
        self.is_open = True


class Phases:
    """All prefill phases of one gate. The owner calls `starts` after each `begin`, `end` and reading."""

    def __init__(self, placement: Placement, refusals: Refusals) -> None:
        self._placement = placement
        self._refusals = refusals
        #: In order of arrival, by model and tier. Each dictionary has at least one.
        self._waiting: dict[tuple[str, Tier], dict[Phase, None]] = {}
        self.running = 0
        self.results: Counter[str] = Counter()  # done, without_params, failed, refused

    @property
    def waiting(self) -> int:
        """Return how many wait for room."""
        return sum(map(len, self._waiting.values()))

    def begin(self, model: str, tier: Tier, tokens: int, avoid: tuple[str, ...] = ()) -> Phase:
        """Ask for room for `tokens` of prompt, on none of the nodes in `avoid`."""
        phase = Phase(model, tier, tokens, avoid)
        self._waiting.setdefault((model, tier), {})[phase] = None
        return phase

    def could_start(self, phase: Phase, now_s: float) -> bool:
        """Say whether an open node could ever hold it."""
        return any(
            book.is_open(now_s) and (book.budget_tokens or 0) >= phase.tokens
            for book in self._candidates(phase)
        )

    def starts(self, now_s: float) -> list[Phase]:
        """Book and return what starts now; each has its `node`. A model's later ones wait for its first.

        Behind one that waits nobody is looked at, unless it avoids nodes.
        """
        started: list[Phase] = []
        for phases in list(self._waiting.values()):
            for phase, book in self._next(phases, now_s):
                book.book(phase.tokens, None)
                phase.node = book.name
                self._leave(phase)
                self.running += 1
                started.append(phase)
        return started

    def _next(self, phases: dict[Phase, None], now_s: float) -> Iterator[tuple[Phase, NodeBudget]]:
        """Yield who starts next and where. Book it before the next one is asked for."""
        left: frozenset[str] | None = None  # nodes that nobody waits for who came earlier; None: all
        for phase in tuple(phases):
            book = self._choose(phase, left, now_s)
            if book is not None:
                yield phase, book
                continue
            left = frozenset(phase.avoid) if left is None else left.intersection(phase.avoid)
            if not left:
                return

    def _leave(self, phase: Phase) -> None:
        key = phase.model, phase.tier
        del self._waiting[key][phase]
        if not self._waiting[key]:
            del self._waiting[key]

    def end(self, phase: Phase) -> None:
        """Give the room, or the place in the queue, back. Later calls change nothing."""
        if not phase.is_open:
            return
        phase.is_open = False
        if phase.node is None:
            self._leave(phase)
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

    def _choose(self, phase: Phase, left: frozenset[str] | None, now_s: float) -> NodeBudget | None:
        """Return the least loaded open node with room among those `left`, cheapest class first."""
        pool = self._placement.pool(prefill_of(phase.model), phase.tier)
        for group in pool.groups if pool is not None else ():
            fitting = [
                book
                for book in group
                if book.room >= phase.tokens
                and book.is_open(now_s)
                and book.name not in phase.avoid
                and (left is None or book.name in left)
            ]
            if fitting:
                return min(fitting, key=lambda book: book.load)
        return None
