"""What requests for one model have in common, in all tiers and in one.

A line is found once for each request and then kept on it: nodes, lengths, what waits. Tokens are counts.
Prevents: the same dictionaries asked again at each step of a decision, and two answers to "what waits for
this model".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from fleet.drain import DrainMeter
from fleet.lengths import LengthSketch, OutputLengths
from fleet.outcomes import TIERS, Tier
from fleet.pool_names import model_of, placed_as
from fleet.tally import Tally, TierTally
from fleet.tierstate import TierState

if TYPE_CHECKING:
    from fleet.budget import Pool
    from fleet.fairflows import Lane


class Model:
    """One model at one gate, all tiers together."""

    __slots__ = ("lengths", "lines", "meter", "name", "requests", "tokens")

    def __init__(
        self, name: str, lengths: dict[str, LengthSketch], tally: Tally, states: Mapping[Tier, TierState]
    ) -> None:
        self.name = name
        self.lengths = lengths  # by endpoint
        self.meter = DrainMeter()  # of all tiers
        self.requests = 0  # that wait
        self.tokens = 0
        self.lines = {tier: Line(self, states[tier], tally.tiers[tier]) for tier in TIERS}


class Line:
    """One model in one tier."""

    __slots__ = ("lanes", "model", "pool", "requests", "state", "tally", "tier", "tokens", "waits_since_s")

    def __init__(self, model: Model, state: TierState, tally: TierTally) -> None:
        self.model = model
        self.tier = state.tier
        self.state = state  # what waits in its tier, all models together
        self.tally = tally  # of its tier, all models together
        self.pool: Pool | None = None  # no node serves it
        self.waits_since_s = 0.0  # without a break, while something waits
        self.lanes: dict[str | None, Lane] = {}  # by size class
        self.requests = 0  # that wait
        self.tokens = 0

    def count(self, tokens: int, sign: int) -> None:
        """Count a waiting request in (+1) or out (-1)."""
        if sign < 0:
            tokens = -tokens
        model, pool = self.model, self.pool
        self.requests += sign
        self.tokens += tokens
        model.requests += sign
        model.tokens += tokens
        if pool is not None:
            pool.waiting += sign


class Lines:
    """The lines of all models that nodes serve, or that something waits for."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self.states = {tier: TierState(tier) for tier in TIERS}
        self._lengths = OutputLengths()
        self.models: dict[str, Model] = {}
        self._bound: Collection[str] = ()

    def __iter__(self) -> Iterator[Line]:
        for model in self.models.values():
            yield from model.lines.values()

    def find(self, model: str, tier: Tier) -> Line:
        """Return a line; one of a model that nobody serves is not remembered: anybody can make up names."""
        found = self.models.get(model)
        if found is None:
            found = Model(model, {}, self._tally, self.states)
        return found.lines[tier]

    def now(self, line: Line) -> Line:
        """Return where requests that once stood in a line would stand today."""
        return self.find(placed_as(line.model.name, self._bound), line.tier)

    def apply(self, pools: Mapping[tuple[str, Tier], Pool], bound: Collection[str]) -> None:
        """Take in which nodes serve what, and which size classes are `bound` to a pool.

        Models without nodes are kept while something waits for them. What waits for the pool of a class
        that is not bound any more goes to its model's nodes.
        """
        self._bound = bound
        served = {name for name, _ in pools}
        served |= {model_of(name) for name in served}  # also where all its nodes serve a part only
        for name in sorted(served - self.models.keys()):
            self.models[name] = Model(
                name, self._lengths.of_model(model_of(name)), self._tally, self.states
            )
        for pool in pools.values():
            pool.waiting = 0
        for line in self:
            line.pool = found = pools.get((placed_as(line.model.name, bound), line.tier))
            if found is not None:
                found.waiting += line.requests
        self.models = {
            name: model for name, model in self.models.items() if model.requests or name in served
        }
