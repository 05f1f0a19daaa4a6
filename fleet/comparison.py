"""Up to six strategies on one traffic: cost, refusals, and at which price of a refusal each wins.

Money is US dollars, rates requests/s, shares ratios of offered requests. A request is missed when it is
refused, lost on an interrupted node, or served later than the objective. Prevents: dollars compared
without refusals, and minutes of waiting that look cheap because nobody is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from fleet.errors import InvalidInput
from fleet.fluid import BIN_S, simulate
from fleet.month_result import MonthResult, NodeClass
from fleet.refusal_split import TIER_WEIGHTS, Flow, Noticed, split_refusals
from fleet.strategies import Mode, Strategy

MAX_STRATEGIES = 6
MONTH_HOURS = 720
BINS_AN_HOUR = int(3600 / BIN_S)
#: The requests of a tier nobody described.
ONE_TIER = (Flow("", "interactive", 1.0),)
_NONE: NDArray[np.float64] = np.zeros(0)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A strategy with its name. `reserved` of its nodes are paid at the reserved price, all month."""

    name: str
    strategy: Strategy
    reserved: int = 0

    @property
    def always_on(self) -> int:
        """How many on-demand nodes run at any time: what may be reserved without paying for nothing."""
        scaler = self.strategy.autoscaler
        return self.strategy.nodes if scaler is None else min(self.strategy.nodes, _least(self.strategy))


def _least(strategy: Strategy) -> int:
    scaler = strategy.autoscaler
    if scaler is None:
        return strategy.nodes
    if scaler.mode is Mode.SCHEDULED:
        planned = min((nodes for _, _, nodes in scaler.plan), default=scaler.min_nodes)
        return max(scaler.min_nodes, min(planned, scaler.max_nodes))
    return scaler.min_nodes


@dataclass(frozen=True, slots=True)
class Prices:
    """USD an hour of a reserved node; on-demand and spot prices stand with node and strategy."""

    reserved_usd_per_hour: float = 18.8


@dataclass(frozen=True, slots=True)
class Stand:
    """What strategies are compared by: a month's cost, and the requests it missed."""

    name: str
    cost_usd: float
    missed: float

    def total_usd(self, refusal_usd: float) -> float:
        """Return the cost with the missed requests at `refusal_usd` each."""
        return self.cost_usd + refusal_usd * self.missed


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one candidate's month came to. Series are by hour."""

    candidate: Candidate
    cost_usd: float  # with reserved nodes at their price
    month: MonthResult
    nodes_by_hour: tuple[float, ...]  # billed, on average
    refused_by_hour: tuple[float, ...]  # share of the hour's requests
    noticed: tuple[Noticed, ...]

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.candidate.name

    @property
    def stand(self) -> Stand:
        """What it is compared by."""
        return Stand(self.name, self.cost_usd, missed(self.month))

    def per_million(self, tokens_of_a_request: float) -> float | None:
        """USD per million tokens served; None if nothing was."""
        tokens = self.month.served * tokens_of_a_request
        return self.cost_usd / (tokens / 1e6) if tokens > 0 else None


class Versus(StrEnum):
    """How a strategy stands against the baseline."""

    BASELINE = "baseline"
    SAME = "same"  # costs and misses what the baseline does
    BETTER = "better"  # costs no more and misses no more: at any price of a refusal
    WORSE = "worse"  # costs no less and misses no less
    PAYS_ABOVE = "pays_above"  # dearer, misses less: pays if a refusal costs more than v*
    PAYS_BELOW = "pays_below"  # cheaper, misses more: pays if a refusal costs less than v*


