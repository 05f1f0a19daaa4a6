"""What flips the answer: the same comparison at other cold starts, burst lengths and spot prices.

One input is changed at a time, over a range that is named; durations are seconds, factors ratios, money US
dollars. Prevents: one number taken to a meeting whose sign depends on three that nobody measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from fleet.comparison import Candidate, Comparison, Prices, Stand, cheapest, cost_usd, missed
from fleet.fluid import simulate
from fleet.month_result import MonthResult, NodeClass
from fleet.strategies import Mode
from fleet.traffic_shape import stretched


class Axis(StrEnum):
    """What is changed."""

    COLD_START = "cold_start"  # seconds
    BURST_LENGTH = "burst_length"  # times as long
    SPOT_RATIO = "spot_ratio"  # spot price / on-demand price


COLD_STARTS_S = (60.0, 120.0, 240.0, 360.0, 600.0)
BURST_FACTORS = (0.1, 0.25, 0.5, 1.0, 2.0)
SPOT_RATIOS = (0.2, 0.4, 0.6, 0.8)


@dataclass(frozen=True, slots=True)
class Point:
    """One strategy at one value of an axis."""

    name: str
    cost_usd: float
    refused_share: float
    total_usd: float  # with its refusals at the price asked for


@dataclass(frozen=True, slots=True)
class Step:
    """All strategies that the axis says something about, at one value of it."""

    value: float
    points: tuple[Point, ...]
    cheapest: str  # with what it misses


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """One axis with its steps, in order."""

    axis: Axis
    steps: tuple[Step, ...]

    @property
    def flips(self) -> bool:
        """Say whether another strategy is the cheapest somewhere on the axis."""
        return len({step.cheapest for step in self.steps}) > 1

    def band(self, name: str) -> tuple[float, float] | None:
        """Return the least and the most a strategy costs along the axis; None if it is not on it."""
        costs = [p.cost_usd for step in self.steps for p in step.points if p.name == name]
        return (min(costs), max(costs)) if costs else None


@dataclass(frozen=True, slots=True)
class Base:
    """What was compared, and at which price of a missed request."""

    rates_rps: NDArray[np.float64]
    compared: Comparison
    node: NodeClass
    prices: Prices
    refusal_usd: float


def sensitivities(base: Base) -> list[Sensitivity]:
    """Return the three axes.

    Longer bursts leave out what goes by the day (predictive, scheduled): its day would not be one.
    """
    return [_cold_starts(base), _burst_lengths(base), _spot_prices(base)]


def _step(base: Base, value: float, months: Sequence[tuple[Candidate, MonthResult]]) -> Step:
    stands: list[Stand] = []
    points: list[Point] = []
    for candidate, month in months:
        cost = cost_usd(candidate, month, base.node, base.prices.reserved_usd_per_hour, base.rates_rps.size)
        stand = Stand(candidate.name, cost, missed(month))
        stands.append(stand)
        total = stand.total_usd(base.refusal_usd)
        points.append(Point(candidate.name, cost, month.refused_share, total))
    wins = [one.name for one in cheapest(stands) if one.from_usd <= base.refusal_usd]
    return Step(value, tuple(points), wins[-1])


def _month(base: Base, candidate: Candidate, rates_rps: NDArray[np.float64]) -> MonthResult:
    return simulate(rates_rps, candidate.strategy, base.node, slo_wait_s=base.compared.slo_wait_s)


def _cold_starts(base: Base) -> Sensitivity:
    steps: list[Step] = []
    for value in COLD_STARTS_S:
        months: list[tuple[Candidate, MonthResult]] = []
        for found in base.compared.outcomes:
            candidate, month = found.candidate, found.month
            scaler = candidate.strategy.autoscaler
            if scaler is not None and scaler.cold_start_s != value:
                changed = replace(scaler, cold_start_s=value)
                candidate = replace(candidate, strategy=replace(candidate.strategy, autoscaler=changed))
                month = _month(base, candidate, base.rates_rps)
            months.append((candidate, month))
        steps.append(_step(base, value, months))
    return Sensitivity(Axis.COLD_START, tuple(steps))


def _burst_lengths(base: Base) -> Sensitivity:
    left = [o for o in base.compared.outcomes if not _goes_by_the_day(o.candidate)]
    steps: list[Step] = []
    for factor in BURST_FACTORS if left else ():
        rates = stretched(base.rates_rps, factor)
        steps.append(
            _step(
                base,
                factor,
                [(o.candidate, o.month if factor == 1 else _month(base, o.candidate, rates)) for o in left],
            )
        )
    return Sensitivity(Axis.BURST_LENGTH, tuple(steps))


def _goes_by_the_day(one: Candidate) -> bool:
    scaler = one.strategy.autoscaler
    return scaler is not None and scaler.mode in (Mode.PREDICTIVE, Mode.SCHEDULED)


def _spot_prices(base: Base) -> Sensitivity:
    """A price changes no queue: the same months, paid otherwise."""
    steps: list[Step] = []
    for ratio in SPOT_RATIOS:
        price = float(base.node.usd_per_hour) * ratio
        months: list[tuple[Candidate, MonthResult]] = []
        for found in base.compared.outcomes:
            pool, month = found.candidate.strategy.burst, found.month
            if pool is not None:
                dearer = month.burst_hours * (price - float(pool.usd_per_hour))
                month = replace(month, cost_usd=month.cost_usd + dearer)
            months.append((found.candidate, month))
        steps.append(_step(base, ratio, months))
    return Sensitivity(Axis.SPOT_RATIO, tuple(steps))