@dataclass(frozen=True, slots=True)
class BreakEven:
    """A strategy against the baseline. `refusal_usd` is v*; None where no price of a refusal decides."""

    versus: Versus
    refusal_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Cheapest:
    """From this price of a refusal on, up to the next, this strategy costs least with its refusals."""

    from_usd: float
    name: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcomes in the order of the candidates, and how they stand against each other."""

    outcomes: tuple[Outcome, ...]
    break_evens: tuple[BreakEven, ...]
    cheapest: tuple[Cheapest, ...]
    baseline: str
    slo_wait_s: float

    def outcome(self, name: str) -> Outcome:
        """Return the outcome of a name. Raises InvalidInput for another."""
        for found in self.outcomes:
            if found.name == name:
                return found
        raise InvalidInput(f"no strategy is called {name[:60]!r}", field="/baseline")

    def cheapest_at(self, refusal_usd: float) -> Outcome:
        """Return the outcome that costs least when a missed request costs this much."""
        return self.outcome([step.name for step in self.cheapest if step.from_usd <= refusal_usd][-1])


def compare(
    rates_rps: NDArray[np.float64],
    candidates: Sequence[Candidate],
    node: NodeClass,
    *,
    baseline: str,
    prices: Prices | None = None,
    slo_wait_s: float = 2.0,
    flows: Sequence[Flow] = ONE_TIER,
    tier_weights: Mapping[str, float] = TIER_WEIGHTS,
) -> Comparison:
    """Return what each candidate makes of 720 h of `rates_rps` by the fluid method, and how they compare.

    Raises InvalidInput for no or over six candidates, a name twice, or a baseline that is none of them.
    """
    check_candidates(candidates, baseline)
    reserved = (prices or Prices()).reserved_usd_per_hour
    offered = rates_rps * BIN_S
    outcomes = tuple(
        outcome(
            candidate,
            simulate(rates_rps, candidate.strategy, node, slo_wait_s=slo_wait_s),
            node,
            reserved,
            offered,
            flows,
            tier_weights,
        )
        for candidate in candidates
    )
    base = next(found for found in outcomes if found.name == baseline)
    return Comparison(
        outcomes,
        tuple(break_even(found.stand, base.stand) for found in outcomes),
        cheapest([found.stand for found in outcomes]),
        baseline,
        slo_wait_s,
    )


def check_candidates(candidates: Sequence[Candidate], baseline: str) -> None:
    """Raise InvalidInput unless these can be compared."""
    if not 1 <= len(candidates) <= MAX_STRATEGIES:
        raise InvalidInput(
            f"{len(candidates)} strategies", field="/strategies", hint=f"Compare 1 to {MAX_STRATEGIES}"
        )
    names = [candidate.name for candidate in candidates]
    for place, candidate in enumerate(candidates):
        at = f"/strategies/{place}"
        if names.index(candidate.name) != place:
            raise InvalidInput(f"two strategies are called {candidate.name!r}", field=f"{at}/name")
        if not 0 <= candidate.reserved <= candidate.always_on:
            raise InvalidInput(
                f"{candidate.reserved} reserved nodes where {candidate.always_on} always run",
                field=f"{at}/reserved",
                hint="Reserve at most the nodes that never stop",
            )
    if baseline not in names:
        raise InvalidInput(
            f"the baseline {baseline[:60]!r} is not compared",
            field="/baseline",
            hint=f"Choose one of {', '.join(names)}",
        )


def outcome(
    candidate: Candidate,
    month: MonthResult,
    node: NodeClass,
    reserved_usd_per_hour: float,
    offered: NDArray[np.float64],
    flows: Sequence[Flow] = ONE_TIER,
    tier_weights: Mapping[str, float] = TIER_WEIGHTS,
) -> Outcome:
    """Return what a month, found by whichever method, comes to. `offered` is requests by bin."""
    asked, refused = _by_hour(offered), _by_hour(month.refused_by_bin)
    share = np.divide(refused, asked, out=np.zeros_like(asked), where=asked > 0)
    nodes = _by_hour(month.nodes_by_bin) / _by_hour(np.ones(offered.size))
    return Outcome(
        candidate,
        cost_usd=cost_usd(candidate, month, node, reserved_usd_per_hour, offered.size),
        month=replace(month, nodes_by_bin=_NONE, refused_by_bin=_NONE, wait_s_by_bin=_NONE),
        nodes_by_hour=tuple(nodes.tolist()),
        refused_by_hour=tuple(share.tolist()),
        noticed=tuple(split_refusals(offered, month.refused_by_bin, flows, tier_weights)),
    )


def _by_hour(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.add.reduceat(values, np.arange(0, values.size, BINS_AN_HOUR))


def cost_usd(
    candidate: Candidate, month: MonthResult, node: NodeClass, reserved_usd_per_hour: float, bins: int
) -> float:
    """Return the month's cost with the reserved nodes, which always run, at their price."""
    cheaper = float(node.usd_per_hour) - reserved_usd_per_hour
    return month.cost_usd - candidate.reserved * cheaper * bins * BIN_S / 3600


def missed(month: MonthResult) -> float:
    """Return the requests refused, lost, or served later than the objective; under half of one is none."""
    count = month.offered * (1 - month.slo_attainment)
    return count if count >= 0.5 else 0.0


_A_CENT, _HALF_A_REQUEST = 0.01, 0.5


def break_even(found: Stand, base: Stand) -> BreakEven:
    """Return v*, the price of a missed request at which `found` and `base` cost the same.

    v* = (cost_found - cost_base) / (missed_base - missed_found), where one is dearer and misses less.
    """
    if found.name == base.name:
        return BreakEven(Versus.BASELINE)
    dearer, fewer = found.cost_usd - base.cost_usd, base.missed - found.missed
    if abs(dearer) < _A_CENT and abs(fewer) < _HALF_A_REQUEST:
        return BreakEven(Versus.SAME)
    if dearer <= 0 and fewer >= 0:
        return BreakEven(Versus.BETTER)
    if dearer >= 0 and fewer <= 0:
        return BreakEven(Versus.WORSE)
    return BreakEven(Versus.PAYS_ABOVE if dearer > 0 else Versus.PAYS_BELOW, dearer / fewer)


def cheapest(stands: Sequence[Stand]) -> tuple[Cheapest, ...]:
    """Return who has the least cost + v x missed for every price v >= 0 of a missed request, in order."""
    now = min(stands, key=lambda o: (o.cost_usd, o.missed))
    steps = [Cheapest(0.0, now.name)]
    while True:
        better = [o for o in stands if o.missed < now.missed]
        if not better:
            return tuple(steps)
        # the first line to cross is the next; of several that cross there, the flattest
        crossings = [((o.cost_usd - now.cost_usd) / (now.missed - o.missed), o) for o in better]
        at_usd, now = min(crossings, key=lambda crossing: (crossing[0], crossing[1].missed))
        steps.append(Cheapest(at_usd, now.name))
